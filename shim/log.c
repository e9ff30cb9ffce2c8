#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "environment.h"
#include "lock_order.h"
#include "region/region.h"

/* Sizes in bytes: a line, the note about lost lines, the job's name, and a path. */
enum { LOG_LINE = 640, LOG_LOST = 64, LOG_JOB = 64, LOG_PATH = 512 };

static int log_highest = LOG_WARN;
static char log_file[LOG_PATH]; /* the value of RATION_LOG_FILE; empty: stderr */
static char log_job[LOG_JOB];   /* printable, and without slashes; empty: not known */
static uint32_t log_lost;       /* lines lost because the output was full, since the last line that was written; atomic */

/* Identifies the file that is stderr: descriptor 2 when the library was loaded, or the stderr
 * by which the program has replaced it. A program may also close stderr and open a file of its
 * own with that number. */
static enum { LOG_STDERR_UNKNOWN, LOG_STDERR_CLOSED, LOG_STDERR_OPEN } log_stderr_state;
static dev_t log_stderr_dev;
static ino_t log_stderr_ino;

/* A raw system call, since the name of the C function depends on the age of the C library. */
static bool log_stat(int fd, struct stat *st) { return syscall(SYS_fstat, fd, st) == 0; }

static void log_set_stderr(const struct stat *st)
{
	log_stderr_state = LOG_STDERR_OPEN;
	log_stderr_dev = st->st_dev;
	log_stderr_ino = st->st_ino;
}

/* log_keep_stderr runs when the library is loaded, before the program can close a file. */
__attribute__((constructor)) static void log_keep_stderr(void)
{
	struct stat st;
	int saved = errno;
	log_stderr_state = LOG_STDERR_CLOSED;
	if (log_stat(STDERR_FILENO, &st))
		log_set_stderr(&st);
	errno = saved;
}

/* log_is_redirected reports whether the program has replaced stderr: descriptor 2 is the same
 * file as stdout, or a terminal, or a file opened for appending. Any other file with that
 * number may be one that the program opened after it had closed stderr. */
static bool log_is_redirected(const struct stat *st)
{
	struct stat out;
	struct termios t;
	if (log_stat(STDOUT_FILENO, &out) && out.st_dev == st->st_dev && out.st_ino == st->st_ino)
		return true;
	if (S_ISCHR(st->st_mode))
		return syscall(SYS_ioctl, STDERR_FILENO, TCGETS, &t) == 0;
	return S_ISREG(st->st_mode) && fcntl(STDERR_FILENO, F_GETFL) & O_APPEND;
}

/* log_is_stderr reports whether fd is stderr. */
static bool log_is_stderr(int fd, struct stat *st)
{
	if (!log_stat(fd, st) || log_stderr_state == LOG_STDERR_CLOSED)
		return false;
	return log_stderr_state == LOG_STDERR_UNKNOWN || (st->st_dev == log_stderr_dev && st->st_ino == log_stderr_ino);
}

/* log_write_tty writes to a terminal that could not be opened again. It blocks only if another
 * thread fills the terminal's buffer between poll and write. */
static ssize_t log_write_tty(const char *line, size_t n)
{
	struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
	if (poll(&p, 1, 0) == 1)
		return write(STDERR_FILENO, line, n);
	errno = EAGAIN;
	return -1;
}

/* log_write_stderr writes to stderr without blocking. The program and other processes share the
 * open file, so its flags must not be changed. */
static ssize_t log_write_stderr(const char *line, size_t n)
{
	struct stat st, again;
	if (!log_is_stderr(STDERR_FILENO, &st)) {
		errno = EBADF;
		return -1;
	}
	if (S_ISSOCK(st.st_mode))
		return send(STDERR_FILENO, line, n, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode) || fcntl(STDERR_FILENO, F_GETFL) & O_NONBLOCK)
		return write(STDERR_FILENO, line, n);
	int fd = region_open_fd("/proc/self/fd/2", O_WRONLY | O_NOCTTY | O_NONBLOCK, 0);
	if (fd >= 0) {
		ssize_t wrote = log_is_stderr(fd, &again) ? write(fd, line, n) : (ssize_t)n;
		int error = errno;
		close(fd);
		errno = error;
		return wrote;
	}
	if (errno == ENXIO) /* a pipe without a reader */
		return -1;
	struct iovec one = {(void *)line, n};
	ssize_t wrote = syscall(SYS_pwritev2, STDERR_FILENO, &one, 1, -1L, -1L, RWF_NOWAIT);
	return wrote < 0 && errno != EAGAIN && S_ISCHR(st.st_mode) ? log_write_tty(line, n) : wrote;
}

