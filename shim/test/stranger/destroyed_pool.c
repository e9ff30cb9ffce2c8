/* A pool that is destroyed before the last of it is freed: its memory is given back with
 * that free where the driver does so, without any thread waiting for anything else. */
#include "stranger.h"

static CUmemoryPool make(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool p;
	OK(cuMemPoolCreate(&p, &props));
	return p;
}

int main(void)
{
	CUmemoryPool pool;
	CUdeviceptr p, q;
	start();
	for (int waits = 0; waits < 2; waits++) {
		pool = make();
		OK(cuMemAllocFromPoolAsync(&p, 300 * MIB, pool, NULL));
		OK(cuMemAllocFromPoolAsync(&q, 300 * MIB, pool, NULL));
		OK(cuMemPoolDestroy(pool));
		SAME();
		OK(cuMemFree_v2(p));
		CHECK(held(RATION_DATA) >= truth(FAKEGPU_DATA)); /* how much that gave back the driver does not say */
		OK(waits ? cuMemFree_v2(q) : cuMemFreeAsync(q, NULL));
		if (!waits)
			OK(cuCtxSynchronize());
		SAME();
		EQ(held(RATION_DATA), 0);
		OK(cuMemAlloc_v2(&p, 800 * MIB)); /* all of it is there again */
		OK(cuMemFree_v2(p));
	}
	/* Freed without waiting; another pool's memory is freed by a call that does wait. */
	CUmemoryPool other = make();
	pool = make();
	OK(cuMemAllocFromPoolAsync(&p, 300 * MIB, pool, NULL));
	OK(cuMemAllocFromPoolAsync(&q, 10 * MIB, other, NULL));
	OK(cuMemPoolDestroy(pool));
	OK(cuMemFreeAsync(p, NULL));
	CHECK(held(RATION_DATA) >= 300 * MIB);
	OK(cuMemFree_v2(q));
	SAME();
	CHECK(held(RATION_DATA) < 300 * MIB);
	return FINISH();
}
