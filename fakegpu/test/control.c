/* The call that sets a context's slice: how it is made, and how it is answered. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "check.h"
#include "control.h"

static int (*kernel)(int, unsigned long, ...); /* the driver's ioctl, as a library that is preloaded finds it */

/* What this program's own ioctl, which comes before all libraries', saw and does. */
static struct {
	unsigned starts; /* of a group; the rest is of other calls */
	unsigned calls;
	int fd;
	struct control_args args;
	uint64_t value;
	uint64_t replace; /* by this */
	bool to_libc;     /* pass it on to the system call */
} seen;

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	va_start(list, request);
	struct control_args *a = va_arg(list, void *);
	va_end(list);
	if (request != CONTROL_REQUEST)
		return (int)syscall(SYS_ioctl, fd, request, a);
	if (a->command == CONTROL_START) {
		seen.starts++;
		return kernel(fd, request, a);
	}
	uint64_t *us = (uint64_t *)(uintptr_t)a->params;
	seen.calls++;
	seen.fd = fd;
	seen.args = *a;
	seen.value = *us;
	if (seen.replace != 0)
		*us = seen.replace;
	return seen.to_libc ? (int)syscall(SYS_ioctl, fd, request, a) : kernel(fd, request, a);
}

static uint32_t control(uint32_t command, void *param, uint32_t size)
{
	struct control_args a = seen.args;
	a.command = command;
	a.params = (uintptr_t)param;
	a.size = size;
	a.status = 0xffff;
	EQ(kernel(seen.fd, CONTROL_REQUEST, &a), 0);
	return a.status;
}

static uint64_t slice(void)
{
	uint64_t us = 0;
	EQ(control(CONTROL_GET_SLICE, &us, sizeof us), 0);
	return us;
}

/* The slice that the books show for the context made last. */
static uint64_t booked(void)
{
	struct fakegpu_engine_context list[64];
	int n = fakegpu_engine(0, NULL, list, 64);
	CHECK(n > 0 && n <= 64);
	return n > 0 ? list[n - 1].slice_us : 0;
}

static void find(void)
{
	void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	kernel = (int (*)(int, unsigned long, ...))dlsym(handle, "ioctl");
	CHECK(kernel != NULL && (void *)kernel != (void *)ioctl);
}

static int plain(void)
{
	struct control_args first;
	uint64_t us = 5000, wide[2] = {1, 1};
	CUcontext c;
	find();
	start();
	EQ(seen.starts, 1);
	EQ(seen.calls, 1);
	EQ(seen.args.command, 0xa06c0103);
	EQ(seen.args.size, 8);
	EQ(seen.value, 2048);
	EQ(slice(), 2048);
	EQ(booked(), 2048);
	EQ(control(CONTROL_SET_SLICE, &us, sizeof us), 0);
	EQ(slice(), 5000);
	EQ(booked(), 5000);

	/* What it does not know. */
	CHECK(control(0xa06c0107, &us, sizeof us) == CONTROL_NOT_SUPPORTED);
	CHECK(control(CONTROL_SET_SLICE, wide, sizeof wide) != 0);
	CHECK(control(CONTROL_SET_SLICE, NULL, sizeof us) != 0);
	us = 0;
	CHECK(control(CONTROL_SET_SLICE, &us, sizeof us) != 0);
	EQ(slice(), 5000);
	first = seen.args;
	seen.args.object++;
	us = 77;
	CHECK(control(CONTROL_SET_SLICE, &us, sizeof us) != 0);
	seen.args = first;
	EQ(slice(), 5000);

	/* Another context has a group of its own; what is in the call when it arrives is what counts. */
	seen.replace = 3000;
	OK(cuCtxCreate_v2(&c, 0, 0));
	EQ(seen.calls, 2);
	CHECK(seen.args.client != first.client && seen.args.object != first.object);
	EQ(slice(), 3000);
	OK(cuCtxDestroy_v2(c));
	us = 3001;
	CHECK(control(CONTROL_GET_SLICE, &us, sizeof us) != 0);

	/* Where it went to libc's, which knows nothing of it. */
	seen.to_libc = true;
	seen.replace = 4000;
	OK(cuCtxCreate_v2(&c, 0, 0));
	EQ(seen.calls, 3);
	EQ(slice(), 4000);

	/* A child of a fork has no driver. */
	if (fork() == 0) {
		checks_failed = 0;
		CHECK(control(CONTROL_GET_SLICE, &us, sizeof us) != 0);
		_exit(checks_failed > 0);
	}
	int status;
	wait(&status);
	EQ(status, 0);

	/* A program that closes all its descriptors. */
	close(seen.fd);
	seen.to_libc = false;
	seen.replace = 6000;
	OK(cuCtxCreate_v2(&c, 0, 0));
	EQ(booked(), 6000);

	/* Other requests and descriptors go to the kernel. */
	int pair[2], bytes = -1;
	EQ(pipe(pair), 0);
	EQ(write(pair[1], "abc", 3), 3);
	EQ(kernel(pair[0], FIONREAD, &bytes), 0);
	EQ(bytes, 3);
	EQ(kernel(pair[0], CONTROL_REQUEST, &first), -1);
	EQ(errno, ENOTTY);
	return checks_failed > 0;
}

static int refuse(void)
{
	uint64_t us = 5000;
	find();
	start();
	EQ(control(CONTROL_SET_SLICE, &us, sizeof us), CONTROL_NOT_SUPPORTED);
	EQ(slice(), 1024);
	return checks_failed > 0;
}

static int ignore(void)
{
	uint64_t us = 5000;
	find();
	start();
	EQ(control(CONTROL_SET_SLICE, &us, sizeof us), 0);
	EQ(slice(), 1024);
	return checks_failed > 0;
}

static int other(void)
{
	uint64_t us = 5000;
	find();
	start();
	CHECK(seen.args.command != CONTROL_SET_SLICE && seen.args.size != 8);
	EQ(control(CONTROL_SET_SLICE, &us, sizeof us), CONTROL_NOT_SUPPORTED);
	EQ(control(CONTROL_GET_SLICE, &us, sizeof us), CONTROL_NOT_SUPPORTED);
	EQ(booked(), 2048);
	return checks_failed > 0;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return strcmp(argv[1], "plain") == 0    ? plain()
		       : strcmp(argv[1], "refuse") == 0 ? refuse()
		       : strcmp(argv[1], "ignore") == 0 ? ignore()
							: other();
	EQ(AGAIN("plain", "FAKEGPU", "small:2g"), 0);
	EQ(AGAIN("refuse", "FAKEGPU_SLICE", "refuse"), 0);
	EQ(AGAIN("ignore", "FAKEGPU_SLICE", "ignore"), 0);
	EQ(AGAIN("other", "FAKEGPU_SLICE", "other"), 0);
	return FINISH();
}
