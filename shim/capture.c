#include "capture.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cannot.h"
#include "hooks.h"
#include "region/abi.h"

static uint32_t capture_ever, capture_count; /* whether a capture ever began, and how many are under way; atomic */
static uint32_t capture_holds;               /* threads between capture_hold and capture_unhold; a futex */
/* How often, and for how many ns each time, the begin of a capture waits for those: a second. */
enum { CAPTURE_WAITS = 100, CAPTURE_WAIT_NS = 10000000 };

void capture_begun(void)
{
	__atomic_store_n(&capture_ever, 1, __ATOMIC_RELAXED);
	cannot_begin(RATION_CANNOT_CAPTURE);
	/* Sequentially consistent: a thread counts its capture and then reads capture_holds; capture_hold
	 * does it the other way round. One of the two sees the other. */
	__atomic_fetch_add(&capture_count, 1, __ATOMIC_SEQ_CST);
	uint32_t n;
	for (unsigned i = 0; (n = __atomic_load_n(&capture_holds, __ATOMIC_SEQ_CST)) && i < CAPTURE_WAITS; i++)
		syscall(SYS_futex, &capture_holds, FUTEX_WAIT_PRIVATE, n, &(struct timespec){0, CAPTURE_WAIT_NS}, NULL, 0);
}

bool capture_hold(void)
{
	__atomic_fetch_add(&capture_holds, 1, __ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&capture_count, __ATOMIC_SEQ_CST))
		return true;
	capture_unhold();
	return false;
}

void capture_unhold(void)
{
	/* A thread that waits has counted its capture before. */
	if (!__atomic_sub_fetch(&capture_holds, 1, __ATOMIC_SEQ_CST) && __atomic_load_n(&capture_count, __ATOMIC_SEQ_CST))
		syscall(SYS_futex, &capture_holds, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

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
