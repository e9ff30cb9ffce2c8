/* A program that ends while its threads allocate and free: its status is the one it
 * gave, it does not hang, and its job has all of it back. */
#include <pthread.h>
#include <time.h>

#include "held.h"

#ifdef __SANITIZE_THREAD__
enum { ROUNDS = 15, THREADS = 4 }; /* it waits a second at each exit */
#else
enum { ROUNDS = 150, THREADS = 4 };
#endif

static CUcontext context;

static void *churn(void *arg)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle h;
	CUdeviceptr p, q;
	cuCtxSetCurrent(context);
	for (;;) {
		bool a = cuMemAlloc_v2(&p, 1 + (uintptr_t)arg * 4096) == CUDA_SUCCESS, b = cuMemAllocAsync(&q, MIB, NULL) == CUDA_SUCCESS;
		bool c = cuMemCreate(&h, 2 * MIB, &prop, 0) == CUDA_SUCCESS;
		if (a)
			cuMemFree_v2(p);
		if (b)
			cuMemFreeAsync(q, NULL);
		if (c)
			cuMemRelease(h);
	}
	return NULL;
}

/* Ends in the midst of it: by exit, by returning from main, by a thread's exit, by
 * quick_exit and by _exit. */
static void *ends(void *arg) { exit((int)(intptr_t)arg); }

static int leave(int round)
{
	pthread_t t;
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0))
		return 99;
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&t, NULL, churn, (void *)i);
	nanosleep(&(struct timespec){.tv_nsec = (round * 7919 % 50) * 100000}, NULL);
	switch (round % 5) {
	case 0: return round;
	case 1: exit(round);
	case 2: pthread_create(&t, NULL, ends, (void *)(intptr_t)round); pthread_exit(NULL);
	case 3: quick_exit(round);
	default: _exit(round);
	}
}

int main(int argc, char **argv)
{
	struct region_holding h[8];
	unsigned reaped;
	char round[16];
	if (argc > 1)
		return leave(atoi(argv[1]));
	for (int i = 0; i < ROUNDS; i++) {
		snprintf(round, sizeof round, "%d", i);
		int status = again("/proc/self/exe", round, NULL);
		EQ(status, i << 8);
		struct region *r = region_here();
		EQ(region_reap(r, &reaped), REGION_OK);
		EQ(region_used(r, 0), 0);
		EQ(region_holdings(r, 0, h, 8), 0);
	}
	return FINISH();
}
