/* How these programs talk to whoever tests them. A program goes from step to step:
 * it says on standard output where it is and what should be in the books now, and
 * stays there until it reads a line, so that the books can be looked at meanwhile.
 *
 *   step NAME KEY=VALUE ...  sizes are bytes; data is what all processes of the
 *                            program hold together
 *   skip TEXT                this driver or device has no such thing; exit status 0
 *   fail TEXT                something is wrong: the call and the driver's code; 1
 *
 * A program that is through ends with 0, and one whose input ends before with 3.
 *
 * For C and for C++, since nvcc compiles the latter. */
#ifndef STEPS_H
#define STEPS_H

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { STEPS_FAILED = 1, STEPS_USAGE = 2, STEPS_UNHEARD = 3 };

static inline void steps_say(const char *word, const char *format, va_list arguments)
{
	printf("%s ", word);
	vprintf(format, arguments);
	putchar('\n');
	fflush(stdout);
}

/* Byte by byte: nothing of the input lies in a buffer that a fork would double. */
static inline void steps_wait(void)
{
	char c = 0;
	ssize_t n;
	do {
		n = read(STDIN_FILENO, &c, 1);
	} while ((n == 1 && c != '\n') || (n < 0 && errno == EINTR));
	if (n != 1)
		exit(STEPS_UNHEARD);
}

__attribute__((format(printf, 1, 2))) static inline void step(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	steps_say("step", format, arguments);
	va_end(arguments);
	steps_wait();
}

__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	steps_say("fail", format, arguments);
	va_end(arguments);
	exit(STEPS_FAILED);
}

__attribute__((noreturn, format(printf, 1, 2))) static inline void skip(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	steps_say("skip", format, arguments);
	va_end(arguments);
	exit(0);
}

/* steps_size is a number of bytes from the command line, or 0. */
static inline unsigned long long steps_size(const char *text)
{
	char *end;
	unsigned long long size;
	errno = 0;
	size = strtoull(text, &end, 10);
	return errno || *end || *text < '0' || *text > '9' ? 0 : size;
}

#endif
