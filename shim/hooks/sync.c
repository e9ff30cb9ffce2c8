/* Synchronising: when pools give memory back. What the driver took by itself is read here
 * as well as beside allocations: a program that has all it needs in its first second only
 * computes from then on. Reading the coarse clock takes a few nanoseconds, where waiting
 * for a device takes microseconds. */
#include "attach.h"
#include "hooks.h"
#include "hooks/pool.h"
#include "overhead.h"

static int sync_done(int result)
{
	if (pools_shrink_expected() && result == CUDA_SUCCESS && attach_on())
		pools_synchronised(RATION_DEVICES);
	overhead_synchronised();
	return result;
}

int cuCtxSynchronize(void) { return sync_done(REAL(cuCtxSynchronize)); }
int cuCtxSynchronize_v2(CUcontext context) { return sync_done(REAL(cuCtxSynchronize_v2, context)); }
int cuStreamSynchronize(CUstream stream) { return sync_done(REAL(cuStreamSynchronize, stream)); }
int cuStreamSynchronize_ptsz(CUstream stream) { return sync_done(REAL(cuStreamSynchronize_ptsz, stream)); }
int cuEventSynchronize(CUevent event) { return sync_done(REAL(cuEventSynchronize, event)); }
