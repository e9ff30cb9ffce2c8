/* Two threads prefetch one managed range; the driver refuses one of them. What the other has
 * moved stays counted. */
#include "../stranger.h"
static CUdeviceptr p;
static CUresult bad(struct task *t)
{
	(void)t;
	return cuMemPrefetchAsync(p, 1ull << 40, 1, NULL);
}
int main(void)
{
	CUcontext c = start(), c1;
	OK(cuDevicePrimaryCtxRetain(&c1, 1));
	OK(cuMemAllocManaged(&p, 300 * MIB, CU_MEM_ATTACH_GLOBAL));
	fakegpu_hold("cuMemPrefetchAsync:before", 1);
	struct task t = {.run = bad};
	task_begin(&t, c);
	EQ(fakegpu_held("cuMemPrefetchAsync:before", 1, 3000), 1);
	OK(cuMemPrefetchAsync(p, 300 * MIB, 1, NULL));
	fakegpu_open("cuMemPrefetchAsync:before");
	JOIN(&t);
	printf("bad prefetch %d\n", t.result);
	printf("dev1 region %llu truth %llu\n", (unsigned long long)region_used(region_here(), 1) >> 20,
	       (unsigned long long)in_use(1) >> 20);
	CHECK(region_used(region_here(), 1) >= in_use(1));
	CUdeviceptr q;
	OK(cuCtxSetCurrent(c1));
	CUresult r = cuMemAlloc_v2(&q, 900 * MIB);
	printf("900 MiB on dev1: %d, in use %llu\n", r, (unsigned long long)in_use(1) >> 20);
	WITHIN_LIMIT(1);
	return FINISH();
}
