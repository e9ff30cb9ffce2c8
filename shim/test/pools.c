/* Pools count by what they have reserved. */
#include "held.h"

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);

static CUmemoryPool make(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool p = NULL;
	OK(cuMemPoolCreate(&p, &props));
	return p;
}

static void own_pool(void)
{
	static const size_t sizes[] = {1, 513, MIB, 20 * MIB, 40 * MIB};
	enum { N = sizeof sizes / sizeof *sizes };
	CUdeviceptr p[N];
	for (int i = 0; i < N; i++) {
		OK(i % 2 ? cuMemAllocAsync_ptsz(&p[i], sizes[i], NULL) : cuMemAllocAsync(&p[i], sizes[i], NULL));
		SAME();
	}
	for (int i = 0; i < N; i++) {
		OK(i % 2 ? cuMemFreeAsync_ptsz(p[i], NULL) : cuMemFreeAsync(p[i], NULL));
		SAME();
	}
	EQ(held(RATION_DATA), 64 * MIB); /* reserved until a synchronisation */
	OK(cuStreamSynchronize(NULL));
	SAME();
	EQ(held(RATION_DATA), 0);
}

static void keeping(void)
{
	CUmemoryPool pool;
	uint64_t threshold = 1ull << 40;
	CUdeviceptr p;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	OK(cuMemAllocAsync(&p, 5 * MIB, NULL));
	OK(cuMemFree_v2(p)); /* cuMemFree takes pool memory too */
	OK(cuCtxSynchronize());
	SAME();
	EQ(held(RATION_DATA), 32 * MIB);
	OK(cuMemPoolTrimTo(pool, 0));
	SAME();
	EQ(held(RATION_DATA), 0);
	threshold = 0;
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
}

static void destroying(void)
{
	CUmemoryPool a = make(), b = make();
	CUdeviceptr p, q, r;
	OK(cuMemAllocFromPoolAsync(&p, 10 * MIB, a, NULL));
	OK(cuMemAllocFromPoolAsync_ptsz(&q, 40 * MIB, b, NULL));
	SAME();
	OK(cuMemFreeAsync(p, NULL));
	OK(cuMemPoolDestroy(a));
	SAME();
	/* Destroyed, but its memory stays as long as something of it lives. */
	OK(cuMemPoolDestroy(b));
	SAME();
	CHECK(held(RATION_DATA) >= 40 * MIB);
	OK(cuMemAlloc_v2(&r, MIB));
	SAME();
	OK(cuMemFreeAsync(q, NULL));
	OK(cuMemFree_v2(r));
	SAME();
	OK(cuCtxSynchronize());
	SAME();
	EQ(held(RATION_DATA), 0);
}

static void current(void)
{
	CUmemoryPool mine_ = make(), other;
	CUdeviceptr p;
	OK(cuDeviceGetMemPool(&other, 0));
	OK(cuDeviceSetMemPool(0, mine_));
	OK(cuMemAllocAsync(&p, 100 * MIB, NULL));
	SAME();
	OK(cuDeviceSetMemPool(0, other));
	OK(cuMemFreeAsync(p, NULL));
	OK(cuMemPoolDestroy(mine_));
	OK(cuCtxSynchronize());
	SAME();
	EQ(held(RATION_DATA), 0);
}

/* The pool is the stream's device's, whichever device is current. */
static void elsewhere(void)
{
	CUcontext here, there;
	CUstream stream;
	CUdeviceptr p;
	uint64_t mine_ = 0;
	OK(cuCtxGetCurrent(&here));
	OK(cuDevicePrimaryCtxRetain(&there, 1));
	OK(cuCtxSetCurrent(there));
	OK(cuStreamCreate(&stream, 0));
	OK(cuCtxSetCurrent(here));
	OK(cuMemAllocAsync(&p, 40 * MIB, stream));
	SAME();
	EQ(usage_of(1).kind[RATION_DATA], 64 * MIB);
	EQ(fakegpu_truth_kind(1, FAKEGPU_DATA, &mine_, NULL), 0);
	EQ(mine_, 64 * MIB);
	OK(cuMemFreeAsync(p, stream));
	OK(cuStreamSynchronize(stream));
	EQ(usage_of(1).kind[RATION_DATA], 0);
	OK(cuStreamDestroy_v2(stream));
	OK(cuDevicePrimaryCtxRelease_v2(1));
}

static void mistakes(void)
{
	CUmemoryPool gone = make();
	CUdeviceptr p;
	OK(cuMemPoolDestroy(gone));
	EQ(cuMemAllocFromPoolAsync(&p, MIB, gone, NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemPoolDestroy(gone) != CUDA_SUCCESS);
	SAME();
}

/* A pool that grew by more than it needed gives that back when it is synchronised, without
 * anything having been freed since it was last. */
static void overgrown(void)
{
	CUmemoryPool pool;
	CUdeviceptr p;
	uint64_t threshold = 48 * MIB, before, none = 0;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	OK(cuMemAllocAsync(&p, 40 * MIB, NULL));
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	SAME();
	OK(cuMemAllocAsync(&p, 50 * MIB, NULL));
	SAME();
	before = held(RATION_DATA);
	OK(cuCtxSynchronize());
	CHECK(held(RATION_DATA) < before);
	SAME();
	OK(cuMemFreeAsync(p, NULL));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none));
	OK(cuCtxSynchronize());
	SAME();
}

int main(void)
{
	start();
	own_pool();
	keeping();
	overgrown();
	destroying();
	current();
	elsewhere();
	mistakes();
	OK(cuDevicePrimaryCtxRelease_v2(0));
	SAME();
	return FINISH();
}
