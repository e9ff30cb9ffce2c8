#include "userjob.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "log.h"
#include "region/kernel.h"
#include "region/region.h"

#define USERJOB_IN_FORCE "/etc/ration/in-force.toml"
#define USERJOB_HIGH "/run/ration/high-priority"
#define USERJOB_SOCKET "/run/ration/policy.sock"

/* The first line of the file if a user without a job runs without limits. internal/policy
 * writes it. */
#define USERJOB_OPEN_LINE "# missing: open\n"

/* The beginning of a line before the answer: there is no room, and this process waits its turn.
 * internal/policy/waiting.go writes it. */
#define USERJOB_WAIT_LINE "wait "

/* The promise that came with the user's job: a descriptor, which keeps the job until this process
 * has joined it (internal/policy/PROTOCOL.md, *Granting*). Guarded by LOCK_ATTACH. */
static struct {
	int fd; /* -1: none */
	dev_t dev;
	ino_t ino; /* the file: the program may close the descriptor, and get its number for another file */
} userjob_promise = {.fd = -1};

static bool userjob_may_wait; /* guarded by LOCK_ATTACH */

static bool userjob_was_down; /* this process has waited for a restart of the service, in vain */

/* Limits on the waits of 100 ms for an answer, and for a service that does not run, as an upgrade restarts it; and on
 * waits ended by signals. */
enum { USERJOB_WAITS = 100, USERJOB_RESTART = 30, USERJOB_SIGNALS = 100000 };

/* userjob_exists reports whether a path exists. It returns false only after ENOENT and ENOTDIR:
 * if the kernel does not tell, the path is taken to exist. */
static bool userjob_exists(const char *path)
{
	struct stat st;
	int saved = errno;
	bool there = region_lstat(path, &st) || (errno != ENOENT && errno != ENOTDIR);
	errno = saved;
	return there;
}

/* userjob_read reads the beginning of a file into text, as a string. It returns false if the
 * file cannot be read. */
static bool userjob_read(const char *path, char *text, size_t size)
{
	unsigned low = region_take_low_fds();
	int fd = (int)kernel_call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0, 0);
	region_free_low_fds(low);
	if (fd < 0)
		return false;
	ssize_t n = kernel_call(SYS_read, fd, (long)text, (long)size - 1, 0, 0);
	kernel_call(SYS_close, fd, 0, 0, 0, 0);
	text[n < 0 ? 0 : n] = 0;
	return n >= 0;
}

/* userjob_uid returns the real user ID, as the host sees it. A process in a user namespace that
 * its user made is root there; the map of that namespace gives the user outside. The result is
 * not proof: in a nested namespace, or without /proc, a user can get any number here. It only
 * tells where to look; the owner of a file found there must be checked. */
static unsigned long userjob_uid(void)
{
	unsigned long uid = (unsigned long)kernel_uid();
	char text[1024], *at = text;
	if (!userjob_read("/proc/self/uid_map", text, sizeof text))
		return uid;
	while (*at) {
		char *end;
		unsigned long inside = strtoul(at, &end, 10), outside = strtoul(end, &end, 10), count = strtoul(end, &end, 10);
		if (uid >= inside && uid - inside < count)
			return outside + (uid - inside);
		if (end == at || !(at = strchr(end, '\n')))
			break;
		at++;
	}
	return uid;
}

/* userjob_root reports whether the real user is root on the host; owner is the owner of a file
 * of root, as this process sees it. The map alone is no proof: in a nested namespace it shows
 * the user of the outer one, only the beginning of a long map is read, and /proc may be
 * missing. But only root sees root's files as its own: in a namespace that does not map root,
 * the kernel shows them as files of nobody, whose ID is not 0. */
static bool userjob_root(uid_t owner) { return owner == 0 && kernel_uid() == 0 && userjob_uid() == 0; }

/* userjob_path writes the path of this user's job folder, followed by file, to out. */
static void userjob_path(char *out, size_t size, const char *file) { snprintf(out, size, "/run/ration/user-%lu%s", userjob_uid(), file); }

bool userjob_is_run(const char *region)
{
	char prefix[64];
	userjob_path(prefix, sizeof prefix, "-");
	size_t n = strlen(prefix);
	if (!region || strncmp(region, prefix, n))
		return false;
	/* The rest must be a name, "/" and "region": root owns everything below /run/ration. */
	size_t name = strcspn(region + n, "/");
	return name > 0 && !strcmp(region + n + name, "/region");
}

/* userjob_exempt reports whether the policy does not ration this user; root is the owner of a
 * file of root, as this process sees it. The exempt user owns the file `exempt`. In any
 * namespace the kernel shows files of other users, and of root, as files of nobody, so the
 * owner proves the exemption. */
