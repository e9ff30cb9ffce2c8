/* The knobs that make calls fail, wait or die, and what the caller's mistakes do. */
#include <signal.h>
#include <time.h>

#include "check.h"

/* Ten allocations, each freed; exits with a bit set for each that failed. */
static int allocate(void)
{
	unsigned failed = 0;
	start();
	for (int i = 0; i < 5; i++) {
		CUdeviceptr p;
		CUresult r = cuMemAlloc_v2(&p, 10 * MIB);
		if (r != CUDA_SUCCESS)
			failed |= 1u << i;
		else
			cuMemFree_v2(p);
		if (r != CUDA_SUCCESS && r != CUDA_ERROR_OUT_OF_MEMORY)
			failed |= 0x40;
	}
	return (int)failed;
}

static int mistake(void)
{
	CUdeviceptr p;
	start();
	OK(cuMemAlloc_v2(&p, 5));
	OK(cuMemFree_v2(p));
	EQ(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	return fakegpu_errors() == 1 ? 0 : 1;
}

static int leak(void)
{
	CUdeviceptr p;
	start();
	OK(cuMemAlloc_v2(&p, 5));
	return 0;
}

static int slow(void)
{
	struct timespec a, b;
	CUdeviceptr p;
	start();
	clock_gettime(CLOCK_MONOTONIC, &a);
	OK(cuMemAlloc_v2(&p, 5));
	clock_gettime(CLOCK_MONOTONIC, &b);
	OK(cuMemFree_v2(p));
	return (b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000 >= 500 ? 0 : 1;
}

/* NVML's word on this process, beside the truth: exits with the MiB between them. */
static int hidden(void)
{
	nvmlProcessInfo_t list[8];
	nvmlMemory_t memory;
	nvmlDevice_t d;
	unsigned n = 8;
	uint64_t total;
	start();
	total = everybody();
	if (nvmlInit_v2() != NVML_SUCCESS || nvmlDeviceGetHandleByIndex_v2(0, &d) != NVML_SUCCESS ||
	    nvmlDeviceGetComputeRunningProcesses_v3(d, &n, list) != NVML_SUCCESS || n < 1 ||
	    nvmlDeviceGetMemoryInfo(d, &memory) != NVML_SUCCESS || memory.used != total)
		return 255;
	for (unsigned i = 0; i < n; i++)
		if (list[i].pid == (unsigned)getpid())
			return (int)((list[i].usedGpuMemory - mine()) / MIB);
	return 254;
}

static int rounding(void)
{
	CUdeviceptr p, q;
	start();
	uint64_t before = mine();
	OK(cuMemAlloc_v2(&p, MIB + 1));
	EQ(mine() - before, 2 * MIB);
	OK(cuMemAlloc_v2(&q, MIB));
	EQ(mine() - before, 3 * MIB);
	EQ(before, 64 * MIB);
	OK(cuMemFree_v2(p));
	OK(cuMemFree_v2(q));
	return checks_failed > 0;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(void);
	} roles[] = {
		{"allocate", allocate}, {"mistake", mistake}, {"leak", leak}, {"slow", slow}, {"hidden", hidden}, {"rounding", rounding},
	};
	setenv("FAKEGPU", "small:800m", 1);
	for (size_t i = 0; argc > 1 && i < sizeof roles / sizeof *roles; i++)
		if (strcmp(argv[1], roles[i].name) == 0)
			return roles[i].run();

	EQ(WEXITSTATUS(AGAIN("allocate", "A", "b")), 0);
	EQ(WEXITSTATUS(AGAIN("allocate", "FAKEGPU_FAIL", "cuMemAlloc:3")), 1 << 2);
	EQ(WEXITSTATUS(AGAIN("allocate", "FAKEGPU_FAIL", "cuMemAlloc:1,cuMemAlloc:5")), 1 << 0 | 1 << 4);
	EQ(WEXITSTATUS(AGAIN("allocate", "FAKEGPU_FAIL", "cuMemAlloc:2:999")), 1 << 1 | 0x40);
	EQ(WEXITSTATUS(AGAIN("allocate", "FAKEGPU_FAIL", "cuMemAlloc:0")), 31);
	EQ(WTERMSIG(AGAIN("allocate", "FAKEGPU_DIE", "cuMemAlloc:3")), SIGKILL);
	EQ(WTERMSIG(AGAIN("allocate", "FAKEGPU_DIE", "cuMemAlloc:3:after")), SIGKILL);
	EQ(WTERMSIG(AGAIN("allocate", "FAKEGPU_DIE", "cuMemFree:2:after")), SIGKILL);
	EQ(WTERMSIG(AGAIN("allocate", "FAKEGPU_DIE", "cuDevicePrimaryCtxRetain:1:after")), SIGKILL);
	EQ(WTERMSIG(AGAIN("allocate", "FAKEGPU_DIE", "cuInit:1:after")), SIGKILL);
	EQ(AGAIN("mistake", "FAKEGPU_STRICT", "0"), 0);
	EQ(WTERMSIG(AGAIN("mistake", "FAKEGPU_STRICT", "1")), SIGABRT);
	EQ(AGAIN("leak", "FAKEGPU_STRICT", "1"), 0);
	EQ(WTERMSIG(AGAIN("leak", "FAKEGPU_STRICT", "2")), SIGABRT);
	EQ(AGAIN("slow", "FAKEGPU_LATENCY_US", "500"), 0);
	EQ(WEXITSTATUS(AGAIN("hidden", "FAKEGPU_HIDDEN", "37m")), 37);
	EQ(WEXITSTATUS(AGAIN("rounding", "FAKEGPU_BLOCK", "2m", "FAKEGPU_CONTEXT", "64m")), 0);

	start();
	EQ(everybody(), 300 * MIB); /* the dead left nothing */
	return FINISH();
}
