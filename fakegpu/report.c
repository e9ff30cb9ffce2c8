#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "atomics.h"
#include "knobs.h"

static unsigned errors, leaks;

/* One write per line, so that lines of several processes do not mix. */
static void line(const char *format, va_list args)
{
    char text[512];
    int n = snprintf(text, sizeof text, "fakegpu: pid %d: ", (int)getpid());
    int m = vsnprintf(text + n, sizeof text - (size_t)n - 1, format, args);

    n += m < (int)sizeof text - n - 1 ? m : (int)sizeof text - n - 2;
    text[n++] = '\n';
    if (write(STDERR_FILENO, text, (size_t)n) < 0)
        return; /* nobody listens */
}

#define REPORT(counter, level)                       \
    do {                                             \
        va_list args;                                \
        add_relaxed(&(counter), 1);                  \
        if (!knobs()->quiet) {                       \
            va_start(args, format);                  \
            line(format, args);                      \
            va_end(args);                            \
        }                                            \
        if (knobs()->strict >= (level))              \
            abort();                                 \
    } while (0)

void report_error(const char *format, ...) { REPORT(errors, 1); }
void report_leak(const char *format, ...) { REPORT(leaks, 2); }

void report_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    line(format, args);
    va_end(args);
}

unsigned report_errors(void) { return load_relaxed(&errors); }
unsigned report_leaks(void) { return load_relaxed(&leaks); }
