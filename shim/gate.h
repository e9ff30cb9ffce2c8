/* The gate before a call of the driver that uses a device. While the job sleeps, or is about to, such
 * a call asks for the job to be woken: the driver makes the call wait, and tells nobody. The gate
 * also shows when the process last used a device, since an idle job is put to sleep by that.
 * PROTOCOLS.md, *The gate*. */
#ifndef RATION_GATE_H
#define RATION_GATE_H

#include "attach.h"
#include "clock.h"
#include "region/words.h"

/* What gate_pass does if the job is not awake. */
enum gate_mode {
	GATE_ASKS,  /* it asks, and lets the call go on to the driver, which makes it wait */
	GATE_WAITS, /* it asks, and waits: for calls that would wait for a charge with a lock held */
};

/* gate_use shows a use of a device, at a time of clock_coarse. gate_closed is the way of a call
 * that finds the job not awake. */
void gate_use(uint64_t now);
bool gate_closed(enum gate_mode mode);

/* gate_opened is called after the driver's call if gate_pass or gate_look returned true. */
void gate_opened(void);

/* gate_ignore lets all calls of this process pass from now on: it is the process that wakes the job,
 * and may be in the job itself. gate_ignores reports whether that was called. */
void gate_ignore(void);
bool gate_ignores(void);

/* gate_look does what the mode says, for a call that only asks about a device. It returns whether the
 * driver makes the call wait. The caller must hold no lock. */
static inline bool gate_look(enum gate_mode mode)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	uint64_t *sleep = __atomic_load_n(&p->sleep, __ATOMIC_ACQUIRE);
	/* Sequentially consistent, after the store in gate_use: the process that puts the job to
	 * sleep changes this word first, and then reads the time of the last use. One of the two
	 * sees the other. Where gate_use is left out, another thread has shown the same time. */
	if (__builtin_expect(sleep && sleep_state(__atomic_load_n(sleep, __ATOMIC_SEQ_CST)) != RATION_AWAKE, 0))
		return gate_closed(mode);
	return false;
}

/* gate_pass shows that a device is used, and then does the same. */
static inline bool gate_pass(enum gate_mode mode)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	if (!__atomic_load_n(&p->sleep, __ATOMIC_ACQUIRE))
		return false;
	uint64_t now = clock_coarse();
	/* Acquire: pairs with gate_use. */
	if (__builtin_expect(__atomic_load_n(&p->used_ns, __ATOMIC_ACQUIRE) != now, 0))
		gate_use(now);
	return gate_look(mode);
}

#endif
