/* The blocks of the lane: lane.h. */
#include "hooks/lane.h"

#include "hooks.h"
#include "log.h"

struct alloc_table lane_blocks;

/* The process sees one device, whose ordinal is 0: other devices would need access to the memory, too. */
static const CUmemAllocationProp lane_prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

int lane_map(CUdeviceptr at, uint64_t bytes, CUmemGenericAllocationHandle *out)
{
	CUmemAccessDesc access = {.location = lane_prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	int result = REAL(cuMemCreate, &handle, bytes, &lane_prop, 0);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemMap, at, bytes, 0, handle, 0);
	if (result == CUDA_SUCCESS) {
		result = REAL(cuMemSetAccess, at, bytes, &access, 1);
		if (result != CUDA_SUCCESS)
			REAL(cuMemUnmap, at, bytes);
	}
	if (result != CUDA_SUCCESS)
		REAL(cuMemRelease, handle);
	*out = handle;
	return result;
}

bool lane_unmap(CUdeviceptr at, uint64_t bytes, CUmemGenericAllocationHandle handle)
{
	if (REAL(cuMemUnmap, at, bytes) != CUDA_SUCCESS)
		return false;
	if (REAL(cuMemRelease, handle) != CUDA_SUCCESS)
		log_warn("the driver keeps %llu bytes of a block that was freed", (unsigned long long)bytes);
	return true;
}

/* lane_release gives a block and its address back to the driver. */
static int lane_release(const struct alloc_record *r)
{
	if (!lane_unmap(r->key, r->bytes, r->other))
		return CUDA_ERROR_INVALID_VALUE;
	REAL(cuMemAddressFree, r->key, r->bytes);
	return CUDA_SUCCESS;
}

int lane_free(CUdeviceptr at)
{
	struct alloc_record r;
	/* cuMemUnmap does not wait for kernels that use the memory. */
	int result = REAL(cuCtxSynchronize);
	if (result != CUDA_SUCCESS)
		return result;
	if (!alloc_table_take(&lane_blocks, at, &r))
		return CUDA_ERROR_INVALID_VALUE;
	result = lane_release(&r);
	if (result != CUDA_SUCCESS)
		alloc_table_put(&lane_blocks, &r);
	return result;
}

/* Finds a block: that which holds an address, or any of a context. */
struct lane_search {
	CUdeviceptr at;
	uint32_t context; /* 0: by the address */
	struct alloc_record found;
};

static bool lane_compare(struct alloc_record *r, void *arg)
{
	struct lane_search *s = arg;
	bool takes = !s->found.key && s->context && r->context == s->context;
	if (takes || (!s->context && s->at - r->key < r->bytes))
		s->found = *r;
	return !takes;
}

bool lane_has(CUdeviceptr at)
{
	struct lane_search s = {.at = at};
	if (__atomic_load_n(lane_use(), __ATOMIC_ACQUIRE) == LANE_USED)
		alloc_table_sweep(&lane_blocks, lane_compare, &s);
	return s.found.key != 0;
}

void lane_context_ended(uint32_t context)
{
	if (__atomic_load_n(lane_use(), __ATOMIC_ACQUIRE) != LANE_USED)
		return;
	for (;;) {
		struct lane_search s = {.context = context};
		alloc_table_sweep(&lane_blocks, lane_compare, &s);
		if (!s.found.key)
			return;
		lane_release(&s.found);
	}
}
