/* Managed memory that is moved to another device than it was allocated for: it is that
 * device's memory then, and counts against that device's limit. */
#include "stranger.h"

CUresult cuMemPrefetchAsync_v2(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream);

#define SIZE (600 * MIB)

/* Contexts on both: 100 MiB of 1000 each. The second one is current. */
static CUdeviceptr moved(uint64_t taken)
{
	CUdeviceptr p, q;
	CUcontext c;
	start();
	OK(cuMemAllocManaged(&p, SIZE, CU_MEM_ATTACH_GLOBAL));
	OK(cuDevicePrimaryCtxRetain(&c, 1));
	OK(cuCtxSetCurrent(c));
	if (taken > 0)
		OK(cuMemAlloc_v2(&q, taken));
	return p;
}

#define COUNTED(device) CHECK(region_used(region_here(), device) >= in_use(device))

static void no_room(void)
{
	CUdeviceptr p = moved(700 * MIB);
	(void)!cuMemPrefetchAsync(p, SIZE, 1, NULL); /* refused, or left where it is */
	WITHIN_LIMIT(1);
	COUNTED(1);
	COUNTED(0);
}

static void room(void)
{
	CUdeviceptr p = moved(0), q;
	OK(cuMemPrefetchAsync(p, SIZE, 1, NULL));
	COUNTED(1);
	EQ(cuMemAlloc_v2(&q, 400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(1);
	OK(cuMemPrefetchAsync(p, SIZE, 0, NULL));
	COUNTED(0);
	COUNTED(1);
	OK(cuMemFree_v2(p));
	BALANCED(0);
	BALANCED(1);
}

/* Counted there once, however often and by which end it is sent; and not where the driver
 * fails. */
static void again_and_failed(void)
{
	CUdeviceptr p = moved(0);
	CUmemLocation one = {CU_MEM_LOCATION_TYPE_DEVICE, 1}, host = {2, 0};
	EQ(cuMemPrefetchAsync(p, SIZE + 1, 1, NULL), CUDA_ERROR_INVALID_VALUE);
	BALANCED(1);
	OK(cuMemPrefetchAsync_v2(p + 8 * MIB, MIB, one, 0, NULL));
	OK(cuMemPrefetchAsync(p, SIZE, 1, NULL));
	BALANCED(1);
	OK(cuMemPrefetchAsync_v2(p, SIZE, host, 0, NULL));
	EQ(region_used(region_here(), 0), 700 * MIB);
	EQ(region_used(region_here(), 1), 700 * MIB);
	OK(cuDevicePrimaryCtxReset_v2(0)); /* it ends with its context, wherever it counts */
	BALANCED(0);
	BALANCED(1);
}

RUN_PARTS(true, {"no room", no_room}, {"room", room}, {"again and failed", again_and_failed})
