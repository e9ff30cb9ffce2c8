/* A pool whose room is in pieces grows although it has enough, which only the driver
 * knows, and only afterwards. The limit holds all the same. 1 GiB for the job. */
#include "held.h"

#define GIB (1024 * MIB)

static uint64_t room(void) { return GIB - region_used(region_here(), 0); }

static uint64_t refused(void) { return region_here()->m->devices[0].refused; }

/* The first that is known of the device's own pool is a request, by its handle. */
static void by_handle(CUmemoryPool pool)
{
	CUdeviceptr p;
	uint64_t before = refused();
	EQ(cuMemAllocFromPoolAsync(&p, 2 * GIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(refused(), before + 1);
	SAME();
}

/* holes leaves the pool with room that no allocation can use. */
static void holes(uint64_t bytes)
{
	CUdeviceptr p;
	OK(cuMemAllocAsync(&p, bytes, NULL));
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	SAME();
}

static void fills(void)
{
	enum { MOST = 64 };
	CUdeviceptr p[MOST];
	uint64_t before = refused();
	CUresult result = CUDA_SUCCESS;
	int n = 0;
	for (; n < MOST && result == CUDA_SUCCESS; n++) {
		result = cuMemAllocAsync(&p[n], 48 * MIB, NULL);
		SAME();
		CHECK(everybody() <= GIB);
	}
	EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
	EQ(refused(), before + 1);
	CHECK(room() < 64 * MIB); /* the pieces were let go of before anything was refused */
	for (n--; n > 0; n--)
		OK(cuMemFreeAsync(p[n - 1], NULL));
	OK(cuCtxSynchronize());
	SAME();
}

int main(void)
{
	CUmemoryPool pool;
	CUdeviceptr p;
	uint64_t threshold = 1ull << 40;
	start();
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	by_handle(pool);
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	holes(300 * MIB);
	fills();
	fills(); /* a refusal spoils nothing */
	OK(cuMemPoolTrimTo(pool, 0));
	OK(cuMemAlloc_v2(&p, room()));
	OK(cuMemFree_v2(p));
	SAME();
	OK(cuDevicePrimaryCtxRelease_v2(0));
	return FINISH();
}
