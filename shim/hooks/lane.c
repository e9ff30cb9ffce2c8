/* The blocks of the lane: lane.h. */
#include "hooks/lane.h"

#include "capture.h"
#include "hooks.h"
#include "hooks/context_table.h"
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

/* lane_free_block gives a block back after all work that may use it has ended: cuMemUnmap does not
 * wait for that. */
static int lane_free_block(CUdeviceptr at)
{
	struct alloc_record block;
	if (!alloc_table_take(&lane_blocks, at, &block))
		return CUDA_ERROR_INVALID_VALUE;
	int result = lane_release(&block);
	if (result != CUDA_SUCCESS)
		alloc_table_put(&lane_blocks, &block);
	return result;
}

static bool lane_late; /* there may be records with RECORD_FREED; atomic */

int lane_free(struct alloc_record *r)
{
	int result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (r->flags & RECORD_FREED)
		return CUDA_ERROR_INVALID_VALUE;
	if (capture_hold()) {
		result = REAL(cuCtxSynchronize);
		capture_unhold();
	}
	if (result == CUDA_SUCCESS)
		return lane_free_block(r->key);
	if (result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
		return result;
	r->flags |= RECORD_FREED;
	return CUDA_SUCCESS;
}

static bool lane_find_freed(struct alloc_record *r, void *key)
{
	if (r->flags & RECORD_FREED)
		*(CUdeviceptr *)key = r->key;
	return true;
}

/* lane_wait_all waits for the work of all contexts, and returns whether no capture kept it from that. */
static bool lane_wait_all(void)
{
	if (!capture_hold())
		return false;
	bool done = contexts_synchronise();
	capture_unhold();
	return done;
}

void lane_free_late(void)
{
	while (unlikely(__atomic_load_n(&lane_late, __ATOMIC_RELAXED)) && __atomic_exchange_n(&lane_late, false, __ATOMIC_SEQ_CST)) {
		CUdeviceptr at = 0;
		alloc_table_sweep(&context_addresses, lane_find_freed, &at);
		struct alloc_record r = context_free_begin(&context_addresses, at);
		if (!r.key) /* none is left, or another thread has it */
			return;
		bool waited = lane_wait_all(), gone = waited && (lane_free_block(at) == CUDA_SUCCESS || !lane_has(at));
		if (waited)
			r.flags &= (uint16_t)~RECORD_FREED; /* what the driver does not take stays, as long as the process */
		if (context_free_end(&context_addresses, &r, gone))
			context_return(&r);
		__atomic_store_n(&lane_late, true, __ATOMIC_SEQ_CST);
		if (!waited)
			return;
	}
}

void lane_keep_freed(const struct alloc_record *r)
{
	context_free_end(&context_addresses, r, false);
	__atomic_store_n(&lane_late, true, __ATOMIC_SEQ_CST);
	lane_free_late(); /* the capture may have ended meanwhile */
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
