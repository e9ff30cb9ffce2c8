/* Memory that the library maps itself (RATION_SLEEP_FAST): charged and freed as the driver's own, and
 * what a program sees of it. internal/cli/lane_test.go puts programs with such memory to sleep. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "child.h"
#include "held.h"

/* The library starts its thread by the program's function, which may fail. */
static bool no_threads;

__attribute__((visibility("default"))) int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *arg)
{
	int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	if (__atomic_load_n(&no_threads, __ATOMIC_RELAXED))
		return EAGAIN;
	*(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
	return real(t, a, run, arg);
}

/* range_of returns the size of the memory at an address: in whole blocks if the library mapped it. */
static uint64_t range_of(CUdeviceptr p)
{
	CUdeviceptr base = 0;
	size_t size = 0;
	OK(cuMemGetAddressRange_v2(&base, &size, p));
	EQ(base, p);
	return size;
}

static uint64_t cannot(void)
{
	struct region *r = region_here();
	for (unsigned i = 0; i < RATION_SLOTS; i++)
		if (r->m->slots[i].pid == (uint64_t)getpid())
			return r->m->slots[i].cannot;
	return UINT64_MAX;
}

static void sizes(void)
{
	static const uint64_t some[] = {1, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 33 * MIB + 7};
	enum { N = sizeof some / sizeof *some };
	CUdeviceptr p[N];
	CUipcMemHandle ipc;
	unsigned type = 0;
	for (int i = 0; i < N; i++) {
		OK(cuMemAlloc_v2(&p[i], some[i]));
		SAME();
	}
	for (int i = 2; i < N; i++) {
		EQ(range_of(p[i]), (some[i] + 2 * MIB - 1) / (2 * MIB) * (2 * MIB));
		EQ(cuIpcGetMemHandle(&ipc, p[i]), CUDA_ERROR_INVALID_VALUE);
		OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p[i]));
		EQ(type, CU_MEMORYTYPE_DEVICE);
	}
	EQ(cannot(), 0);
	EQ(range_of(p[0]), 1);
	for (int i = 0; i < N; i++) {
		OK(i % 2 ? cuMemFree_v2(p[i]) : cuMemFreeAsync(p[i], NULL));
		OK(cuCtxSynchronize());
		SAME();
	}
	EQ(held(RATION_DATA), 0);
}

static void limit(void)
{
	static CUdeviceptr p[256];
	CUresult result = CUDA_SUCCESS;
	int n = 0;
	while (n < 256 && (result = cuMemAlloc_v2(&p[n], 3 * MIB)) == CUDA_SUCCESS)
		n++;
	EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
	EQ(n, (256 - 4) / 4);
	SAME();
	while (n > 0)
		OK(cuMemFree_v2(p[--n]));
	SAME();
}

/* A handle would keep the memory on the device: as of other memory of cuMemAlloc, there is none. */
static void handles(void)
{
	CUmemGenericAllocationHandle h;
	CUdeviceptr p;
	OK(cuMemAlloc_v2(&p, 4 * MIB));
	EQ(cuMemRetainAllocationHandle(&h, (void *)(uintptr_t)(p + 3 * MIB)), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree_v2(p));
	SAME();
}

static void *free_it(void *p)
{
	OK(cuCtxSetCurrent(*(CUcontext *)((void **)p)[1]));
	OK(cuMemFree_v2(*(CUdeviceptr *)((void **)p)[0]));
	return NULL;
}

/* A free waits for the work of its context before the memory goes. */
static void waits(CUcontext context)
{
	CUdeviceptr p;
	void *args[2] = {&p, &context};
	pthread_t t;
	OK(cuMemAlloc_v2(&p, 4 * MIB));
	fakegpu_hold("cuCtxSynchronize", 1);
	EQ(pthread_create(&t, NULL, free_it, args), 0);
	EQ(fakegpu_held("cuCtxSynchronize", 1, 60000), 1);
	EQ(truth(FAKEGPU_DATA), 4 * MIB);
	fakegpu_open("cuCtxSynchronize");
	pthread_join(t, NULL);
	SAME();
	EQ(truth(FAKEGPU_DATA), 0);
}

/* What was allocated in a context ends with it. */
static void ends(CUcontext before)
{
	CUcontext c;
	CUdeviceptr p, kept;
	OK(cuMemAlloc_v2(&kept, 6 * MIB));
	OK(cuCtxCreate_v2(&c, 0, 0));
	for (int i = 0; i < 3; i++)
		OK(cuMemAlloc_v2(&p, 4 * MIB));
	EQ(truth(FAKEGPU_DATA), 18 * MIB);
	OK(cuCtxDestroy_v2(c));
	OK(cuCtxSetCurrent(before));
	EQ(truth(FAKEGPU_DATA), 6 * MIB);
	EQ(held(RATION_DATA), 6 * MIB);
	OK(cuMemFree_v2(kept));
	SAME();
}

/* The C library's own signals reach the lane's thread: otherwise this would never return. */
static void signals(void)
{
	alarm(60);
	EQ(setuid(getuid()), 0);
	alarm(0);
}

/* Without a thread, memory is the driver's own. */
static int without(void)
{
	CUdeviceptr p;
	no_threads = true;
	start();
	OK(cuMemAlloc_v2(&p, 3 * MIB));
	SAME();
	EQ(range_of(p), 3 * MIB);
	OK(cuMemFree_v2(p));
	return checks_failed > 0;
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1)
		return without();
	CUcontext context = start();
	sizes();
	limit();
	handles();
	waits(context);
	ends(context);
	signals();
	OK(cuDevicePrimaryCtxRelease_v2(0));
	EQ(end(spawn("without"), 0), 0);
	return FINISH();
}
