/* The device's current pool changes between the charge and the driver's call: what is charged is
 * what is allocated. */
#include "stranger.h"

static CUresult allocate(struct task *t) { return cuMemAllocAsync(&t->p, 600 * MIB, NULL); }

int main(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	struct task t = {.run = allocate};
	CUcontext c = start();
	CUmemoryPool a, b;
	uint64_t keep = UINT64_MAX;
	CUdeviceptr p;
	OK(cuMemPoolCreate(&a, &props));
	OK(cuMemPoolCreate(&b, &props));
	OK(cuMemPoolSetAttribute(a, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	OK(cuDeviceSetMemPool(0, a));
	/* a has 600 MiB reserved and free: nothing will be charged. */
	OK(cuMemAllocAsync(&p, 600 * MIB, NULL));
	OK(cuMemFreeAsync(p, NULL));
	SAME();
	fakegpu_hold("cuMemAllocFromPoolAsync:before", 1);
	task_begin(&t, c);
	EQ(fakegpu_held("cuMemAllocFromPoolAsync:before", 1, LONG), 1);
	OK(cuDeviceSetMemPool(0, b));
	fakegpu_open("cuMemAllocFromPoolAsync:before");
	JOIN(&t);
	OK(t.result);
	WITHIN_LIMIT(0);
	SAME();
	OK(cuCtxSynchronize());
	SAME();
	OK(cuMemPoolDestroy(b));
	SAME();
	OK(cuMemPoolDestroy(a));
	OK(cuCtxSynchronize());
	SAME();
	EQ(cuMemAlloc_v2(&p, 900 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFreeAsync(t.p, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemAlloc_v2(&p, 900 * MIB));
	SAME();
	return FINISH();
}
