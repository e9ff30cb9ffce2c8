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

static CUdeviceptr freed_by_waiting;

static CUresult synchronises(struct task *t)
{
	(void)t;
	return cuCtxSynchronize();
}

static CUresult frees(struct task *t)
{
	(void)t;
	return cuMemFree_v2(freed_by_waiting);
}

/* A wait that has come to its end before the last of a destroyed pool is freed, and returns after that:
 * it says nothing about that free. The next one does. */
static void waited_before(CUcontext c, const char *call, CUresult (*wait)(struct task *t))
{
	struct task t = {.run = wait};
	CUmemoryPool pool = make(), other = make();
	CUdeviceptr p;
	OK(cuMemAllocFromPoolAsync(&p, 300 * MIB, pool, NULL));
	OK(cuMemAllocFromPoolAsync(&freed_by_waiting, 10 * MIB, other, NULL));
	OK(cuMemPoolDestroy(pool));
	fakegpu_hold(call, 1);
	task_begin(&t, c);
	task_settle(&t, call, 1);
	OK(cuMemFreeAsync(p, NULL));
	fakegpu_open(call);
	JOIN(&t);
	OK(t.result);
	CHECK(truth(FAKEGPU_DATA) >= 300 * MIB); /* or this tests nothing */
	CHECK(held(RATION_DATA) >= truth(FAKEGPU_DATA));
	if (wait == synchronises)
		OK(cuMemFree_v2(freed_by_waiting));
	OK(cuCtxSynchronize());
	OK(cuMemPoolDestroy(other));
	OK(cuCtxSynchronize());
	SAME();
	EQ(held(RATION_DATA), 0);
}

int main(void)
{
	CUmemoryPool pool;
	CUdeviceptr p, q;
	CUcontext c = start();
	waited_before(c, "cuCtxSynchronize", synchronises);
	waited_before(c, "cuMemFree", frees);
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
