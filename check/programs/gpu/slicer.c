/* Preloaded into a CUDA program, this library gives its contexts a time slice of SLICER_US
 * microseconds: it replaces the value in libcuda's own control call. So slices can be compared without
 * ration. With a driver of another layout, or a refusal, it prints a line. */
#define _GNU_SOURCE
#include <asm/ioctl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As drivers up to 580 have it; shim/compute/slice.c. */
struct call {
	uint32_t client, object, command, flags;
	uint64_t parameter;
	uint32_t parameter_size, status;
};
enum { SET = (int)0xa06c0103 };

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	va_start(list, request);
	struct call *c = va_arg(list, void *);
	va_end(list);
	const char *us = getenv("SLICER_US");
	if (!us || request != _IOWR('F', 0x2a, struct call) || c->command != (uint32_t)SET)
		return (int)syscall(SYS_ioctl, fd, request, c);
	uint64_t theirs = c->parameter, ours = strtoull(us, NULL, 10);
	if (c->parameter_size == sizeof ours)
		c->parameter = (uintptr_t)&ours;
	int result = (int)syscall(SYS_ioctl, fd, request, c);
	if (result || c->status || c->parameter == theirs)
		fprintf(stderr, "slicer: a slice of %s us was not set: result %d, status %#x\n", us, result, c->status);
	c->parameter = theirs;
	return result;
}
