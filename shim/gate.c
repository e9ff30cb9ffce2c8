#include "gate.h"

#include <errno.h>

#include "log.h"
#include "region/atomics.h"

static bool gate_ignored; /* gate_ignore was called; atomic */

bool gate_ignores(void) { return __atomic_load_n(&gate_ignored, __ATOMIC_RELAXED); }

void gate_ignore(void) { __atomic_store_n(&gate_ignored, true, __ATOMIC_RELAXED); }

/* gate_tell logs once for each sleep that a call waits. */
static void gate_tell(void)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	uint64_t sleep = load_acquire(&attach_region()->m->header.sleep);
	if (sleep_state(sleep) == RATION_AWAKE || __atomic_exchange_n(&p->told, 1, __ATOMIC_RELAXED))
		return;
	if (sleep_manual(sleep))
		log_warn("the job sleeps: a CUDA call waits until it is woken (ration wake JOB wakes it)");
	else
		log_warn("the job sleeps: a CUDA call waits until the job's memory is back on the GPU (ration why JOB says what keeps it)");
}

bool gate_closed(enum gate_mode mode)
{
	int saved = errno;
	uint64_t since = log_clock();
	if (gate_ignores())
		return false;
	gate_tell();
	if (mode == GATE_WAITS) {
		region_wait_awake(attach_region());
		log_wait(since, "the job to wake up");
		gate_opened();
	} else {
		region_ask_awake(attach_region());
	}
	errno = saved;
	return mode == GATE_ASKS;
}

/* The driver has let the call through, so the job is awake or about to be, and the next line is about
 * another sleep. Only while the job is falling asleep do calls pass before the driver's lock. */
void gate_opened(void)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	if (sleep_state(load_acquire(&attach_region()->m->header.sleep)) != RATION_FALLING)
		__atomic_store_n(&p->told, 0, __ATOMIC_RELAXED);
}
