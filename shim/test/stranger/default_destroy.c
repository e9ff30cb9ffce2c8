/* The driver refuses to destroy a device's own pool; what is allocated from it at that moment is
 * counted once. */
#include "stranger.h"

static CUmemoryPool own;

static CUresult destroy(struct task *t)
{
	(void)t;
	return cuMemPoolDestroy(own);
}

int main(void)
{
	struct task t = {.run = destroy};
	CUcontext c = start();
	CUdeviceptr p, q, r;
	OK(cuDeviceGetDefaultMemPool(&own, 0));
	OK(cuMemAllocAsync(&p, 64 * MIB, NULL));
	SAME();
	fakegpu_hold("cuMemPoolDestroy", 1);
	task_begin(&t, c);
	EQ(fakegpu_held("cuMemPoolDestroy", 1, LONG), 1);
	OK(cuMemAllocAsync(&q, 200 * MIB, NULL));
	SAME();
	fakegpu_open("cuMemPoolDestroy");
	JOIN(&t);
	EQ(t.result, CUDA_ERROR_INVALID_VALUE);
	OK(cuCtxSynchronize());
	SAME();
	OK(cuMemAllocAsync(&r, 32 * MIB, NULL));
	OK(cuMemFreeAsync(r, NULL));
	OK(cuCtxSynchronize());
	SAME();
	OK(cuMemFreeAsync(p, NULL));
	OK(cuMemFreeAsync(q, NULL));
	OK(cuCtxSynchronize());
	SAME();
	OK(cuMemPoolTrimTo(own, 0));
	SAME();
	OK(cuMemAlloc_v2(&p, 900 * MIB));
	return FINISH();
}
