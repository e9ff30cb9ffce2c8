/* Another library that is preloaded: it wraps calls of the driver and of the C
 * library by RTLD_NEXT, as profilers do. */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int wrap_allocs, wrap_pids;

EXPORT int cuMemAlloc_v2(unsigned long long *out, size_t bytes)
{
	int (*next)(unsigned long long *, size_t) = NULL;
	*(void **)&next = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
	wrap_allocs++;
	return next ? next(out, bytes) : 999;
}

EXPORT pid_t getpid(void)
{
	pid_t (*next)(void) = NULL;
	*(void **)&next = dlsym(RTLD_NEXT, "getpid");
	wrap_pids++;
	return next();
}
