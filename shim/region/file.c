/* The region's file: opening it, checking it, and allocating its blocks. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"
#include "kernel.h"

/* By number: the function's name depends on the C library's age. */
int region_stat(int fd, struct stat *st) { return (int)syscall(SYS_fstat, fd, st); }

bool region_lstat(const char *path, struct stat *st)
{
	return kernel_call(SYS_newfstatat, AT_FDCWD, (long)path, (long)st, AT_SYMLINK_NOFOLLOW, 0) == 0;
}

/* Descriptors below this number are left to the program, which may rely on their numbers. The
 * kernel's first descriptor table has 64 entries; enlarging it in a process with threads took 25 ms
 * on a machine with 16 processors. */
#define FILE_LOWEST_FD 56

unsigned region_take_low_fds(void)
{
	unsigned taken = 0;
	for (int low = STDIN_FILENO; low <= STDERR_FILENO; low++) {
		int fd = fcntl(low, F_GETFD) < 0 ? open("/", O_PATH | O_CLOEXEC) : -1;
		if (fd == low)
			taken |= 1u << low;
		else if (fd >= 0)
			close(fd);
	}
	return taken;
}

void region_free_low_fds(unsigned taken)
{
	int saved = errno;
	for (int low = STDIN_FILENO; low <= STDERR_FILENO; low++)
		if (taken >> low & 1)
			close(low);
	errno = saved;
}

int region_open_fd(const char *path, int flags, unsigned mode)
{
	unsigned low = region_take_low_fds();
	int fd;
	do
		fd = open(path, flags | O_CLOEXEC, mode);
	while (fd < 0 && errno == EINTR);
	region_free_low_fds(low);
	return fd;
}

bool region_read_text(const char *path, char *buf, size_t size)
{
	int fd = region_open_fd(path, O_RDONLY, 0);
	if (fd < 0)
		return false;
	ssize_t n = read(fd, buf, size - 1);
	close(fd);
	buf[n > 0 ? n : 0] = 0;
	return n > 0;
}

/* region_open_path opens a region or its limits. It follows no symbolic link, and does not wait if
 * the path is a pipe. systemd-tmpfiles removes old files in /tmp, but none with the sticky bit. */
int region_open_path(const char *path, int flags) { return region_open_fd(path, flags | O_NOFOLLOW | O_NONBLOCK, S_ISVTX | 0600); }

/* file_open_high opens the region, which stays open, at a descriptor of at least FILE_LOWEST_FD; if
 * there is none, at a low one. The close in it drops the locks that this process has on the file,
 * so the caller takes them afterwards. */
static int file_open_high(const char *path, int flags)
{
	int fd = region_open_path(path, flags), high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, FILE_LOWEST_FD);
	if (high < 0)
		return fd;
	close(fd);
	return high;
}

static int file_error(void)
{
	switch (errno) {
	case ELOOP: return REGION_SYMLINK;
	case EISDIR:
	case ENXIO: return REGION_NOT_REGULAR;
	case ENOSPC:
	case EDQUOT:
	case EFBIG: return REGION_NO_SPACE;
	}
	return REGION_SYSTEM;
}

int region_file_open(struct region *r, unsigned flags)
{
	struct stat st;
	r->fd = file_open_high(r->path, O_RDWR | (flags & REGION_EXISTING ? 0 : O_CREAT));
	if (r->fd < 0)
		return flags & REGION_EXISTING && errno == ENOENT ? REGION_GONE : file_error();
	if (region_stat(r->fd, &st) != 0)
		return REGION_SYSTEM;
	if (!S_ISREG(st.st_mode))
		return REGION_NOT_REGULAR;
	if (!(flags & REGION_ANY_OWNER) && st.st_uid != kernel_euid() && st.st_uid != 0)
		return REGION_OWNER;
	r->dev = st.st_dev;
	r->ino = st.st_ino;
	return REGION_OK;
}

