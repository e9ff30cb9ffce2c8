/* No descriptor of the region is closed while its lock is all that shows that this process lives,
 * for the close drops the lock, and in a moment without one a process in another PID namespace takes this one for
 * dead. Neither when a process joins, nor while another thread looks a launch up for the first
 * time, for which the library asks whether the job has a share of the device's time. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "stranger.h"

static uint32_t locked, kept, closed, slow, in_pread, joined;

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

/* The thread that looks up is slow in the middle. */
__attribute__((visibility("default"))) ssize_t pread(int fd, void *buf, size_t size, off_t at)
{
	if (__atomic_load_n(&slow, __ATOMIC_SEQ_CST) && is_region(fd)) {
		__atomic_store_n(&in_pread, 1, __ATOMIC_SEQ_CST);
		/* Until the other has joined, unless it waits for this one. */
		for (int ms = 0; ms < 30 && !__atomic_load_n(&joined, __ATOMIC_SEQ_CST); ms++)
			pause_ms(1);
	}
	return syscall(SYS_pread64, fd, buf, size, at);
}

static void *look_up(void *unused)
{
	(void)unused;
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	CHECK(cuda && dlsym(cuda, "cuLaunchKernel"));
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t t;
	(void)argv;
	if (argc > 1) {
		__atomic_store_n(&slow, 1, __ATOMIC_SEQ_CST);
		EQ(pthread_create(&t, NULL, look_up, NULL), 0);
		while (!__atomic_load_n(&in_pread, __ATOMIC_SEQ_CST))
			pause_ms(1);
		__atomic_store_n(&slow, 0, __ATOMIC_SEQ_CST);
	}
	start();
	__atomic_store_n(&joined, 1, __ATOMIC_SEQ_CST);
	if (argc > 1)
		EQ(pthread_join(t, NULL), 0);
	CHECK(locked);
	EQ(closed, 0);
	if (argc > 1)
		return checks_failed > 0;
	EQ(AGAIN("looked up at the same time", NULL), 0);
	return FINISH();
}
