/* Synchronising: when pools give memory back. What the driver took by itself is read here
 * as well as beside allocations: a program that has all it needs in its first second only
 * computes from then on. Reading the coarse clock takes a few nanoseconds, where waiting
 * for a device takes microseconds. */
#include "attach.h"
#include "compute/compute.h"
#include "hooks.h"
#include "hooks/pool.h"
#include "overhead.h"

static int sync_done(int result, uint64_t since)
{
	if (pools_shrink_expected() && result == CUDA_SUCCESS && attach_on())
		pools_synchronised(RATION_DEVICES, since);
	overhead_synchronised();
	return result;
}

/* SYNC is the driver's call, for the length of which this process has work. */
#define SYNC(...)                                              \
	({                                                     \
		uint64_t since_ = pools_stamp();               \
		struct device *device_ = compute_wait_begin(); \
		int result_ = REAL(__VA_ARGS__);               \
		compute_wait_end(device_);                     \
		sync_done(result_, since_);                    \
	})

int cuCtxSynchronize(void) { return SYNC(cuCtxSynchronize); }
int cuCtxSynchronize_v2(CUcontext context) { return SYNC(cuCtxSynchronize_v2, context); }
int cuStreamSynchronize(CUstream stream) { return SYNC(cuStreamSynchronize, stream); }
int cuStreamSynchronize_ptsz(CUstream stream) { return SYNC(cuStreamSynchronize_ptsz, stream); }
int cuEventSynchronize(CUevent event) { return SYNC(cuEventSynchronize, event); }