/* log_path fills in %p and %j in the name of the file. It runs for each line, since a fork
 * changes the PID. It returns false if the name becomes too long. */
static bool log_path(char path[LOG_PATH])
{
	size_t n = 0;
	for (const char *c = log_file; *c && n < LOG_PATH; c++) {
		if (c[0] == '%' && c[1] == 'p')
			n += (size_t)snprintf(path + n, LOG_PATH - n, "%d", (int)getpid()), c++;
		else if (c[0] == '%' && c[1] == 'j')
			n += (size_t)snprintf(path + n, LOG_PATH - n, "%s", *log_job ? log_job : "none"), c++;
		else
			path[n++] = *c, c += c[0] == '%' && c[1] == '%';
	}
	if (n >= LOG_PATH)
		return false;
	path[n] = 0;
	return true;
}

/* log_write_file writes to RATION_LOG_FILE, which may be a pipe, without blocking. It opens the
 * file each time: the program might close a descriptor that is kept open, and use its number. A
 * line goes to stderr if the file cannot be opened, except a pipe without a reader (ENXIO). */
static ssize_t log_write_file(const char *line, size_t n)
{
	char path[LOG_PATH];
	if (!log_path(path))
		return log_write_stderr(line, n);
	int fd = region_open_fd(path, O_WRONLY | O_APPEND | O_CREAT | O_NOCTTY | O_NONBLOCK, 0644);
	if (fd < 0)
		return errno == ENXIO ? -1 : log_write_stderr(line, n);
	ssize_t wrote = write(fd, line, n);
	int error = errno;
	close(fd);
	errno = error;
	return wrote;
}

/* log_put writes a line. It returns false if the line was lost because the output was full. It
 * blocks the signals that could end or stop the program here: for a pipe without a reader, for
 * a limit on file sizes, and for a terminal that stops background processes. */
static bool log_put(const char *line, size_t n)
{
	sigset_t signals, before, pending;
	sigemptyset(&signals);
	sigaddset(&signals, SIGPIPE);
	sigaddset(&signals, SIGXFSZ);
	sigaddset(&signals, SIGTTOU);
	sigemptyset(&pending);
	sigpending(&pending);
	sigprocmask(SIG_BLOCK, &signals, &before);
	ssize_t wrote = *log_file ? log_write_file(line, n) : log_write_stderr(line, n);
	int error = wrote < 0 ? errno : 0, raised = error == EPIPE ? SIGPIPE : error == EFBIG ? SIGXFSZ : 0;
	if (raised && !sigismember(&pending, raised)) {
		sigemptyset(&signals);
		sigaddset(&signals, raised);
		syscall(SYS_rt_sigtimedwait, &signals, NULL, &(struct timespec){0, 0}, sizeof(unsigned long));
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	return wrote == (ssize_t)n || (wrote < 0 && error != EAGAIN && error != EFBIG && error != ENOSPC && error != EDQUOT);
}

int log_level_of(const char *text)
{
	static const struct {
		const char *word;
		int level;
	} words[] = {{"error", LOG_ERROR}, {"warn", LOG_WARN}, {"warning", LOG_WARN}, {"info", LOG_INFO}, {"debug", LOG_DEBUG}};
	if (!text || !*text)
		return -1;
	if (!text[strspn(text, "0123456789")]) {
		text += strspn(text, "0");
		return !*text ? LOG_ERROR : text[1] || *text >= '4' ? LOG_DEBUG : *text == '3' ? LOG_INFO : LOG_WARN;
	}
	for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
		const char *word = words[i].word, *c = text;
		while (*word && (*c | 0x20) == *word) /* compares ASCII only, whatever the program's locale */
			c++, word++;
		if (!*word && !*c)
			return words[i].level;
	}
	return -1;
}

