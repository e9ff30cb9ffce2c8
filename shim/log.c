#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lock_order.h"

#define LOG_LINE 640

static int log_highest = LOG_WARN;
static char log_file[512]; /* empty: stderr */

/* What descriptor 2 was when the settings were read: a program may close it, and
 * have a file of its own by that number. */
static dev_t log_stderr_dev;
static ino_t log_stderr_ino;

static bool log_stat_stderr(struct stat *st) { return syscall(SYS_fstat, STDERR_FILENO, st) == 0; }

static bool log_stderr_same(void)
{
	struct stat st;
	return log_stat_stderr(&st) && (!log_stderr_ino || (st.st_dev == log_stderr_dev && st.st_ino == log_stderr_ino));
}

/* log_put writes a line. Where the reader has gone, SIGPIPE must not end the program. */
static void log_put(int fd, const char *line, size_t n)
{
	sigset_t pipe, before, pending;
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	sigemptyset(&pending);
	sigpending(&pending);
	sigprocmask(SIG_BLOCK, &pipe, &before);
	if (write(fd, line, n) < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
		syscall(SYS_rt_sigtimedwait, &pipe, NULL, &(struct timespec){0, 0}, sizeof(unsigned long));
	sigprocmask(SIG_SETMASK, &before, NULL);
}

void log_setup(void)
{
	struct stat st;
	if (log_stat_stderr(&st))
		log_stderr_dev = st.st_dev, log_stderr_ino = st.st_ino;
	static const char *const words[] = {"error", "warn", "info", "debug"};
	const char *word = getenv("RATION_LOG"), *number = getenv("LIBCUDA_LOG_LEVEL"), *path = getenv("RATION_LOG_FILE");
	int chosen = LOG_WARN;
	/* HAMi-core: 0 errors, 1 (the default) and 2 warnings too, 3 what happens, 4 all. */
	if (number && *number >= '0' && *number <= '9')
		chosen = *number == '0' ? LOG_ERROR : *number <= '2' ? LOG_WARN : *number == '3' ? LOG_INFO : LOG_DEBUG;
	for (unsigned i = 0; word && i < sizeof words / sizeof *words; i++)
		if (!strcmp(word, words[i])) {
			chosen = (int)i;
			word = NULL;
		}
	__atomic_store_n(&log_highest, chosen, __ATOMIC_RELAXED);
	if (path && strlen(path) < sizeof log_file)
		strcpy(log_file, path);
	if (word && *word)
		log_warn("RATION_LOG=\"%s\": not a level (use error, warn, info or debug)", word);
}

int log_wanted(enum log_level l) { return (int)l <= __atomic_load_n(&log_highest, __ATOMIC_RELAXED); }

void log_line(enum log_level l, const char *format, ...)
{
	char line[LOG_LINE];
	int saved = errno, fd = STDERR_FILENO;
	va_list args;
	if (!log_wanted(l))
		return;
	lock_order_check(LOCK_LOGS);
	int n = snprintf(line, sizeof line, "ration: ");
	va_start(args, format);
	int more = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
	va_end(args);
	n += more < 0 ? 0 : more < (int)sizeof line - n - 1 ? more : (int)sizeof line - n - 2;
	line[n++] = '\n';
	/* Our caller may hold a lock: no thread is cancelled in here. */
	int cancel;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	/* Opened each time: the program may close a descriptor that is kept open, and use its
	 * number. A pipe without a reader must not make us wait. */
	if (*log_file)
		fd = open(log_file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644);
	else if (!log_stderr_same())
		fd = -1;
	if (fd >= 0)
		log_put(fd, line, (size_t)n);
	if (fd >= 0 && *log_file)
		close(fd);
	pthread_setcancelstate(cancel, &cancel);
	errno = saved;
}

const char *errno_text(int error, char buf[ERRNO_TEXT])
{
	static const struct {
		int number;
		const char *text;
	} known[] = {{EACCES, "permission denied"},    {EPERM, "not permitted"},        {ENOENT, "no such file or folder"},
		     {EROFS, "read-only file system"}, {EMFILE, "too many open files"}, {ENOMEM, "out of memory"},
		     {ENOTDIR, "part of it is a file"}};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (error == known[i].number)
			return known[i].text;
	snprintf(buf, ERRNO_TEXT, "error %d", error);
	return buf;
}
