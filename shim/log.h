/* Log lines: RATION_LOG=error|warn|info|debug (warn by default), or HAMi-core's
 * LIBCUDA_LOG_LEVEL, or LOG_LEVEL; all three in words of any case, or as HAMi-core's numbers: 0
 * errors, 1 and 2 warnings too, 3 what happens, 4 and more all. To stderr, or to the end of the file
 * that RATION_LOG_FILE names, where %p is the PID and %j the job. Each line begins with PID,
 * time (UTC) and job, and is one write, which waits for no reader: where there is no
 * room, the line is lost, and the next one that finds room says how many were. Where the
 * program has closed stderr and opened a file of its own by that number, there is none. */
#ifndef RATION_LOG_H
#define RATION_LOG_H

#include <stdint.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* log_setup reads the settings; before it, warnings and errors go to stderr. */
void log_setup(void);

/* log_set_job says which job this process is of, by the path of its region: by the folder's
 * name where the file is called region, as ration run calls it, and by the file's otherwise.
 * RATION_JOB comes first. One thread at a time, before other threads log. */
void log_set_job(const char *region);

/* log_level_of reads a level, in words or as a number, or returns -1. */
int log_level_of(const char *text);

int log_wanted(enum log_level level);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* log_clock returns milliseconds of a clock that does not jump. log_wait logs, as
 * information, that the thread waited for something since then, if that was longer than
 * LOG_WAIT_MS. */
enum { LOG_WAIT_MS = 100 };
uint64_t log_clock(void);
void log_wait(uint64_t since, const char *what);

/* errno_text returns what a system call's error means. strerror may allocate. */
#define ERRNO_TEXT 32
const char *errno_text(int error, char buf[ERRNO_TEXT]);

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