/* log_keep_job stores the job's name in a form that can be part of a line and of a file's name. */
static void log_keep_job(const char *name, size_t len)
{
	size_t n = 0;
	for (; n < len && n < sizeof log_job - 1; n++)
		log_job[n] = (unsigned char)name[n] <= ' ' || name[n] == '/' || name[n] == 0x7f ? '_' : name[n];
	log_job[n] = 0;
}

/* log_find_user writes the name that /etc/passwd has for a UID to out, and returns its length: 0 if
 * there is none, as for a user of a directory service. getpwuid would know those, but it loads
 * modules into the program and takes locks. */
static size_t log_find_user(const char *uid, size_t len, char *out, size_t size)
{
	int saved = errno, fd = open("/etc/passwd", O_RDONLY | O_CLOEXEC), field = 0;
	char text[2048];
	size_t n = 0, same = 0, found = 0; /* same: digits of the UID that were equal so far; more than len if one was not */
	for (ssize_t got; fd >= 0 && !found && (got = read(fd, text, sizeof text)) > 0;) {
		for (const char *c = text; c < text + got && !found; c++) {
			if (*c == '\n')
				field = 0, n = 0, same = 0;
			else if (*c == ':')
				found = field++ == 2 && same == len && n < size ? n : 0;
			else if (field == 0 && n < size)
				out[n++] = *c;
			else if (field == 2)
				same = same < len && uid[same] == *c ? same + 1 : len + 1;
		}
	}
	if (fd >= 0)
		close(fd);
	errno = saved;
	return found;
}

void log_set_job(const char *region)
{
	const char *name = environment_get("RATION_JOB"), *end = region + strlen(region);
	if (name && *name) {
		log_keep_job(name, strlen(name));
		return;
	}
	const char *file = strrchr(region, '/');
	if (file && file > region && !strcmp(file, "/region"))
		end = file;
	for (name = end; name > region && name[-1] != '/';)
		name--;
	/* The job of a policy's user has the user's name, as in ration ps, or the UID. */
	static const char users[] = "/run/ration/user-";
	const char *uid = region + sizeof users - 1;
	char user[LOG_JOB];
	if (!strncmp(region, users, sizeof users - 1) && uid < end && strspn(uid, "0123456789") == (size_t)(end - uid)) {
		size_t n = log_find_user(uid, (size_t)(end - uid), user, sizeof user);
		log_keep_job(n ? user : uid, n ? n : (size_t)(end - uid));
		return;
	}
	log_keep_job(name, (size_t)(end - name));
}

void log_setup(void)
{
	struct stat st;
	if (log_stat(STDERR_FILENO, &st) && log_is_redirected(&st))
		log_set_stderr(&st);
	/* Use the first variable whose value is a level: LOG_LEVEL may belong to the program. */
	static const char *const names[] = {"RATION_LOG", "LIBCUDA_LOG_LEVEL", "LOG_LEVEL"};
	const char *word = environment_get(names[0]), *path = environment_get("RATION_LOG_FILE");
	int chosen = -1;
	for (unsigned i = 0; chosen < 0 && i < sizeof names / sizeof *names; i++)
		chosen = log_level_of(environment_get(names[i]));
	chosen = chosen < 0 ? LOG_WARN : chosen;
	__atomic_store_n(&log_highest, chosen, __ATOMIC_RELAXED);
	log_set_job("");
	if (path && strlen(path) < sizeof log_file)
		strcpy(log_file, path);
	if (word && *word && log_level_of(word) < 0)
		log_warn("RATION_LOG=\"%s\": not a level (use error, warn, info or debug, or 0 to 4)", word);
}

int log_wanted(enum log_level l) { return (int)l <= __atomic_load_n(&log_highest, __ATOMIC_RELAXED); }

/* log_date writes the date of a day since 1 January 1970, and a T. Years begin in March here,
 * in eras of 400 years, since 1 March of year 0. */
