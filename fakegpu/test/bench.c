/* What a pair of cuMemAlloc and cuMemFree costs, a launch and an event, so that a bench over fakegpu knows
 * its own floor. Not a test: `make bench` runs it. */
#include <pthread.h>
#include <time.h>

#include "check.h"

enum { PAIRS = 2000000, LIVE = 100000 };

static CUcontext context;

/* Of this process alone: other work on the machine does not count. */
static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *pairs(void *arg)
{
	(void)arg;
	cuCtxSetCurrent(context);
	for (int i = 0; i < PAIRS; i++) {
		CUdeviceptr p;
		if (cuMemAlloc_v2(&p, MIB) != CUDA_SUCCESS || cuMemFree_v2(p) != CUDA_SUCCESS)
			abort();
	}
	return NULL;
}

static void threads(int n)
{
	pthread_t t[16];
	double start_at = seconds();
	for (int i = 0; i < n; i++)
		pthread_create(&t[i], NULL, pairs, NULL);
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	printf("%d thread%s: %.0f ns a pair\n", n, n > 1 ? "s" : "", (seconds() - start_at) * 1e9 / PAIRS / n);
}

static void many_live(void)
{
	static CUdeviceptr p[LIVE];
	unsigned x = 1;
	double start_at;
	for (int i = 0; i < LIVE; i++)
		if (cuMemAlloc_v2(&p[i], 4096) != CUDA_SUCCESS)
			abort();
	start_at = seconds();
	for (int i = 0; i < PAIRS; i++) {
		unsigned k = (x = x * 1664525 + 1013904223) / 4096 % LIVE;
		if (cuMemFree_v2(p[k]) != CUDA_SUCCESS || cuMemAlloc_v2(&p[k], 4096) != CUDA_SUCCESS)
			abort();
	}
	printf("%d live: %.0f ns a pair\n", LIVE, (seconds() - start_at) * 1e9 / PAIRS);
	for (int i = 0; i < LIVE; i++)
		cuMemFree_v2(p[i]);
}

static void launches(void)
{
	static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry one() { ret; }\n";
	double start_at;
	CUfunction f;
	CUmodule m;
	CUevent e;
	if (cuModuleLoadData(&m, ptx) != CUDA_SUCCESS || cuModuleGetFunction(&f, m, "one") != CUDA_SUCCESS ||
	    cuEventCreate(&e, 0) != CUDA_SUCCESS)
		abort();
	start_at = seconds();
	for (int i = 0; i < PAIRS; i++)
		if (cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != CUDA_SUCCESS)
			abort();
	printf("launch: %.0f ns\n", (seconds() - start_at) * 1e9 / PAIRS);
	start_at = seconds();
	for (int i = 0; i < PAIRS; i++)
		if (cuEventRecord(e, NULL) != CUDA_SUCCESS)
			abort();
	printf("event: %.0f ns\n", (seconds() - start_at) * 1e9 / PAIRS);
}

int main(void)
{
	context = start();
	threads(1);
	threads(2);
	many_live();
	launches();
	return checks_failed > 0;
}
