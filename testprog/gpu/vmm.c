/* Virtual memory management: physical memory that is created, mapped, and gone when
 * neither a handle nor a mapping is left. */
#include "allocpaths.h"

static struct {
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	bool mapped, named; /* named: the handle is not released */
} pieces[PIECES];

static size_t count;
static CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
static uint64_t size; /* of a piece, in whole granules */

static void begin(void)
{
	size_t granule;
	prop.location.id = device;
	CAN(cuMemGetAllocationGranularity, &granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	size = (piece + granule - 1) / granule * granule;
}

static uint64_t data(void)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < count; i++)
		sum += pieces[i].mapped || pieces[i].named ? size : 0;
	return sum;
}

static bool create(void)
{
	if (!HAD(cuMemCreate, &pieces[count].handle, size, &prop, 0))
		return false;
	pieces[count].mapped = false;
	pieces[count++].named = true;
	return true;
}

static void map(size_t i)
{
	CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	MUST(cuMemAddressReserve, &pieces[i].at, size, 0, 0, 0);
	MUST(cuMemMap, pieces[i].at, size, 0, pieces[i].handle, 0);
	pieces[i].mapped = true;
	MUST(cuMemSetAccess, pieces[i].at, size, &access, 1);
	driver_use(pieces[i].at, size);
}

static bool take(void)
{
	if (!create())
		return false;
	map(count - 1);
	return true;
}

static void release(size_t i)
{
	if (pieces[i].named)
		MUST(cuMemRelease, pieces[i].handle);
	pieces[i].named = false;
}

static void unmap(size_t i)
{
	MUST(cuMemUnmap, pieces[i].at, size);
	pieces[i].mapped = false;
	MUST(cuMemAddressFree, pieces[i].at, size);
}

static void give_back(void)
{
	for (; count > 0; count--) {
		unmap(count - 1);
		release(count - 1);
	}
}

static void hold(void)
{
	allocpath_hold(create);
	step("created data=%llu", (unsigned long long)data());
	for (size_t i = 0; i < count; i++)
		map(i);
	step("mapped data=%llu", (unsigned long long)data());
}

static void after(void)
{
	for (size_t i = 0; i < count; i++)
		release(i);
	step("released data=%llu", (unsigned long long)data());
	give_back();
	step("unmapped data=%llu", (unsigned long long)data());
}

const struct allocpath vmm = {
	.name = "vmm", .begin = begin, .take = take, .data = data, .give_back = give_back, .hold = hold, .after = after};
