/* Virtual memory management: physical memory that is created and mapped, and freed when
 * neither a handle nor a mapping of it is left. */
#include "allocpaths.h"

static struct {
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	bool mapped, has_handle;
} pieces[PIECES];

static size_t count;
static CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
static uint64_t size; /* bytes of a piece, rounded up to the granularity */

static void vmm_begin(void)
{
	size_t granule;
	prop.location.id = device;
	CAN(cuMemGetAllocationGranularity, &granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	size = (piece + granule - 1) / granule * granule;
}

static uint64_t vmm_data(void)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < count; i++)
		sum += pieces[i].mapped || pieces[i].has_handle ? size : 0;
	return sum;
}

static bool vmm_create(void)
{
	if (!HAD(cuMemCreate, &pieces[count].handle, size, &prop, 0))
		return false;
	pieces[count].mapped = false;
	pieces[count++].has_handle = true;
	return true;
}

static void vmm_map(size_t i)
{
	CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	MUST(cuMemAddressReserve, &pieces[i].at, size, 0, 0, 0);
	MUST(cuMemMap, pieces[i].at, size, 0, pieces[i].handle, 0);
	pieces[i].mapped = true;
	MUST(cuMemSetAccess, pieces[i].at, size, &access, 1);
	driver_use(pieces[i].at, size);
}

static bool vmm_take(void)
{
	if (!vmm_create())
		return false;
	vmm_map(count - 1);
	return true;
}

static void vmm_release(size_t i)
{
	if (pieces[i].has_handle)
		MUST(cuMemRelease, pieces[i].handle);
	pieces[i].has_handle = false;
}

static void vmm_unmap(size_t i)
{
	MUST(cuMemUnmap, pieces[i].at, size);
	pieces[i].mapped = false;
	MUST(cuMemAddressFree, pieces[i].at, size);
}

static void vmm_give_back(void)
{
	for (; count > 0; count--) {
		vmm_unmap(count - 1);
		vmm_release(count - 1);
	}
}

static void vmm_hold(void)
{
	allocpath_hold(vmm_create);
	step("created data=%llu", (unsigned long long)vmm_data());
	for (size_t i = 0; i < count; i++)
		vmm_map(i);
	step("mapped data=%llu", (unsigned long long)vmm_data());
}

static void vmm_after(void)
{
	for (size_t i = 0; i < count; i++)
		vmm_release(i);
	step("released data=%llu", (unsigned long long)vmm_data());
	vmm_give_back();
	step("unmapped data=%llu", (unsigned long long)vmm_data());
}

const struct allocpath vmm = {.name = "vmm",
			      .begin = vmm_begin,
			      .take = vmm_take,
			      .data = vmm_data,
			      .give_back = vmm_give_back,
			      .hold = vmm_hold,
			      .after = vmm_after};
