#include "capture.h"

#include "hooks.h"

static uint32_t capture_any; /* atomic */

void capture_begun(void) { __atomic_store_n(&capture_any, 1, __ATOMIC_RELAXED); }

bool capture_seen(void) { return __atomic_load_n(&capture_any, __ATOMIC_RELAXED); }

int capture_relax(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	return capture_seen() && REAL(cuThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS ? mode : -1;
}

void capture_restore(int mode)
{
	if (mode >= 0)
		REAL(cuThreadExchangeStreamCaptureMode, &mode);
}
