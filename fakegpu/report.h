/* Reports about fakegpu's caller. All go to stderr, and are counted. */
#ifndef FAKEGPU_REPORT_H
#define FAKEGPU_REPORT_H

/* A mistake of the caller: a double free, a wrong handle. FAKEGPU_STRICT aborts. */
void report_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Memory that was still held when its context or process ended. CUDA allows it,
 * so it only aborts where FAKEGPU_STRICT is 2 or more. */
void report_leak(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Reports a fact about the set-up. */
void report_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

unsigned report_errors(void);
unsigned report_leaks(void);

#endif
