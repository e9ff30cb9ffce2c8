#include "capture.h"

#include "hooks.h"

static uint32_t capture_ever, capture_count; /* whether there was one, and how many are under way; atomic */

/* Captures that this thread has begun, and no thread has ended where none is under way. */
static __thread uint32_t capture_thread __attribute__((tls_model("initial-exec")));

void capture_begun(void)
{
	if (!capture_any())
		capture_thread = 0;
	capture_thread++;
	__atomic_store_n(&capture_ever, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&capture_count, 1, __ATOMIC_RELAXED);
}

void capture_ended(void)
{
	uint32_t n = __atomic_load_n(&capture_count, __ATOMIC_RELAXED);
	if (capture_thread)
		capture_thread--;
	while (n && !__atomic_compare_exchange_n(&capture_count, &n, n - 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

bool capture_seen(void) { return __atomic_load_n(&capture_ever, __ATOMIC_RELAXED); }

bool capture_any(void) { return __atomic_load_n(&capture_count, __ATOMIC_RELAXED) != 0; }

bool capture_own(void) { return capture_any() && capture_thread; }

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
