/* The pool that is a device's current one is destroyed while another thread allocates without
 * naming a pool: no second entry is made for the handle that is going away. */
#include "../stranger.h"
static CUmemoryPool a;
static CUresult destroy(struct task *t)
{
	(void)t;
	return cuMemPoolDestroy(a);
}
#define SHOW(s)                                                                                              \
	printf("%s: dev0 %llu/%llu dev1 %llu/%llu MiB (region/truth) errors %u\n", s,                        \
	       (unsigned long long)region_used(region_here(), 0) >> 20, (unsigned long long)in_use(0) >> 20, \
	       (unsigned long long)region_used(region_here(), 1) >> 20, (unsigned long long)in_use(1) >> 20, fakegpu_errors())
int main(void)
{
	CUcontext c = start(), c1;
	CUdeviceptr p = 0, q = 0;
	OK(cuDevicePrimaryCtxRetain(&c1, 1));
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	OK(cuMemPoolCreate(&a, &props));
	OK(cuDeviceSetMemPool(0, a));
	fakegpu_hold("cuMemPoolDestroy:before", 1);
	struct task t = {.run = destroy};
	task_begin(&t, c);
	EQ(fakegpu_held("cuMemPoolDestroy:before", 1, 3000), 1);
	CUresult r = cuMemAllocAsync(&p, 100 * MIB, NULL); /* from a, which is still the current one */
	printf("alloc %d\n", r);
	fakegpu_open("cuMemPoolDestroy:before");
	JOIN(&t);
	OK(t.result);
	SHOW("destroyed");
	BALANCED(0);
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	SHOW("freed, synchronised");
	BALANCED(0);
	OK(cuMemAlloc_v2(&q, 900 * MIB));
	OK(cuMemFree_v2(q));
	CUmemoryPool n[200];
	int reused = 0;
	props.location.id = 1;
	OK(cuCtxSetCurrent(c1));
	for (int i = 0; i < 200; i++) {
		OK(cuMemPoolCreate(&n[i], &props));
		if (n[i] == a) {
			reused++;
			OK(cuMemAllocFromPoolAsync(&q, 300 * MIB, n[i], NULL));
			SHOW("reused handle, on device 1");
			BALANCED(0);
			BALANCED(1);
		}
	}
	printf("reused %d\n", reused);
	OK(cuCtxSynchronize());
	SHOW("end");
	BALANCED(0);
	BALANCED(1);
	EQ(fakegpu_errors(), 0);
	return FINISH();
}
