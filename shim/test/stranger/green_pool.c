/* The end of a green context, where the primary one lives on, is no synchronisation: what a
 * destroyed pool has left stays on the device until there is one, as on an H200, and stays
 * counted. */
#include "stranger.h"

int main(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUdevResource all;
	CUdevResourceDesc desc;
	CUgreenCtx g;
	CUmemoryPool pool;
	CUdeviceptr p;
	start();
	OK(cuDeviceGetDevResource(0, &all, 1));
	OK(cuDevResourceGenerateDesc(&desc, &all, 1));
	OK(cuGreenCtxCreate(&g, desc, 0, 1));
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemAllocFromPoolAsync(&p, 256 * MIB, pool, NULL));
	OK(cuMemPoolDestroy(pool));
	OK(cuMemFreeAsync(p, NULL));
	SAME();
	OK(cuGreenCtxDestroy(g));
	EQ(truth(FAKEGPU_DATA), 256 * MIB);
	SAME();
	OK(cuCtxSynchronize());
	EQ(truth(FAKEGPU_DATA), 0);
	SAME();
	return FINISH();
}