enum { LOG_DATE = 40 };
static void log_date(char out[LOG_DATE], int64_t day)
{
	int64_t era = (day + 719468) / 146097, of_era = (day + 719468) % 146097;
	int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
	int64_t of_year = of_era - (365 * year + year / 4 - year / 100), month = (5 * of_year + 2) / 153;
	snprintf(out, LOG_DATE, "%04d-%02d-%02dT", (int)(400 * era + year + (month >= 10)), (int)(month < 10 ? month + 3 : month - 9),
		 (int)(of_year - (153 * month + 2) / 5 + 1));
}

/* log_begin writes the start of a line: PID, time and job. The date is written only to a file,
 * which may hold many days. It computes UTC itself: the C library would read the time zone from
 * a file, and allocate. */
static int log_begin(char *line, size_t size)
{
	struct timespec now;
	char date[LOG_DATE] = "";
	clock_gettime(CLOCK_REALTIME, &now);
	int second = (int)(now.tv_sec % 86400);
	if (*log_file)
		log_date(date, now.tv_sec / 86400);
	return snprintf(line, size, "ration[%d] %s%02d:%02d:%02d.%03dZ%s%s: ", (int)getpid(), date, second / 3600, second / 60 % 60,
			second % 60, (int)(now.tv_nsec / 1000000), *log_job ? " " : "", log_job);
}

uint64_t log_clock(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

bool log_seldom(uint64_t *last, uint64_t *skipped)
{
	uint64_t now = log_clock() + 1000, before = __atomic_load_n(last, __ATOMIC_RELAXED);
	if (now - before >= 1000 && __atomic_compare_exchange_n(last, &before, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return true;
	__atomic_fetch_add(skipped, 1, __ATOMIC_RELAXED);
	return false;
}

void log_wait(uint64_t since, const char *what)
{
	uint64_t waited = log_clock() - since;
	if (waited > LOG_WAIT_MS)
		log_info("waited %llu ms for %s", (unsigned long long)waited, what);
}

/* log_is_control returns how many bytes at text form a character that may control a terminal: a
 * control character, also beyond ASCII, or one that changes the direction of text. It returns 0
 * for any other. */
static unsigned log_is_control(const unsigned char *text)
{
	if (text[0] < ' ' || text[0] == 0x7f)
		return 1;
	if (text[0] == 0xc2 && text[1] >= 0x80 && text[1] < 0xa0)
		return 2;
	if (text[0] != 0xe2)
		return 0;
	/* U+200E, U+200F, U+2028 to U+202E, U+2066 to U+2069 */
	if (text[1] == 0x80 && ((text[2] >= 0x8e && text[2] <= 0x8f) || (text[2] >= 0xa8 && text[2] <= 0xae)))
		return 3;
	return text[1] == 0x81 && text[2] >= 0xa6 && text[2] <= 0xa9 ? 3 : 0;
}

/* log_clean replaces characters that are not printable, and line breaks: another process of the
 * job chose its own name, and may belong to another user. */
static void log_clean(char *text)
{
	while (*text) {
		unsigned n = log_is_control((const unsigned char *)text);
		memset(text, '?', n);
		text += n ? n : 1;
	}
}

void log_line(enum log_level l, const char *format, ...)
{
	char line[LOG_LINE + LOG_LOST];
	int saved = errno;
	va_list args;
	if (!log_wanted(l))
		return;
	lock_order_check(LOCK_LOGS);
	int n = log_begin(line, LOG_LINE);
	va_start(args, format);
	int more = vsnprintf(line + n, LOG_LINE - (size_t)n, format, args);
	va_end(args);
	n += more < 0 ? 0 : more < LOG_LINE - n ? more : LOG_LINE - n - 1;
	log_clean(line);
	uint32_t lost = __atomic_exchange_n(&log_lost, 0, __ATOMIC_RELAXED);
	if (lost)
		n += snprintf(line + n, LOG_LOST, " (%u line%s lost: %s was full)", lost, lost == 1 ? " was" : "s were",
			      *log_file ? "RATION_LOG_FILE" : "stderr");
	line[n++] = '\n';
	/* Lines are logged outside hooks, too, and there the thread could be cancelled. */
	int cancel;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	if (!log_put(line, (size_t)n))
		__atomic_fetch_add(&log_lost, lost + 1, __ATOMIC_RELAXED);
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
