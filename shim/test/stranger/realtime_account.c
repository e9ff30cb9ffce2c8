/* As realtime.c, where a process makes its first charge of a device: the lower thread is
 * interrupted while it makes the account its own, and the higher one wants its own of
 * another device. */
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include "realtime.h"

/* The library reads this when it makes an account its own. A program's own open comes
 * before the C library's. */
__attribute__((visibility("default"))) int open(const char *path, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	int mode = va_arg(args, int);
	va_end(args);
	if (!strcmp(path, "/proc/self/stat"))
		interrupt_low();
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static CUresult low(struct task *t)
{
	is_low = true;
	CUresult r = cuDevicePrimaryCtxRetain(&t->made, 0);
	is_low = false;
	sem_post(&go); /* should it not have been interrupted */
	return r;
}

static CUresult high(struct task *t)
{
	while (sem_wait(&go) != 0)
		;
	return cuDevicePrimaryCtxRetain(&t->made, 1);
}

int main(int argc, char **argv)
{
	struct task l = {.run = low}, h = {.run = high};
	(void)argv;
	if (argc > 1) {
		CUcontext c = start();
		OK(cuDevicePrimaryCtxRetain(&c, 1));
		return checks_failed > 0;
	}
	EQ(AGAIN("remember", NULL), 0); /* so that NVML is not what they wait for */
	OK(cuInit(0));
	if (realtime_run(&l, &h, NULL)) {
		SAME();
		BALANCED(1);
	}
	return FINISH();
}