static bool userjob_exempt(uid_t root)
{
	char path[64];
	struct stat st;
	userjob_path(path, sizeof path, "/exempt");
	return region_lstat(path, &st) && st.st_uid == kernel_uid() && st.st_uid != root;
}

bool userjob_ruled(void)
{
	struct stat st = {.st_uid = (uid_t)-1}; /* if the file cannot be examined */
	int saved = errno;
	bool none = !region_lstat(USERJOB_IN_FORCE, &st) && (errno == ENOENT || errno == ENOTDIR);
	/* Root is never rationed: root could end the policy anyway. */
	bool ruled = !none && !userjob_root(st.st_uid) && !userjob_exempt(st.st_uid);
	errno = saved;
	return ruled;
}

bool userjob_may_be_high(pid_t pid)
{
	char path[64], text[1024], *line, *end;
	int saved = errno;
	bool may = true;
	if (userjob_exists(USERJOB_IN_FORCE) && pid > 0) {
		snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
		/* A process may choose who owns its files in /proc, but not what they say. The name before it
		 * has no newline. */
		if (userjob_read(path, text, sizeof text) && (line = strstr(text, "\nUid:"))) {
			unsigned long uid = strtoul(line + strlen("\nUid:"), &end, 10);
			snprintf(path, sizeof path, USERJOB_HIGH "/%lu", uid);
			may = uid == 0 || userjob_exists(path);
		} else {
			/* /proc may hide the processes of other users. */
			may = kill(pid, 0) == 0 || errno != ESRCH;
		}
	}
	errno = saved;
	return may;
}

/* userjob_recv is recv. If a descriptor comes with the bytes, *promise becomes that
 * descriptor. */
static ssize_t userjob_recv(int fd, char *to, size_t size, int *promise)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part = {.iov_base = to, .iov_len = size};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
	ssize_t got = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = got < 0 ? NULL : CMSG_FIRSTHDR(&m);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && *promise < 0)
		memcpy(promise, CMSG_DATA(c), sizeof *promise);
	return got;
}

/* userjob_take_wait takes the line out of the answer that says that this process waits for its
 * turn, and logs it. It returns whether there was one. */
static bool userjob_take_wait(char *answer, size_t *len)
{
	char *end = strchr(answer, '\n');
	if (!end || strncmp(answer, USERJOB_WAIT_LINE, strlen(USERJOB_WAIT_LINE)))
		return false;
	*end++ = 0;
	log_warn("waiting for a GPU, by this machine's policy: %s", answer + strlen(USERJOB_WAIT_LINE));
	*len -= (size_t)(end - answer);
	memmove(answer, end, *len + 1);
	return true;
}

/* userjob_receive reads an answer up to its end, and returns whether it came. *promise becomes
 * the descriptor that came with it, if one did. It gives up after USERJOB_WAITS waits of 100
 * ms, or after USERJOB_SIGNALS waits that a signal ended early. It reads no clock. While this
 * process waits for its turn, *queued is true, and it does not give up. */
static bool userjob_receive(int fd, char *answer, size_t size, int *promise, bool *queued)
{
	size_t len = 0;
	for (int waits = 0, signals = 0; (*queued || (waits < USERJOB_WAITS && signals < USERJOB_SIGNALS)) && len + 1 < size;) {
		struct pollfd ready = {.fd = fd, .events = POLLIN};
		int n = poll(&ready, 1, 100);
		if (n < 0 && errno != EINTR)
			return false;
		waits += n == 0 && !*queued;
		signals += n < 0 && !*queued;
		if (n <= 0)
			continue;
		ssize_t got = userjob_recv(fd, answer + len, size - 1 - len, promise);
		if (got < 0 && errno != EINTR && errno != EAGAIN)
			return false;
		if (got == 0)
			return len > 0;
		len += got > 0 ? (size_t)got : 0;
		answer[len] = 0;
		while (userjob_take_wait(answer, &len)) /* there is one for each place in the queue */
			*queued = true;
	}
	return false;
}

/* userjob_connect connects to the socket. While the socket's queue is full (a user may flood
 * it), it tries again, for as long as it would wait for an answer. */
static bool userjob_connect(int fd)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = USERJOB_SOCKET};
	for (int waits = 0, signals = 0; connect(fd, (struct sockaddr *)&to, sizeof to) != 0;) {
		if ((errno != EAGAIN && errno != EINTR) || waits >= USERJOB_WAITS * 10 || signals >= USERJOB_SIGNALS)
			return false;
		if (poll(NULL, 0, 10) < 0)
			signals++;
		else
			waits++;
	}
	return true;
}

/* userjob_try asks the policy service to make the user's job. The service learns the caller's
 * identity from the kernel; the request only tells for which user a set-uid program runs. It
 * returns whether the user has a job, on the devices of at if that is not empty; otherwise why
 * gets the reason as text. *promise becomes
 * the descriptor that keeps the job, or -1. *queued becomes true if the connection was lost while
 * this process waited for its turn, and *down if the service does not run, or ended; may_wait says
 * whether it may wait. */
