/* How these programs talk to the tester. A program goes from step to step: it prints where
 * it is and what ration should count now, and waits for a line of input, so that the tester
 * can read the accounts meanwhile.
 *
 *   step NAME KEY=VALUE ...  sizes are in bytes; data is what all processes of the program
 *                            hold together
 *   skip TEXT                this driver or device does not support it; exit status 0
 *   fail TEXT                something is wrong: the call and the driver's code; exit status 1
 *
 * A program ends with exit status 0 after its last step, and with 3 if its input ends
 * before.
 *
 * This header is C and C++, since nvcc compiles C++. */
#ifndef STEPS_H
#define STEPS_H

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { STEPS_FAILED = 1, STEPS_USAGE = 2, STEPS_NO_INPUT = 3 };

static inline void steps_print(const char *word, const char *format, va_list arguments)
{
	printf("%s ", word);
	vprintf(format, arguments);
	putchar('\n');
	fflush(stdout);
}

/* steps_wait reads byte by byte: a fork would copy buffered input. */
static inline void steps_wait(void)
{
	char c = 0;
	ssize_t n;
	do {
		n = read(STDIN_FILENO, &c, 1);
	} while ((n == 1 && c != '\n') || (n < 0 && errno == EINTR));
	if (n != 1)
		exit(STEPS_NO_INPUT);
}

__attribute__((format(printf, 1, 2))) static inline void step(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	steps_print("step", format, arguments);
	va_end(arguments);
	steps_wait();
}

__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	steps_print("fail", format, arguments);
	va_end(arguments);
	exit(STEPS_FAILED);
}

__attribute__((noreturn, format(printf, 1, 2))) static inline void skip(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	steps_print("skip", format, arguments);
	va_end(arguments);
	exit(0);
}

/* steps_size returns the number of bytes in an argument, or 0 if it is none. */
static inline unsigned long long steps_size(const char *text)
{
	char *end;
	unsigned long long size;
	errno = 0;
	size = strtoull(text, &end, 10);
	return errno || *end || *text < '0' || *text > '9' ? 0 : size;
}

#endif
