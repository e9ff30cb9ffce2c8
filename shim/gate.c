#include "gate.h"

#include <errno.h>
#include <pthread.h>

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
	uint32_t count = (uint32_t)sleep_count(sleep);
	if (sleep_state(sleep) == RATION_AWAKE || __atomic_exchange_n(&p->logged, count, __ATOMIC_RELAXED) == count)
		return;
	if (sleep_manual(sleep))
		log_warn("the job sleeps: a CUDA call waits until it is woken (ration wake JOB wakes it)");
	else
		log_warn("the job sleeps: a CUDA call waits until the job's memory is back on the GPU (ration why JOB says what keeps it)");
}

void gate_closed(enum gate_mode mode)
{
	int saved = errno;
	uint64_t since = log_clock();
	if (gate_ignores())
		return;
	gate_tell();
	if (mode == GATE_WAITS) {
		region_wait_awake(attach_region());
		log_wait(since, "the job to wake up");
	} else {
		region_ask_awake(attach_region());
	}
	errno = saved;
}

static __thread bool gate_counted __attribute__((tls_model("initial-exec"))); /* this thread is inside */

static void gate_add(uint32_t n)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	__atomic_fetch_add(&p->inside, n, __ATOMIC_SEQ_CST);
}

/* A call counts itself and then reads sleep; the process that puts the job to sleep changes that word,
 * and then the lane's thread reads the count. One of the two sees the other. */
struct gate_stay gate_count(void)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	struct gate_stay stay = {.counted = !gate_counted};
	while (stay.counted) {
		uint64_t *sleep = __atomic_load_n(&p->sleep, __ATOMIC_ACQUIRE);
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &stay.cancel);
		gate_add(1);
		gate_counted = true;
		if (!sleep || sleep_state(__atomic_load_n(sleep, __ATOMIC_SEQ_CST)) == RATION_AWAKE)
			break;
		gate_uncount(stay);
		stay.counted = !gate_ignores();
		gate_closed(GATE_WAITS);
	}
	return stay;
}

void gate_uncount(struct gate_stay stay)
{
	gate_counted = false;
	gate_add(-1u);
	pthread_setcancelstate(stay.cancel, NULL);
}

void gate_pass_again(void)
{
	if (!gate_counted)
		gate_pass(GATE_ASKS);
}

void gate_step(bool waits)
{
	if (gate_counted)
		gate_add(waits ? -1u : 1u);
}

void gate_step_for_lock(bool waits)
{
	gate_step(waits);
	if (!waits && gate_counted)
		region_wait_awake(attach_region());
}

bool gate_empty(void)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	return __atomic_load_n(&p->inside, __ATOMIC_SEQ_CST) == 0;
}
