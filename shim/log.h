/* Log lines. The level is RATION_LOG=error|warn|info|debug (warn by default), or HAMi-core's
 * LIBCUDA_LOG_LEVEL, or LOG_LEVEL. All three take words in any case, or HAMi-core's numbers: 0
 * errors, 1 and 2 also warnings, 3 also information, 4 and more everything. Lines go to stderr,
 * or to the end of the file in RATION_LOG_FILE, where %p is the PID and %j the job. If that file
 * cannot be opened, they go to stderr. Each line begins with PID, time (UTC) and job. It is one
 * write, which never blocks: if the output is full the line is lost, and the next line that can be
 * written tells how many were lost. If the program has closed stderr and opened a file of its own
 * with that number, nothing is logged. */
#ifndef RATION_LOG_H
#define RATION_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* log_setup reads the settings. Before it is called, warnings and errors go to stderr. */
void log_setup(void);

/* log_set_job sets the job's name for the log lines, from the path of its region: the folder's
 * name if the file is called region, which is the name that ration run uses, and otherwise the
 * file's name. The job of a policy's user has the name of the user, or the UID if /etc/passwd has none. RATION_JOB overrides it.
 * Not thread-safe: call it before other threads log. */
void log_set_job(const char *region);

/* log_level_of returns the level that a text gives, as a word or a number, or -1. */
int log_level_of(const char *text);

int log_wanted(enum log_level level);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* log_clock returns the time of a monotonic clock, in milliseconds. log_wait logs, as
 * information, that the thread waited for `what` since then, if it took longer than
 * LOG_WAIT_MS. */
enum { LOG_WAIT_MS = 100 };
uint64_t log_clock(void);
void log_wait(uint64_t since, const char *what);

/* log_seldom returns true at most once a second. The other calls are counted in *skipped: a program that retries in a loop
 * must not flood its log. Both words are atomic. */
bool log_seldom(uint64_t *last, uint64_t *skipped);

/* errno_text returns the text for an errno value, in buf. It is used since strerror may
 * allocate. */
#define ERRNO_TEXT 32
const char *errno_text(int error, char buf[ERRNO_TEXT]);

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
