/* Stream-ordered memory: from the device's own pool and from one that the program
 * made, in turn. What counts is what the pools have reserved. */
#include "allocpaths.h"

enum { DEFAULT, OWN, POOLS };

static CUstream stream;
static CUmemoryPool pools[POOLS];
static CUdeviceptr pieces[PIECES];
static size_t count;

static void begin(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	CAN(cuDeviceGetDefaultMemPool, &pools[DEFAULT], device);
	CAN(cuMemPoolCreate, &pools[OWN], &props);
}

static uint64_t data(void)
{
	uint64_t sum = 0;
	for (int i = 0; i < POOLS; i++) {
		uint64_t reserved = 0;
		MUST(cuMemPoolGetAttribute, pools[i], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
		sum += reserved;
	}
	return sum;
}

static bool take(void)
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

static void free_all(void)
{
	while (count > 0)
		MUST(cuMemFreeAsync, pieces[--count], stream);
}

static void trim(void)
{
	MUST(cuStreamSynchronize, stream);
	for (int i = 0; i < POOLS; i++)
		MUST(cuMemPoolTrimTo, pools[i], 0);
}

static void give_back(void)
{
	free_all();
	trim();
}

static void after(void)
{
	free_all();
	step("freed data=%llu", (unsigned long long)data());
	trim();
	step("trimmed data=%llu", (unsigned long long)data());
}

static void end(void)
{
	MUST(cuMemPoolDestroy, pools[OWN]);
	MUST(cuStreamDestroy_v2, stream);
}

const struct allocpath pool = {
	.name = "pool", .begin = begin, .take = take, .data = data, .give_back = give_back, .end = end, .after = after};
