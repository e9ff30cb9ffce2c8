/* Allocating in the lane: lane.h. */
#include "hooks/lane_alloc.h"

#include "capture.h"
#include "hooks.h"
#include "hooks/lane.h"
#include "hooks/lane_move.h"
#include "log.h"

/* lane_possible reports whether the driver and the devices allow the lane. */
static bool lane_possible(void)
{
	static const enum ration_call calls[] = {CALL_cuMemCreate,          CALL_cuMemRelease,         CALL_cuMemMap,
						 CALL_cuMemUnmap,           CALL_cuMemAddressReserve,  CALL_cuMemAddressFree,
						 CALL_cuMemSetAccess,       CALL_cuMemAllocHost_v2,    CALL_cuMemFreeHost,
						 CALL_cuMemcpyDtoHAsync_v2, CALL_cuMemcpyHtoDAsync_v2, CALL_cuCtxSetCurrent,
						 CALL_cuStreamCreate,       CALL_cuStreamSynchronize,  CALL_cuStreamDestroy_v2};
	int devices = 0, mapped = 0;
	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
		if (!ration_real(calls[i]))
			return false;
	return REAL(cuDeviceGetCount, &devices) == CUDA_SUCCESS && devices == 1 &&
	       REAL(cuDeviceGetAttribute, &mapped, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0) == CUDA_SUCCESS && mapped;
}

/* lane_used decides once whether the lane is used. A thread that comes while another one decides goes
 * the ordinary way. */
static bool lane_used(void)
{
	uint32_t use = __atomic_load_n(lane_use(), __ATOMIC_ACQUIRE), unknown = LANE_UNKNOWN;
	if (likely(use != LANE_UNKNOWN))
		return use == LANE_USED;
	if (!__atomic_compare_exchange_n(lane_use(), &unknown, LANE_DECIDING, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return false;
	bool used = lane_possible() && lane_start();
	if (!used)
		log_debug("RATION_SLEEP_FAST has no effect: the process sees several devices, the driver cannot map memory, or no "
			  "thread can be started");
	__atomic_store_n(lane_use(), used ? LANE_USED : LANE_UNUSED, __ATOMIC_RELEASE);
	return used;
}

bool lane_alloc(const struct alloc_target *t, uint64_t bytes, CUdeviceptr *out)
{
	const struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	struct alloc_record r = {.bytes = bytes, .context = t->context};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	if (likely(!__atomic_load_n(&p->counts, __ATOMIC_ACQUIRE)) || !t->device || !t->context || bytes < LANE_LEAST ||
	    bytes % t->device->block_bytes || t->device->block_bytes == RATION_UNIT || capture_any() || !lane_used())
		return false;
	if (REAL(cuMemAddressReserve, &at, bytes, 0, 0, 0) != CUDA_SUCCESS)
		return false;
	if (lane_map(at, bytes, &handle) != CUDA_SUCCESS) {
		REAL(cuMemAddressFree, at, bytes);
		return false;
	}
	r.key = at;
	r.other = handle;
	if (!alloc_table_put(&lane_blocks, &r)) {
		lane_unmap(at, bytes, handle);
		REAL(cuMemAddressFree, at, bytes);
		return false;
	}
	*out = at;
	return true;
}
