/* No descriptor of the region is closed while its lock is all that shows that this process lives,
 * for the close drops the lock, and in a moment without one a process in another PID namespace takes this one for
 * dead. */
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "stranger.h"

static uint32_t locked, kept, closed;

static bool is_region(int fd)
{
	struct stat a, b;
	const char *path = getenv("RATION_REGION");
	return syscall(SYS_fstat, fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/* A program's own functions come before the C library's. */
__attribute__((visibility("default"))) int close(int fd)
{
	if (is_region(fd) && __atomic_load_n(&locked, __ATOMIC_SEQ_CST) && !__atomic_load_n(&kept, __ATOMIC_SEQ_CST))
		__atomic_fetch_add(&closed, 1, __ATOMIC_SEQ_CST);
	return (int)syscall(SYS_close, fd);
}

__attribute__((visibility("default"))) int fcntl(int fd, int command, ...)
{
	va_list args;
	va_start(args, command);
	long arg = va_arg(args, long);
	va_end(args);
	int result = (int)syscall(SYS_fcntl, fd, command, arg);
	if (result == 0 && command == F_SETLK && is_region(fd))
		__atomic_store_n(&locked, ((struct flock *)arg)->l_type != F_UNLCK, __ATOMIC_SEQ_CST);
	if (result == 0 && command == F_OFD_SETLK && is_region(fd))
		__atomic_store_n(&kept, 1, __ATOMIC_SEQ_CST);
	return result;
}

int main(void)
{
	start();
	CHECK(locked);
	EQ(closed, 0);
	return FINISH();
}
