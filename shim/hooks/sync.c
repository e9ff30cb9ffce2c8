/* Synchronising: this is when pools release memory. Driver overhead is read here as well as
 * beside allocations, since a program may allocate everything in its first second and only
 * compute from then on. To read the coarse clock takes a few nanoseconds; to wait for a device
 * takes microseconds. */
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

/* SYNC makes the driver's call and returns its result. During the call this process counts as
 * having work. */
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
