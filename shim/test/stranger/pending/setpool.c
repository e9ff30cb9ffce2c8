/* The device's current pool changes between the charge and the driver's call. */
#include "../stranger.h"
static CUdeviceptr p;
static CUresult alloc(struct task *t)
{
	(void)t;
	return cuMemAllocAsync(&p, 600 * MIB, NULL);
}
int main(void)
{
	CUcontext c = start();
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool a, b;
	CUdeviceptr x;
	OK(cuMemPoolCreate(&a, &props));
	OK(cuMemPoolCreate(&b, &props));
	uint64_t keep = ~0ull;
	OK(cuMemPoolSetAttribute(a, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	OK(cuDeviceSetMemPool(0, a));
	/* a has 600 MiB reserved and free: nothing will be charged */
	OK(cuMemAllocAsync(&x, 600 * MIB, NULL));
	OK(cuMemFreeAsync(x, NULL));
	SAME();
	fakegpu_hold("cuMemAllocAsync:before", 1);
	struct task t = {.run = alloc};
	task_begin(&t, c);
	EQ(fakegpu_held("cuMemAllocAsync:before", 1, 3000), 1);
	OK(cuDeviceSetMemPool(0, b));
	fakegpu_open("cuMemAllocAsync:before");
	JOIN(&t);
	printf("alloc %d: held %llu truth %llu used %llu limit %llu\n", t.result, (unsigned long long)held(RATION_DATA) >> 20,
	       (unsigned long long)truth(FAKEGPU_DATA) >> 20, (unsigned long long)in_use(0) >> 20, (unsigned long long)limit_of(0) >> 20);
	WITHIN_LIMIT(0);
	SAME();
	OK(cuCtxSynchronize());
	SAME();
	OK(cuMemPoolDestroy(b));
	SAME();
	OK(cuCtxSynchronize());
	printf("after destroy+sync: held %llu truth %llu\n", (unsigned long long)held(RATION_DATA) >> 20,
	       (unsigned long long)truth(FAKEGPU_DATA) >> 20);
	SAME();
	OK(cuMemPoolDestroy(a));
	OK(cuCtxSynchronize());
	SAME();
	CUresult r = cuMemAlloc_v2(&x, 900 * MIB);
	printf("900 MiB more: %d, in use %llu of %llu\n", r, (unsigned long long)in_use(0) >> 20, (unsigned long long)limit_of(0) >> 20);
	WITHIN_LIMIT(0);
	return FINISH();
}
