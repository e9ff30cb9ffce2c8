/* Memory of a managed pool that was sent to another device outlives the context that it was allocated
 * in, and counts on both devices until it is freed; or until the last context of its own device ends. */
#include "stranger.h"

static void send(CUmemoryPool pool, CUdeviceptr *p)
{
	OK(cuMemAllocFromPoolAsync(p, 300 * MIB, pool, NULL));
	OK(cuMemPrefetchAsync(*p, 300 * MIB, 1, NULL));
}

static bool counts(unsigned device) { return region_used(region_here(), device) >= in_use((int)device); }

int main(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUcontext c = start(), second, made;
	CUdeviceptr p, q;
	CUmemoryPool pool;
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuCtxCreate_v2(&made, 0, 0));
	send(pool, &p);
	OK(cuCtxDestroy_v2(made));
	CHECK(counts(0));
	CHECK(counts(1));
	OK(cuCtxSetCurrent(second));
	EQ(cuMemAlloc_v2(&q, 900 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(1);
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	BALANCED(1);

	OK(cuCtxSetCurrent(c));
	send(pool, &p);
	CHECK(counts(1));
	OK(cuDevicePrimaryCtxReset_v2(0));
	OK(cuCtxSetCurrent(second));
	BALANCED(1);
	return FINISH();
}
