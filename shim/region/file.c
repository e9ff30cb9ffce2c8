/* The region's file and its limits: opening, judging, giving it blocks. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

/* By number: the function's name depends on the C library's age. */
static int file_stat(int fd, struct stat *st) { return (int)syscall(SYS_fstat, fd, st); }

/* The descriptors below this are the program's, which may count on their numbers. The kernel's first table
 * has 64: a larger one for a process with threads took it 25 ms on a machine with 16 processors. */
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

/* file_open opens a region or its limits: what path names itself, and a pipe must
 * not make us wait. */
static int file_open(const char *path, int flags) { return region_open_fd(path, flags | O_NOFOLLOW | O_NONBLOCK, 0600); }

/* file_open_high opens the region itself, which stays open, out of the program's way.
 * Where no high number is left, a low one must do. The close drops the locks that this
 * process has on the file: they are taken afterwards. */
static int file_open_high(const char *path, int flags)
{
	int fd = file_open(path, flags), high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, FILE_LOWEST_FD);
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
	if (file_stat(r->fd, &st) != 0)
		return REGION_SYSTEM;
	if (!S_ISREG(st.st_mode))
		return REGION_NOT_REGULAR;
	if (!(flags & REGION_ANY_OWNER) && st.st_uid != geteuid() && st.st_uid != 0)
		return REGION_OWNER;
	r->dev = st.st_dev;
	r->ino = st.st_ino;
	return REGION_OK;
}

static bool file_is(const struct region *r, int fd)
{
	struct stat st;
	return file_stat(fd, &st) == 0 && st.st_dev == r->dev && st.st_ino == r->ino;
}

/* region_fd is the file's descriptor, opened again if the program closed it: to
 * ask another file for our locks would make every process look dead. Two threads
 * that find it lost at once leave one descriptor open for good. */
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
	int fd = file_open(r->path, O_RDWR);
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

/* region_file_inspect decides by reading, before anything is mapped, what the
 * file is. fresh: initialisation is not known to be complete. */
int region_file_inspect(struct region *r, bool *fresh)
{
	struct stat st;
	struct ration_header h;
	memset(&h, 0, sizeof h);
	if (file_stat(r->fd, &st) != 0)
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

/* region_file_allocate gives the file its size and its blocks, so that a full
 * file system is an error here and not a fault later. Twice does nothing. */
int region_file_allocate(struct region *r)
{
	struct stat st;
	if (file_stat(r->fd, &st) != 0)
		return REGION_SYSTEM;
	/* Beyond this limit the kernel would end the program with SIGXFSZ. */
	struct rlimit most;
	if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < sizeof(struct ration_region)) {
		errno = EFBIG;
		return REGION_NO_SPACE;
	}
	/* In one step, so that no process sees a size in between. */
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

/* region_file_empty returns REGION_FOREIGN for a file whose header says nothing but
 * which holds something else: its usage would be taken up as ours. */
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

/* region_offer sets each limit that is still zero. The swap, not a store: of two
 * processes that bring different limits the first one stands. */
int region_offer(struct ration_limits *page, const void *limits)
{
	const struct region_limits *own = limits;
	for (unsigned d = 0; d < RATION_DEVICES; d++) {
		if (own->memory[d]) {
			cas(&page->device[d].memory, 0, own->memory[d]);
			FAILPOINT(INIT_LIMITS);
		}
		if (own->compute[d])
			cas(&page->device[d].compute, 0, own->compute[d]);
		if (own->compute_max[d])
			cas(&page->device[d].compute_max, 0, own->compute_max[d]);
	}
	if (own->round)
		cas(&page->round, 0, own->round);
	return REGION_OK;
}

/* Room for a path on the stack of a program's thread, which may have 16 KiB in all: more than
 * the settings have for a region's. */
enum { FILE_PATH = 1024 };

static bool file_limits_path(const struct region *r, char *path, size_t size)
{
	int n = snprintf(path, size, "%s" LIMITS_SUFFIX, r->path);
	return n > 0 && (size_t)n < size;
}

/* check_limits refuses limits that are none, or that another user planted: they must
 * be root's or the region's owner's, and no other user's to write. Where nobody but an operator can
 * put anything at the path, they are the operator's: in a user namespace root has no number. */
static int file_check_limits(struct region *r, int fd)
{
	struct ration_limits page;
	struct stat st, region;
	if (file_stat(fd, &st) != 0 || file_stat(region_fd(r), &region) != 0 || st.st_size != (off_t)sizeof page ||
	    pread(fd, &page, sizeof page, 0) != (ssize_t)sizeof page)
		return REGION_LIMITS;
	if ((!r->any_owner && st.st_uid != 0 && st.st_uid != region.st_uid) || st.st_mode & 022)
		return REGION_LIMITS;
	return page.magic == RATION_LIMITS_MAGIC && page.version == RATION_VERSION ? REGION_OK : REGION_LIMITS;
}

/* region_limits_find says where the limits of a new region are: beside it where an
 * operator put them there. Only where there is no such file they are inside. */
int region_limits_find(const struct region *r, uint32_t *where)
{
	char path[FILE_PATH];
	*where = RATION_LIMITS_BESIDE;
	if (!file_limits_path(r, path, sizeof path))
		return REGION_LIMITS;
	if (faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0) {
		if (errno != ENOENT)
			return REGION_LIMITS;
		*where = RATION_LIMITS_INSIDE;
	}
	return REGION_OK;
}

/* region_limits_open finds the page of limits this region goes by: the file beside it,
 * wherever there is one. What the region says of that, its job could have written; it only
 * says that a file which is missing has been there. */
int region_limits_open(struct region *r)
{
	char path[FILE_PATH];
	r->limits = &r->m->limits;
	if (!file_limits_path(r, path, sizeof path))
		return REGION_LIMITS;
	int fd = file_open(path, O_RDONLY);
	if (fd < 0)
		return errno == ENOENT && load32_acquire(&r->m->header.flags) != RATION_LIMITS_BESIDE ? REGION_OK : REGION_LIMITS;
	int err = file_check_limits(r, fd);
	if (!err) {
		void *page = mmap(NULL, sizeof(struct ration_limits), PROT_READ, MAP_SHARED, fd, 0);
		if (page == MAP_FAILED)
			err = REGION_SYSTEM;
		else
			r->limits = page, r->limits_beside = true;
	}
	close(fd);
	return err;
}

/* region_limits_with maps the page of limits for writing while change runs. */
int region_limits_with(struct region *r, int (*change)(struct ration_limits *, const void *), const void *arg)
{
	int own = region_fd(r), fd = own, err = own < 0 ? REGION_SYSTEM : REGION_OK;
	off_t offset = offsetof(struct ration_region, limits);
	if (r->limits_beside) {
		char path[FILE_PATH];
		if (!file_limits_path(r, path, sizeof path) || (fd = file_open(path, O_RDWR)) < 0)
			return REGION_LIMITS; /* not ours to change */
		offset = 0;
		err = file_check_limits(r, fd);
	}
	if (!err) {
		/* From the beginning of the machine's page, which may be larger than ours. */
		size_t before = (size_t)offset % (size_t)sysconf(_SC_PAGESIZE), size = before + sizeof(struct ration_limits);
		char *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset - (off_t)before);
		if (mem == MAP_FAILED) {
			err = REGION_SYSTEM;
		} else {
			madvise(mem, size, MADV_RANDOM); /* as in open_map */
			err = change((struct ration_limits *)(mem + before), arg);
			munmap(mem, size);
		}
	}
	if (fd != own)
		close(fd);
	return err;
}
