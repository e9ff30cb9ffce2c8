#include "driver.h"
#include "fakegpu.h"
#include "share.h"

_Static_assert((int)FAKEGPU_CONTEXT == (int)KIND_CONTEXT && (int)FAKEGPU_MODULE == (int)KIND_MODULE && (int)FAKEGPU_DATA == (int)KIND_DATA,
	       "the same kinds");

/* KIND_COUNT is all kinds together. */
static int truth_of(int device, enum kind kind, uint64_t *mine, uint64_t *total)
{
	unsigned d;
	if (device_check(device) != CUDA_SUCCESS)
		return -1;
	d = device_index(device);
	if (mine != NULL)
		*mine = kind == KIND_COUNT ? machine_mine(d) : machine_kind(d, kind, false);
	if (total != NULL)
		*total = kind == KIND_COUNT ? machine_used(d) : machine_kind(d, kind, true);
	return 0;
}

EXPORT int fakegpu_truth(int device, uint64_t *mine, uint64_t *total) { return truth_of(device, KIND_COUNT, mine, total); }

EXPORT int fakegpu_truth_kind(int device, enum fakegpu_kind kind, uint64_t *mine, uint64_t *total)
{
	return (unsigned)kind < KIND_COUNT ? truth_of(device, (enum kind)kind, mine, total) : -1;
}

EXPORT int fakegpu_shared(int device, struct fakegpu_shared *out)
{
	if (device_check(device) != CUDA_SUCCESS)
		return -1;
	struct share_parts p = machine_share_parts(device_index(device));
	*out = (struct fakegpu_shared){p.lent, p.adopted, p.unlisted, p.orphaned};
	return 0;
}

EXPORT int64_t fakegpu_clock(uint64_t add_ns)
{
	if (driver_ready() != CUDA_SUCCESS)
		return -1;
	if (add_ns > 0)
		machine_add_time(add_ns);
	return (int64_t)clock_now(machine_clock());
}

EXPORT unsigned fakegpu_errors(void) { return report_errors(); }
EXPORT unsigned fakegpu_leaks(void) { return report_leaks(); }
