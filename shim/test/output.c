/* Lines of output wait for no reader, change nothing of the program's descriptors, and end
 * no program. Each case is a process of its own, whose stderr is what the case is about;
 * where a line waits, the test does not end. A lookup of one of the driver's names is one
 * line. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <termios.h>

#include "check.h"

static void say(void) { (void)!dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"); }

/* What there is to read, of which the end is kept. */
static const char *drain(int fd)
{
	static char text[4096];
	char more[4096];
	ssize_t n;
	text[0] = 0;
	while (poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 1 && (n = read(fd, more, sizeof more - 1)) > 0) {
		more[n] = 0;
		strcpy(text, more);
	}
	return text;
}

static void fill(int fd)
{
	static const char dots[4096] = {'.'};
	int flags = fcntl(fd, F_GETFL);
	fcntl(fd, F_SETFL, flags | O_NONBLOCK);
	for (size_t n = sizeof dots; n > 0; n /= 2)
		while (write(fd, dots, n) > 0)
			;
	fcntl(fd, F_SETFL, flags);
}

#define SAYS(text, part) CHECK(strstr(text, part) != NULL)

/* Lines go to what is read from `from`. Full, it loses lines; later it says how many. */
static void fills_up(int to, int from, const char *name)
{
	char lost[64];
	say();
	SAYS(drain(from), "resolves cuMemAlloc_v2");
	int flags = fcntl(to, F_GETFL);
	fill(to);
	for (int i = 0; i < 3; i++)
		say();
	EQ(fcntl(to, F_GETFL), flags);
	drain(from);
	say();
	snprintf(lost, sizeof lost, " (3 lines were lost: %s was full)\n", name);
	SAYS(drain(from), lost);
	say();
	CHECK(strstr(drain(from), "lost") == NULL);
}

/* As a program does that redirects its output: stdout is the same. */
static void redirect(int to)
{
	dup2(to, STDOUT_FILENO);
	dup2(to, STDERR_FILENO);
}

static void stderr_fills_up(int to, int from)
{
	redirect(to);
	fills_up(STDERR_FILENO, from, "stderr");
}

static void in_pipe(void)
{
	int p[2];
	EQ(pipe(p), 0);
	stderr_fills_up(p[1], p[0]);
}

static void in_socket(void)
{
	int s[2];
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
	stderr_fills_up(s[0], s[1]);
}

static void in_datagrams(void)
{
	int s[2];
	EQ(socketpair(AF_UNIX, SOCK_DGRAM, 0, s), 0);
	stderr_fills_up(s[0], s[1]);
}

static void in_fifo(void)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/fifo", getenv("FAKEGPU_STATE"));
	EQ(mkfifo(path, 0600), 0);
	setenv("RATION_LOG_FILE", path, 1);
	say(); /* there is no reader */
	int fd = open(path, O_RDWR);
	fills_up(fd, fd, "RATION_LOG_FILE");
	unlink(path);
}

/* Whether this kernel can write to a pipe without waiting, in one call. */
static bool has_nowait(void)
{
	int p[2];
	EQ(pipe(p), 0);
	bool has = syscall(SYS_pwritev2, p[1], &(struct iovec){"", 1}, 1, -1L, -1L, RWF_NOWAIT) == 1;
	close(p[0]), close(p[1]);
	return has;
}

/* Becomes another user, which may not open again what there is. */
static bool become_another(const char *what)
{
	if (setuid(65534) != 0) {
		printf("output.c: no %s of another user: not root\n", what);
		return false;
	}
	CHECK(open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK) < 0);
	return true;
}

static void in_anothers_pipe(void)
{
	int p[2];
	EQ(pipe(p), 0);
	if (!has_nowait())
		printf("output.c: no pipe of another user: an old kernel\n");
	else if (become_another("pipe"))
		stderr_fills_up(p[1], p[0]);
}

static int terminal(int *other)
{
	struct termios t;
	int master = posix_openpt(O_RDWR | O_NOCTTY);
	CHECK(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
	*other = open(ptsname(master), O_RDWR | O_NOCTTY);
	CHECK(*other >= 0 && tcgetattr(*other, &t) == 0);
	t.c_oflag &= ~(tcflag_t)OPOST;
	t.c_lflag = TOSTOP;
	EQ(tcsetattr(*other, TCSANOW, &t), 0);
	return master;
}

/* A terminal that was stopped, as by Ctrl-S. */
static void stops(int master, int tty)
{
	dup2(tty, STDERR_FILENO);
	say();
	SAYS(drain(master), "resolves cuMemAlloc_v2");
	EQ(tcflow(tty, TCOOFF), 0);
	say();
	say();
	EQ(tcflow(tty, TCOON), 0);
	say();
	SAYS(drain(master), " (2 lines were lost: stderr was full)\n");
}

static void in_terminal(void)
{
	int tty, master = terminal(&tty);
	stops(master, tty);
}

static void in_anothers_terminal(void)
{
	int tty, master = terminal(&tty);
	if (become_another("terminal"))
		stops(master, tty);
}

/* A terminal's background process, which that terminal stops when it writes. */
static void in_background(void)
{
	int tty, status = 0, master = terminal(&tty);
	CHECK(setsid() >= 0);
	EQ(ioctl(tty, TIOCSCTTY, 0), 0);
	EQ(tcsetpgrp(tty, getpgrp()), 0);
	pid_t pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		dup2(tty, STDERR_FILENO);
		say();
		_exit(7);
	}
	EQ(waitpid(pid, &status, WUNTRACED), pid);
	CHECK(WIFEXITED(status));
	kill(pid, SIGKILL);
	SAYS(drain(master), "resolves cuMemAlloc_v2");
}

