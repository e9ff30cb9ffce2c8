/* Threads of one process, on everything at once. Meant for SAN=thread. */
#include <pthread.h>

#include "check.h"

enum { THREADS = 8, ROUNDS = 2000, LIVE = 16 };

static CUcontext context;
static CUmemoryPool pool;
static unsigned failures; /* atomic */

#define MUST(call)                                                          \
	do {                                                                \
		CUresult r_ = (call);                                       \
		if (r_ != CUDA_SUCCESS) {                                   \
			__atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED); \
			fprintf(stderr, "%s gave %d\n", #call, (int)r_);    \
		}                                                           \
	} while (0)

static void *linear(void *arg)
{
	CUdeviceptr p[LIVE] = {0}, base;
	unsigned x = (unsigned)(uintptr_t)arg * 2654435761u + 1;
	size_t size;
	MUST(cuCtxSetCurrent(context));
	for (int i = 0; i < ROUNDS; i++) {
		unsigned k = (x = x * 1664525 + 1013904223) >> 28;
		if (p[k] != 0) {
			MUST(cuMemGetAddressRange_v2(&base, &size, p[k] + size % 7));
			MUST(cuMemFree_v2(p[k]));
			p[k] = 0;
		} else {
			size = 8 + (x >> 8) % MIB;
			MUST(cuMemAlloc_v2(&p[k], size));
		}
		size = 8;
	}
	for (int k = 0; k < LIVE; k++)
		MUST(cuMemFree_v2(p[k]));
	return NULL;
}

static void *pooled(void *arg)
{
	CUstream s;
	(void)arg;
	MUST(cuCtxSetCurrent(context));
	MUST(cuStreamCreate(&s, 0));
	for (int i = 0; i < ROUNDS / 4; i++) {
		CUdeviceptr a, b;
		MUST(cuMemAllocAsync(&a, 100 + (size_t)i, s));
		MUST(cuMemAllocFromPoolAsync(&b, MIB, pool, s));
		MUST(cuMemFreeAsync(a, s));
		MUST(cuMemFreeAsync(b, s));
		if (i % 16 == 0)
			MUST(cuStreamSynchronize(s));
	}
	MUST(cuStreamDestroy_v2(s));
	return NULL;
}

static void *mapped(void *arg)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	(void)arg;
	MUST(cuCtxSetCurrent(context));
	for (int i = 0; i < ROUNDS / 8; i++) {
		CUmemGenericAllocationHandle h;
		CUdeviceptr va;
		MUST(cuMemCreate(&h, 2 * MIB, &prop, 0));
		MUST(cuMemAddressReserve(&va, 2 * MIB, 0, 0, 0));
		MUST(cuMemMap(va, 2 * MIB, 0, h, 0));
		MUST(cuMemRelease(h));
		MUST(cuMemUnmap(va, 2 * MIB));
		MUST(cuMemAddressFree(va, 2 * MIB));
	}
	return NULL;
}

/* Contexts of its own, ended with memory in them while others work. */
static void *contexts(void *arg)
{
	(void)arg;
	for (int i = 0; i < ROUNDS / 40; i++) {
		size_t left, total;
		CUdeviceptr p;
		CUcontext c;
		CUevent e;
		MUST(cuCtxCreate_v2(&c, 0, 0));
		MUST(cuMemAlloc_v2(&p, 4096));
		MUST(cuEventCreate(&e, 0));
		MUST(cuEventRecord(e, NULL));
		MUST(cuMemGetInfo_v2(&left, &total));
		MUST(cuCtxDestroy_v2(c));
	}
	return NULL;
}

int main(void)
{
	static void *(*const work[THREADS])(void *) = {linear, linear, linear, linear, pooled, pooled, mapped, contexts};
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	pthread_t threads[THREADS];

	context = start();
	OK(cuMemPoolCreate(&pool, &props));
	for (intptr_t i = 0; i < THREADS; i++)
		EQ(pthread_create(&threads[i], NULL, work[i], (void *)i), 0);
	for (int i = 0; i < THREADS; i++)
		EQ(pthread_join(threads[i], NULL), 0);
	EQ(failures, 0);
	EQ(fakegpu_errors(), 0);
	OK(cuMemPoolDestroy(pool));
	OK(cuCtxSynchronize());
	EQ(mine(), 518 * MIB);
	EQ(everybody(), 518 * MIB);
	return FINISH();
}
