/* Stream-ordered memory, from the device's default pool and from a pool of the program, in
 * turn. What the pools have reserved must be counted. */
#include "allocpaths.h"

enum { DEFAULT, OWN, POOLS };

static CUstream stream;
static CUmemoryPool pools[POOLS];
static CUdeviceptr pieces[PIECES];
static size_t count;

static void pool_begin(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	CAN(cuDeviceGetDefaultMemPool, &pools[DEFAULT], device);
	CAN(cuMemPoolCreate, &pools[OWN], &props);
}

static uint64_t pool_data(void)
{
	uint64_t sum = 0;
	for (int i = 0; i < POOLS; i++) {
		uint64_t reserved = 0;
		MUST(cuMemPoolGetAttribute, pools[i], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
		sum += reserved;
	}
	return sum;
}

static bool pool_take(void)
{
	CUdeviceptr at;
	bool own = count % POOLS == OWN;
	if (own ? !HAD(cuMemAllocFromPoolAsync, &at, piece, pools[OWN], stream) : !HAD(cuMemAllocAsync, &at, piece, stream))
		return false;
	pieces[count++] = at;
	MUST(cuMemsetD8Async, at, 0xa5, piece, stream);
	MUST(cuStreamSynchronize, stream);
	return true;
}

static void pool_free_all(void)
{
	while (count > 0)
		MUST(cuMemFreeAsync, pieces[--count], stream);
}

static void pool_trim(void)
{
	MUST(cuStreamSynchronize, stream);
	for (int i = 0; i < POOLS; i++)
		MUST(cuMemPoolTrimTo, pools[i], 0);
}

static void pool_give_back(void)
{
	pool_free_all();
	pool_trim();
}

static void pool_after(void)
{
	pool_free_all();
	step("freed data=%llu", (unsigned long long)pool_data());
	pool_trim();
	step("trimmed data=%llu", (unsigned long long)pool_data());
}

/* What the library rests on, and must leave as it is: a request that names no pool is the
 * current one's, and the device's own is current again when that is destroyed. */
static void pool_end(void)
{
	CUmemoryPool now = NULL;
	uint64_t used = 0;
	CUdeviceptr at;
	MUST(cuDeviceSetMemPool, device, pools[OWN]);
	MUST(cuMemAllocAsync, &at, GRAIN, stream);
	MUST(cuMemPoolGetAttribute, pools[OWN], CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
	if (used != GRAIN)
		fail("cuMemAllocAsync: the current pool handed out %llu bytes", (unsigned long long)used);
	MUST(cuMemFreeAsync, at, stream);
	MUST(cuStreamSynchronize, stream);
	MUST(cuMemPoolDestroy, pools[OWN]);
	MUST(cuDeviceGetMemPool, &now, device);
	if (now != pools[DEFAULT])
		fail("cuMemPoolDestroy: the device's own pool is not the current one");
	MUST(cuStreamDestroy_v2, stream);
}

const struct allocpath pool = {.name = "pool",
			       .begin = pool_begin,
			       .take = pool_take,
			       .data = pool_data,
			       .give_back = pool_give_back,
			       .end = pool_end,
			       .after = pool_after};