static bool userjob_try(const char *at, bool may_wait, char *why, size_t size, int *promise, bool *queued, bool *down)
{
	char request[96], answer[1024] = "";
	*promise = -1;
	*queued = *down = false;
	unsigned low = region_take_low_fds();
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	snprintf(why, size, "ration-policy.service does not run (tell your administrator)");
	if (fd < 0) {
		region_free_low_fds(low);
		return false;
	}
	int n = snprintf(request, sizeof request, "%lu%s%s%s\n", userjob_uid(), *at ? " at " : "", at, may_wait ? " wait" : "");
	bool connected = userjob_connect(fd);
	bool busy = !connected && (errno == EAGAIN || errno == EINTR);
	if (!connected && errno == EACCES) /* every user may connect, if the folder is not hidden */
		snprintf(why, size, "this process may not look into /run/ration (does its systemd unit have InaccessiblePaths=?)");
	bool sent = connected && send(fd, request, (size_t)n, MSG_NOSIGNAL) == n;
	if (sent && !userjob_receive(fd, answer, sizeof answer, promise, queued)) {
		snprintf(why, size, "ration-policy.service did not answer (try again)");
		ssize_t more = recv(fd, answer, 1, MSG_DONTWAIT | MSG_PEEK);
		*down = *queued || more == 0 || (more < 0 && errno == ECONNRESET);
	} else if (sent) {
		snprintf(why, size, "%.*s", (int)strcspn(answer, "\n"), answer);
		*queued = false;
	}
	if (busy)
		snprintf(why, size, "ration-policy.service did not answer (try again)");
	*down = *down || (!sent && !busy);
	close(fd);
	region_free_low_fds(low);
	return sent && !strcmp(answer, "ok\n");
}

/* userjob_ask is userjob_try, and asks again if the service does not run: it may be started again.
 * A process that waited for its turn is more patient. */
static bool userjob_ask(const char *at, bool may_wait, char *why, size_t size, int *promise)
{
	bool queued = false, down = false;
	for (int left = userjob_was_down ? 0 : USERJOB_RESTART; !userjob_try(at, may_wait, why, size, promise, &queued, &down); left--) {
		if (queued)
			left = USERJOB_WAITS;
		userjob_was_down = down && !left;
		if (!down || !left || !userjob_ruled())
			return false;
		poll(NULL, 0, 100);
	}
	userjob_was_down = false;
	return true;
}

void userjob_end_promise(void)
{
	struct stat st;
	if (userjob_promise.fd >= 0 && region_stat(userjob_promise.fd, &st) == 0 && st.st_dev == userjob_promise.dev &&
	    st.st_ino == userjob_promise.ino)
		close(userjob_promise.fd);
	userjob_promise.fd = -1;
}

/* userjob_keep keeps a promise until userjob_end_promise. */
static void userjob_keep(int promise)
{
	struct stat st;
	userjob_end_promise();
	if (promise < 0 || region_stat(promise, &st) != 0)
		return;
	userjob_promise.fd = promise;
	userjob_promise.dev = st.st_dev;
	userjob_promise.ino = st.st_ino;
}

void userjob_hold(const char *region)
{
	/* Each process locks a byte of its own, behind those of the slots: locks for writing exclude each other. */
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = ((off_t)1 << 40) + getpid(), .l_len = 1};
	int fd = userjob_promise.fd < 0 ? region_open_fd(region, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0) : -1;
	if (fd < 0)
		return;
	if (fcntl(fd, F_OFD_SETLK, &l) == 0)
		userjob_keep(fd);
	else
		close(fd);
}

void userjob_let_wait(bool may) { userjob_may_wait = may; }

enum userjob userjob_find(enum userjob_wish wish, const char *at, char *folder, size_t size, char *why, size_t why_size)
{
	char created[64], line[sizeof USERJOB_OPEN_LINE];
	int promise;
	userjob_path(folder, size, "");
	userjob_path(created, sizeof created, "/created"); /* the service makes this file last */
	if (wish != USERJOB_ASK && userjob_exists(created))
		return USERJOB_FOUND;
	if (userjob_ask(at, userjob_may_wait, why, why_size, &promise)) {
		userjob_keep(promise);
		if (userjob_exists(created))
			return USERJOB_FOUND;
		snprintf(why, why_size, "it was made, and an administrator has removed it since (try again)");
	}
	if (!userjob_ruled()) /* the policy has been disabled while this process asked or waited */
		return USERJOB_ENDED;
	return userjob_read(USERJOB_IN_FORCE, line, sizeof line) && !strcmp(line, USERJOB_OPEN_LINE) ? USERJOB_OPEN : USERJOB_MISSING;
}
