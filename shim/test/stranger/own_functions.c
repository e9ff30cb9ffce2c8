/* A program with functions of its own for the C library's, in an operator's job: the library calls the C
 * library's, also if variables of the environment name a job or a limit. Elsewhere it calls the program's. */
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "check.h"

static unsigned asked; /* by the library */

static void count(const void *caller)
{
	Dl_info info;
	asked += dladdr(caller, &info) && strstr(info.dli_fname, "libration");
}

/* Where these were not only counted, no cap and no priority would be kept. */
__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *t)
{
	count(__builtin_return_address(0));
	return (int)syscall(SYS_clock_gettime, id, t);
}

__attribute__((visibility("default"))) int clock_nanosleep(clockid_t id, int flags, const struct timespec *t, struct timespec *left)
{
	count(__builtin_return_address(0));
	(void)id, (void)flags, (void)t, (void)left;
	return 0;
}

__attribute__((visibility("default"))) int fcntl(int fd, int command, ...)
{
	va_list list;
	va_start(list, command);
	void *arg = va_arg(list, void *);
	va_end(list);
	count(__builtin_return_address(0));
	return (int)syscall(SYS_fcntl, fd, command, arg);
}

__attribute__((visibility("default"))) int sched_yield(void)
{
	count(__builtin_return_address(0));
	return 0;
}

static int launches(void)
{
	static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry one() { ret; }\n";
	CUmodule m;
	CUfunction f;
	start();
	OK(cuModuleLoadData(&m, ptx));
	OK(cuModuleGetFunction(&f, m, "one"));
	for (unsigned i = 0; i < 20; i++)
		OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	OK(cuCtxSynchronize());
	EQ(asked > 0, !!getenv("RATION_TEST_OWN"));
	return checks_failed > 0;
}

/* What of / the library looks at, on this process's mounts alone: a job where an operator has it. */
static bool make_place(void)
{
	return geteuid() == 0 && unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mount("tmpfs", "/run", "tmpfs", 0, "mode=755") == 0 && mkdir("/run/ration", 0755) == 0 &&
	       mkdir("/run/ration/job", 0755) == 0;
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "launches"))
		return launches();
	EQ(AGAIN("launches", "RATION_TEST_OWN", "1"), 0);
	if (!make_place()) {
		fprintf(stderr, "own_functions: no operator's job: this needs root, and a mount namespace\n");
		return FINISH();
	}
	EQ(AGAIN("launches", "RATION_REGION", "/run/ration/job/region"), 0);
	unsetenv("RATION_REGION");
	EQ(AGAIN("launches", "CUDA_DEVICE_MEMORY_LIMIT", "2g"), 0);
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	unsetenv("RATION_COMPUTE_MAX");
	EQ(AGAIN("launches", NULL), 0);
	return FINISH();
}
