/* Synchronising: this is when pools release memory. Driver overhead is read here as well as
 * beside allocations, since a program may allocate everything in its first second and only
 * compute from then on. To read the coarse clock takes a few nanoseconds; to wait for a device
 * takes microseconds. */
#include "attach.h"
#include "compute/compute.h"
#include "compute/rest.h"
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

/* SYNC makes the driver's call, which waits for the launches of a stream, and returns its result. During
 * the call this process counts as having work. */
#define SYNC(stream_, ...)                                            \
	({                                                            \
		uint64_t since_ = pools_stamp();                      \
		struct device *device_ = compute_wait_begin(stream_); \
		int result_ = REAL(__VA_ARGS__);                      \
		compute_wait_end(device_);                            \
		sync_done(result_, since_);                           \
	})

int cuCtxSynchronize(void) { return SYNC(REST_OF_CONTEXT, cuCtxSynchronize); }
int cuCtxSynchronize_v2(CUcontext context)
{
	CUcontext current = NULL;
	bool is = REAL(cuCtxGetCurrent, &current) == CUDA_SUCCESS && current == context;
	return SYNC(is ? REST_OF_CONTEXT : REST_OF_NOTHING, cuCtxSynchronize_v2, context);
}
int cuStreamSynchronize(CUstream stream) { return SYNC(stream, cuStreamSynchronize, stream); }
int cuStreamSynchronize_ptsz(CUstream stream) { return SYNC(stream ? stream : CU_STREAM_PER_THREAD, cuStreamSynchronize_ptsz, stream); }
int cuEventSynchronize(CUevent event) { return SYNC(REST_OF_NOTHING, cuEventSynchronize, event); }
