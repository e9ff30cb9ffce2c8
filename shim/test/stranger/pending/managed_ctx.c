/* Memory of a managed pool that was prefetched to another device outlives the context that it was
 * allocated in: what that device counts must, too. */
#include "../stranger.h"
#define SHOW(s)                                                                                                                  \
	printf("%s: dev0 %llu/%llu dev1 %llu/%llu (region/truth)\n", s, (unsigned long long)region_used(region_here(), 0) >> 20, \
	       (unsigned long long)in_use(0) >> 20, (unsigned long long)region_used(region_here(), 1) >> 20,                     \
	       (unsigned long long)in_use(1) >> 20)
int main(void)
{
	CUcontext c = start(), c1, x;
	CUdeviceptr p, q;
	CUmemoryPool m;
	OK(cuDevicePrimaryCtxRetain(&c1, 1));
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	OK(cuMemPoolCreate(&m, &props));
	OK(cuCtxCreate_v2(&x, 0, 0));
	OK(cuMemAllocFromPoolAsync(&p, 300 * MIB, m, NULL));
	SHOW("allocated");
	OK(cuMemPrefetchAsync(p, 300 * MIB, 1, NULL));
	SHOW("sent to 1");
	OK(cuCtxDestroy_v2(x));
	OK(cuCtxSetCurrent(c));
	SHOW("context destroyed");
	CHECK(region_used(region_here(), 1) >= in_use(1));
	CHECK(region_used(region_here(), 0) >= in_use(0));
	OK(cuCtxSetCurrent(c1));
	CUresult r = cuMemAlloc_v2(&q, 900 * MIB);
	printf("900 on dev 1: %d\n", r);
	SHOW("then");
	WITHIN_LIMIT(1);
	r = cuMemFreeAsync(p, NULL);
	printf("free %d\n", r);
	OK(cuCtxSynchronize());
	SHOW("freed");
	BALANCED(1);
	return FINISH();
}
