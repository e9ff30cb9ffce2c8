#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "atomics.h"
#include "knobs.h"

static unsigned report_error_count, report_leak_count;

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

#define REPORT(counter, level)                     \
	do {                                       \
		va_list args;                      \
		add_relaxed(&(counter), 1);        \
		if (!knobs()->quiet) {             \
			va_start(args, format);    \
			report_line(format, args); \
			va_end(args);              \
		}                                  \
		if (knobs()->strict >= (level))    \
			abort();                   \
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
