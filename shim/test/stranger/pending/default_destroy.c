/* The driver refuses to destroy a default pool; an allocation beside that is counted once. */
#include "../stranger.h"
static CUmemoryPool pool;
static CUresult destroy(struct task *t)
{
	(void)t;
	return cuMemPoolDestroy(pool);
}
int main(void)
{
	CUcontext c = start();
	CUdeviceptr p, q;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemAllocAsync(&p, 64 * MIB, NULL));
	SAME();
	fakegpu_hold("cuMemPoolDestroy", 1);
	struct task t = {.run = destroy};
	task_begin(&t, c);
	EQ(fakegpu_held("cuMemPoolDestroy", 1, 3000), 1);
	OK(cuMemAllocAsync(&q, 200 * MIB, NULL));
	fakegpu_open("cuMemPoolDestroy");
	JOIN(&t);
	printf("destroy gave %d\n", t.result);
	printf("after: held %llu truth %llu\n", (unsigned long long)held(RATION_DATA) >> 20, (unsigned long long)truth(FAKEGPU_DATA) >> 20);
	OK(cuCtxSynchronize());
	SAME();
	CUdeviceptr r;
	OK(cuMemAllocAsync(&r, 32 * MIB, NULL));
	OK(cuMemFreeAsync(r, NULL));
	OK(cuCtxSynchronize());
	SAME();
	OK(cuMemFreeAsync(p, NULL));
	OK(cuMemFreeAsync(q, NULL));
	OK(cuCtxSynchronize());
	SAME();
	OK(cuMemPoolTrimTo(pool, 0));
	SAME();
	OK(cuMemAlloc_v2(&p, 900 * MIB));
	return FINISH();
}
