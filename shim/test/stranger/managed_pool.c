/* Pools of managed memory (CUDA 13): what is allocated from one counts as managed memory
 * does, whether the pool has a device of its own or none. */
#include "stranger.h"

#define SIZE (600 * MIB)
#define COUNTED() CHECK(region_used(region_here(), 0) >= in_use(0))

static CUmemoryPool make(bool placed)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = {placed ? CU_MEM_LOCATION_TYPE_DEVICE : 0, 0}};
	CUmemoryPool p = NULL;
	start(); /* 100 MiB of 1000 */
	OK(cuMemPoolCreate(&p, &props));
	return p;
}

static void use(bool placed)
{
	CUmemoryPool pool = make(placed);
	CUdeviceptr p, q;
	OK(cuMemAllocFromPoolAsync(&p, SIZE, pool, NULL));
	COUNTED();
	OK(cuMemPrefetchAsync(p, SIZE, 0, NULL));
	COUNTED();
	EQ(cuMemAlloc_v2(&q, 400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(0);
	OK(cuMemFreeAsync(p, NULL));
	OK(cuMemPoolDestroy(pool));
	OK(cuCtxSynchronize());
	SAME();
	EQ(held(RATION_DATA), 0);
}

/* More than there is. */
static void refuse(bool placed)
{
	CUmemoryPool pool = make(placed);
	CUdeviceptr p;
	EQ(cuMemAllocFromPoolAsync(&p, 950 * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(0);
	COUNTED();
}

/* What is sent to another device counts there as well, until it is freed. */
static void sent(void)
{
	CUmemoryPool pool = make(true);
	CUcontext c;
	CUdeviceptr p;
	OK(cuDevicePrimaryCtxRetain(&c, 1));
	OK(cuMemAllocFromPoolAsync(&p, SIZE, pool, NULL));
	OK(cuMemPrefetchAsync(p, SIZE, 1, NULL));
	EQ(usage_of(1).kind[RATION_DATA], SIZE);
	CHECK(held(RATION_DATA) >= SIZE);
	WITHIN_LIMIT(1);
	OK(cuMemFreeAsync(p, NULL));
	EQ(usage_of(1).kind[RATION_DATA], 0);
	OK(cuCtxSynchronize());
	SAME();
}

/* The driver's own, which no call makes. */
static void drivers_own(void)
{
	CUmemLocation where = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
	CUmemoryPool pool;
	CUdeviceptr p;
	start();
	OK(cuMemGetDefaultMemPool(&pool, &where, CU_MEM_ALLOCATION_TYPE_MANAGED));
	OK(cuMemAllocFromPoolAsync(&p, SIZE, pool, NULL));
	CHECK(held(RATION_DATA) >= SIZE);
	COUNTED();
	EQ(cuMemAllocFromPoolAsync(&p, SIZE, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(0);
}

static void placed(void) { use(true); }
static void anywhere(void) { use(false); }
static void refused_placed(void) { refuse(true); }
static void refused_anywhere(void) { refuse(false); }

RUN_PARTS(true, {"placed", placed}, {"anywhere", anywhere}, {"sent", sent}, {"the driver's own", drivers_own},
	  {"refused placed", refused_placed}, {"refused anywhere", refused_anywhere})