static bool file_is(const struct region *r, int fd)
{
	struct stat st;
	return region_stat(fd, &st) == 0 && st.st_dev == r->dev && st.st_ino == r->ino;
}

/* region_fd returns the file's descriptor, and opens the file again if the program closed it: with
 * a descriptor of another file, every process would seem dead. If two threads find it closed at
 * once, one descriptor stays open for good. */
int region_fd(struct region *r)
{
	int fd = __atomic_load_n(&r->fd, __ATOMIC_ACQUIRE);
	if (file_is(r, fd))
		return fd;
	int again = file_open_high(r->path, O_RDWR);
	if (again >= 0 && !file_is(r, again)) {
		close(again);
		return -1;
	}
	if (again >= 0) {
		__atomic_store_n(&r->fd, again, __ATOMIC_RELEASE);
		if (load_acquire(&r->status))
			region_lock_by(again, r->slot);
	}
	return again;
}

int region_file_again(struct region *r)
{
	int fd = region_open_path(r->path, O_RDWR);
	if (fd >= 0 && !file_is(r, fd)) {
		close(fd);
		return -1;
	}
	return fd;
}

void region_file_close(struct region *r)
{
	if (r->fd >= 0 && (!r->ino || file_is(r, r->fd)))
		close(r->fd);
}

/* region_file_inspect checks what the file is by reading it, before it is mapped. It sets *fresh if
 * initialisation may not be complete. */
int region_file_inspect(struct region *r, bool *fresh)
{
	struct stat st;
	struct ration_header h;
	memset(&h, 0, sizeof h);
	if (region_stat(r->fd, &st) != 0)
		return REGION_SYSTEM;
	*fresh = true;
	if (st.st_size == 0)
		return REGION_OK;
	if (pread(r->fd, &h, sizeof h, 0) < 0)
		return REGION_SYSTEM;
	bool sized = st.st_size == (off_t)sizeof(struct ration_region);
	if (h.magic == 0 && sized)
		return REGION_OK;
	if (h.magic != RATION_MAGIC)
		return REGION_FOREIGN;
	if (h.version != RATION_VERSION)
		return REGION_VERSION;
	*fresh = h.state != RATION_STATE_COMPLETE;
	if (!sized || (!*fresh && h.size != sizeof(struct ration_region)))
		return REGION_SIZE;
	return REGION_OK;
}

/* region_file_allocate gives the file its size and its blocks, so that a full file system is an
 * error here and not a fault later. A second call changes nothing. */
int region_file_allocate(struct region *r)
{
	struct stat st;
	if (region_stat(r->fd, &st) != 0)
		return REGION_SYSTEM;
	/* If the file exceeded this limit, the kernel would end the program with SIGXFSZ. */
	struct rlimit most;
	if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < sizeof(struct ration_region)) {
		errno = EFBIG;
		return REGION_NO_SPACE;
	}
	/* Set the size in one step, so that no process sees a smaller one. */
	r->made = st.st_size == 0;
	if (r->made && ftruncate(r->fd, sizeof(struct ration_region)) != 0)
		return file_error();
	FAILPOINT(INIT_SIZED);
	int failed;
	do
		failed = fallocate(r->fd, 0, 0, sizeof(struct ration_region));
	while (failed && errno == EINTR);
	if (failed && errno != EOPNOTSUPP && errno != ENOSYS)
		return file_error();
	return REGION_OK;
}

/* region_file_empty returns REGION_FOREIGN for a file with an empty header and other content: we
 * would take this content for usage. */
int region_file_empty(struct region *r)
{
	static const uint64_t zero[512];
	uint64_t buf[512];
	for (off_t at = offsetof(struct ration_region, devices); at < (off_t)offsetof(struct ration_region, tail);) {
		ssize_t n = pread(r->fd, buf, sizeof buf, at);
		if (n <= 0)
			return n < 0 ? REGION_SYSTEM : REGION_SIZE;
		if (memcmp(buf, zero, (size_t)n) != 0)
			return REGION_FOREIGN;
		at += n;
	}
	return REGION_OK;
}
