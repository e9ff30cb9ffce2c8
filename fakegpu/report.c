#include "report.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "atomics.h"
#include "models.h"

static unsigned report_error_count, report_leak_count;
static pthread_once_t report_once = PTHREAD_ONCE_INIT;
static int report_quiet, report_strict; /* FAKEGPU_QUIET and FAKEGPU_STRICT */

static int report_setting(const char *name)
{
	const char *text = getenv(name);
	uint64_t n;
	return text != NULL && size_parse(text, &n) == 0 ? (int)n : 0;
}

static void report_read(void)
{
	report_quiet = report_setting("FAKEGPU_QUIET");
	report_strict = report_setting("FAKEGPU_STRICT");
}

/* One write per line, so that lines of several processes do not mix. */
static void report_line(const char *format, va_list args)
{
	char text[512];
	int n = snprintf(text, sizeof text, "fakegpu: pid %d: ", (int)getpid());
	int m = vsnprintf(text + n, sizeof text - (size_t)n - 1, format, args);

	n += m < (int)sizeof text - n - 1 ? m : (int)sizeof text - n - 2;
	text[n++] = '\n';
	if (write(STDERR_FILENO, text, (size_t)n) < 0)
		return; /* no reader is left */
}

#define REPORT(counter, level)                           \
	do {                                             \
		va_list args;                            \
		pthread_once(&report_once, report_read); \
		add_relaxed(&(counter), 1);              \
		if (!report_quiet) {                     \
			va_start(args, format);          \
			report_line(format, args);       \
			va_end(args);                    \
		}                                        \
		if (report_strict >= (level))            \
			abort();                         \
	} while (0)

void report_error(const char *format, ...) { REPORT(report_error_count, 1); }
void report_leak(const char *format, ...) { REPORT(report_leak_count, 2); }

void report_note(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	report_line(format, args);
	va_end(args);
}

unsigned report_errors(void) { return load_relaxed(&report_error_count); }
unsigned report_leaks(void) { return load_relaxed(&report_leak_count); }
