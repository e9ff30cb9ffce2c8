#include "capture.h"

#include "cannot.h"
#include "hold.h"
#include "hooks.h"
#include "region/abi.h"

static uint32_t capture_ever, capture_count; /* whether a capture ever began, and how many are under way; atomic */
static hold capture_holds;                   /* threads between capture_hold and capture_unhold */

void capture_begun(void)
{
	__atomic_store_n(&capture_ever, 1, __ATOMIC_RELAXED);
	cannot_begin(RATION_CANNOT_CAPTURE);
	__atomic_fetch_add(&capture_count, 1, __ATOMIC_SEQ_CST);
	hold_wait(&capture_holds);
}

bool capture_hold(void)
{
	hold_take(&capture_holds);
	if (!__atomic_load_n(&capture_count, __ATOMIC_SEQ_CST))
		return true;
	capture_unhold();
	return false;
}

void capture_unhold(void) { hold_drop(&capture_holds); }

void capture_ended(void)
{
	uint32_t n = __atomic_load_n(&capture_count, __ATOMIC_RELAXED);
	while (n && !__atomic_compare_exchange_n(&capture_count, &n, n - 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	if (n)
		cannot_end(RATION_CANNOT_CAPTURE, 1);
}

bool capture_seen(void) { return __atomic_load_n(&capture_ever, __ATOMIC_RELAXED); }

bool capture_any(void) { return __atomic_load_n(&capture_count, __ATOMIC_RELAXED) != 0; }

int capture_relax_always(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	return REAL(cuThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS ? mode : -1;
}

int capture_relax(void) { return capture_seen() ? capture_relax_always() : -1; }

void capture_restore(int mode)
{
	if (mode >= 0)
		REAL(cuThreadExchangeStreamCaptureMode, &mode);
}

bool capture_stream_valid(CUstream stream, bool per_thread)
{
	int status;
	return (per_thread ? REAL(cuStreamIsCapturing_ptsz, stream, &status) : REAL(cuStreamIsCapturing, stream, &status)) == CUDA_SUCCESS;
}
