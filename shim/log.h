/* Log lines: RATION_LOG=error|warn|info|debug (warn by default),
 * or HAMi-core's LIBCUDA_LOG_LEVEL from 0 to 4; to stderr, or to the end of the
 * file RATION_LOG_FILE names. Each line is one write, which waits for no reader: where
 * there is no room, the line is lost, and the next one that finds room says how many were. */
#ifndef RATION_LOG_H
#define RATION_LOG_H

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* log_setup reads the settings; before it, warnings and errors go to stderr. */
void log_setup(void);

int log_wanted(enum log_level level);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* errno_text returns what a system call's error means. strerror may allocate. */
#define ERRNO_TEXT 32
const char *errno_text(int error, char buf[ERRNO_TEXT]);

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
