/* A machine with pages of 64 KiB, as many for arm64 are: the limits of a region begin within one,
 * and neither a mapping nor a protection may begin there. */
#include <dlfcn.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stranger.h"

enum { PAGE = 65536, LIMIT = 700 };

/* These come before the C library's, for the library too. */
#define INSTEAD __attribute__((visibility("default")))

INSTEAD long sysconf(int name)
{
	static long (*real)(int);
	if (name == _SC_PAGESIZE)
		return PAGE;
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "sysconf");
	return real(name);
}

INSTEAD int mprotect(void *p, size_t size, int prot)
{
	if ((uintptr_t)p % PAGE == 0)
		return (int)syscall(SYS_mprotect, p, size, prot);
	errno = EINVAL;
	return -1;
}

INSTEAD void *mmap(void *p, size_t size, int prot, int flags, int fd, off_t offset)
{
	if (offset % PAGE == 0)
		return (void *)syscall(SYS_mmap, p, size, prot, flags, fd, offset);
	errno = EINVAL;
	return MAP_FAILED;
}

static void limited(void)
{
	CUdeviceptr p;
	start();
	EQ(limit_bytes(region_limit(region_here(), 0)), LIMIT * MIB);
	EQ(cuMemAlloc_v2(&p, LIMIT * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemAlloc_v2(&p, LIMIT / 2 * MIB));
	BALANCED(0);
}

RUN_PARTS(false, {"limited", limited})
