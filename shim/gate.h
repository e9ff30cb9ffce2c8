/* The gate before a call of the driver that uses a device. While the job sleeps, or is about to, such
 * a call asks for the job to be woken: the driver makes the call wait, and tells nobody. Launches and
 * copies look at attach_straight first. PROTOCOLS.md, *The gate*. */
#ifndef RATION_GATE_H
#define RATION_GATE_H

#include "attach.h"
#include "region/words.h"

/* What gate_pass does if the job is not awake. */
enum gate_mode {
	GATE_ASKS,  /* it asks, and lets the call go on to the driver, which makes it wait */
	GATE_WAITS, /* it asks, and waits: for calls that would wait for a charge with a lock held */
};

/* gate_closed is the way of a call that finds the job not awake. */
void gate_closed(enum gate_mode mode);

/* gate_ignore lets all calls of this process pass from now on: it is the process that wakes the job,
 * and may be in the job itself. gate_ignores reports whether that was called. */
void gate_ignore(void);
bool gate_ignores(void);

/* gate_pass does what the mode says. The caller must hold no lock. */
static inline void gate_pass(enum gate_mode mode)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	uint64_t *sleep = __atomic_load_n(&p->sleep, __ATOMIC_ACQUIRE);
	/* Sequentially consistent, after the store in region_show_cannot: the process that puts the
	 * job to sleep changes this word first, and then reads what was shown. One of the two sees
	 * the other. */
	if (__builtin_expect(sleep && sleep_state(__atomic_load_n(sleep, __ATOMIC_SEQ_CST)) != RATION_AWAKE, 0))
		gate_closed(mode);
}

/* gate_pass_again follows a wait between gate_enter and the driver's call, and asks: the job may have
 * fallen asleep meanwhile. A thread that is counted has kept it awake. */
void gate_pass_again(void);

/* What gate_enter did, for gate_leave. */
struct gate_stay {
	bool counted;
	int cancel; /* the thread's cancellation state before, if it is counted */
};

/* gate_count is gate_enter in a process whose calls are counted. */
struct gate_stay gate_count(void);
void gate_uncount(struct gate_stay stay);

/* gate_enter is gate_pass, and gate_leave follows the driver's call. With RATION_SLEEP_FAST, calls are
 * counted between the two, and wait at the gate whatever the mode: the library unmaps the memory that
 * they use before the driver makes them wait. They are not cancelled meanwhile. */
static inline struct gate_stay gate_enter(enum gate_mode mode)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	if (__builtin_expect(__atomic_load_n(&p->counts, __ATOMIC_ACQUIRE) != 0, 0))
		return gate_count();
	gate_pass(mode);
	return (struct gate_stay){.counted = false};
}

static inline void gate_leave(struct gate_stay stay)
{
	if (__builtin_expect(stay.counted, 0))
		gate_uncount(stay);
}

/* gate_step is called when this thread waits, in a call, for the job to wake up or for a lock, and
 * when the job is awake: it does not count meanwhile. */
void gate_step(bool waits);

/* gate_step_for_lock is mutex_on_wait. If the job is not awake after the wait, it waits until it is. */
void gate_step_for_lock(bool waits);

/* gate_empty reports whether no call is counted. If the job is not awake, none will be. */
bool gate_empty(void);

#endif