/* A pipe without a reader: its signal ends nothing, and one that is the program's stays. */
static void without_reader(void)
{
	sigset_t set;
	int p[2];
	EQ(pipe(p), 0);
	close(p[0]);
	redirect(p[1]);
	say();
	fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK);
	say();
	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	sigprocmask(SIG_BLOCK, &set, NULL);
	raise(SIGPIPE);
	say();
	EQ(sigpending(&set), 0);
	EQ(sigismember(&set, SIGPIPE), 1);
}

static int new_file(void)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/file", getenv("FAKEGPU_STATE"));
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	unlink(path);
	return fd;
}

static void contents(int fd, char text[4096])
{
	ssize_t n = pread(fd, text, 4095, 0);
	text[n > 0 ? n : 0] = 0;
}

/* A file that the program writes to as well, without O_APPEND, up to a limit on its size. */
static void in_file(void)
{
	char text[4096];
	struct rlimit most;
	int fd = new_file();
	redirect(fd);
	EQ(write(fd, "one\n", 4), 4);
	say();
	EQ(write(fd, "two\n", 4), 4);
	EQ(getrlimit(RLIMIT_FSIZE, &most), 0);
	EQ(setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)lseek(fd, 0, SEEK_CUR), most.rlim_max}), 0);
	say();
	EQ(setrlimit(RLIMIT_FSIZE, &most), 0);
	say();
	contents(fd, text);
	CHECK(strncmp(text, "one\nration[", 11) == 0);
	SAYS(text, "\ntwo\nration[");
	SAYS(text, " (1 line was lost: stderr was full)\n");
}

/* Without stderr, the program's next file has its number, before or after the first line. */
static void closed(void)
{
	char text[4096];
	close(STDERR_FILENO);
	say();
	EQ(new_file(), STDERR_FILENO);
	say();
	contents(STDERR_FILENO, text);
	EQ(strlen(text), 0);
}

static void closed_later(void)
{
	char text[4096];
	dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
	say();
	close(STDERR_FILENO);
	EQ(new_file(), STDERR_FILENO);
	say();
	contents(STDERR_FILENO, text);
	EQ(strlen(text), 0);
}

/* Closed before the library has said anything, and the number is a file, or a connection, of the
 * program's by then. Nothing is written to it, nor is stderr forgotten. */
static void closed_before(int own)
{
	int kept = dup(STDERR_FILENO);
	struct stat st;
	char text[4096];
	EQ(fstat(own, &st), 0);
	close(STDERR_FILENO);
	EQ(dup(own), STDERR_FILENO);
	say();
	if (S_ISREG(st.st_mode)) {
		contents(own, text);
		EQ(strlen(text), 0);
	}
	dup2(kept, STDERR_FILENO);
}

static void file_before(void) { closed_before(new_file()); }

static void connection_before(void)
{
	int p[2];
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, p), 0);
	closed_before(p[0]);
	EQ(strlen(drain(p[1])), 0);
}

/* It was closed when the program was started. */
static void closed_at_start(void)
{
	close(STDERR_FILENO);
	execl("/proc/self/exe", "output", "closed", (char *)NULL);
	_exit(127);
}

/* A log that the program appends to has our lines, too. */
static void appended_before(void)
{
	char text[4096];
	int fd = new_file();
	fcntl(fd, F_SETFL, O_APPEND);
	dup2(fd, STDERR_FILENO);
	say();
	contents(fd, text);
	SAYS(text, "resolves cuMemAlloc_v2");
}

/* Without stdout, what the program prints never comes to where lines go. */
static void *print(void *arg)
{
	unsigned *over = arg, printed = 0;
	while (!__atomic_load_n(over, __ATOMIC_ACQUIRE))
		printed += write(STDOUT_FILENO, "x", 1) == 1;
	EQ(printed, 0);
	return NULL;
}

static void without_stdout(void)
{
	unsigned over = 0;
	pthread_t thread;
	int p[2];
	EQ(pipe(p), 0);
	redirect(p[1]);
	say();
	close(STDOUT_FILENO);
	EQ(pthread_create(&thread, NULL, print, &over), 0);
	for (int i = 0; i < 2000; i++) {
		say();
		drain(p[0]);
	}
	__atomic_store_n(&over, 1, __ATOMIC_RELEASE);
	EQ(pthread_join(thread, NULL), 0);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "closed")) {
		char text[4096];
		int own = new_file();
		say();
		contents(own, text);
		return own != STDERR_FILENO || strlen(text) > 0;
	}
	static void (*const cases[])(void) = {
		in_pipe,           in_socket,       in_datagrams,   in_fifo, in_anothers_pipe, in_terminal,    in_anothers_terminal,
		in_background,     without_reader,  in_file,        closed,  closed_later,     without_stdout, file_before,
		connection_before, appended_before, closed_at_start};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int status = -1;
#ifdef __SANITIZE_THREAD__
		/* The sanitizer keeps books of descriptors, and takes a write to one that is closed for
		 * a race with the next open. */
		if (cases[i] == without_stdout)
			continue;
#endif
		pid_t pid = fork();
		if (pid == 0) {
			stderr = fdopen(dup(STDERR_FILENO), "w"); /* where checks that fail are told */
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			cases[i]();
			fflush(NULL);
			_exit(checks_failed > 0);
		}
		EQ(waitpid(pid, &status, 0), pid);
		if (status != 0)
			fprintf(stderr, "case %zu: status %#x\n", i, (unsigned)status);
		EQ(status, 0);
	}
	return FINISH();
}
