/* Linear memory: plain, of odd sizes, pitched and managed. */
#include "allocpaths.h"

static struct {
	CUdeviceptr at;
	uint64_t bytes;
} pieces[PIECES];

static size_t count;
static uint64_t held;

static void linear_keep(CUdeviceptr at, uint64_t bytes)
{
	pieces[count].at = at;
	pieces[count++].bytes = bytes;
	held += bytes;
	driver_use(at, bytes);
}

static uint64_t linear_data(void) { return held; }

static void linear_give_back(void)
{
	while (count > 0)
		MUST(cuMemFree_v2, pieces[--count].at);
	held = 0;
}

static bool linear_take_plain(void)
{
	CUdeviceptr at;
	if (!HAD(cuMemAlloc_v2, &at, piece))
		return false;
	linear_keep(at, piece);
	return true;
}

/* Sizes that the driver rounds up, by a third if its blocks are 2 MiB: the rounded size
 * must be counted. A piece consists of many. */
static bool linear_take_odd(void)
{
	enum { EACH = 3 << 20, SHARE = 4 << 20 };
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	size_t granule;
	CAN(cuMemGetAllocationGranularity, &granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	for (uint64_t taken = 0; taken < piece; taken += SHARE) {
		CUdeviceptr at;
		if (!HAD(cuMemAlloc_v2, &at, EACH))
			return false;
		linear_keep(at, EACH);
		held += (EACH + granule - 1) / granule * granule - EACH;
	}
	return true;
}

/* Lines that are shorter than the pitch: the pitch must be counted. */
static bool linear_take_pitch(void)
{
	enum { WIDTH = 1000, LIKELY_PITCH = 1024, ELEMENT = 4 };
	CUdeviceptr at;
	size_t line, height = piece / LIKELY_PITCH;
	if (!HAD(cuMemAllocPitch_v2, &at, &line, WIDTH, height, ELEMENT))
		return false;
	linear_keep(at, line * height);
	return true;
}

/* Managed memory is counted as if it were on the device, wherever it is. */
static bool linear_take_managed(void)
{
	CUdeviceptr at;
	if (!HAD(cuMemAllocManaged, &at, piece, CU_MEM_ATTACH_GLOBAL))
		return false;
	CUresult moved = cuMemPrefetchAsync(at, piece, device, NULL);
	if (moved == CUDA_ERROR_INVALID_DEVICE)
		skip("cuMemPrefetchAsync: managed memory is not moved on this device (%d)", moved);
	driver_can(moved, "cuMemPrefetchAsync");
	linear_keep(at, piece);
	return true;
}

const struct allocpath linear = {.name = "linear", .take = linear_take_plain, .data = linear_data, .give_back = linear_give_back};
const struct allocpath odd = {.name = "odd", .take = linear_take_odd, .data = linear_data, .give_back = linear_give_back};
const struct allocpath pitch = {.name = "pitch", .take = linear_take_pitch, .data = linear_data, .give_back = linear_give_back};
const struct allocpath managed = {.name = "managed", .take = linear_take_managed, .data = linear_data, .give_back = linear_give_back};
