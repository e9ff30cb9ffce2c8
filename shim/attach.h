/* How a process belongs to its job: it joins at cuInit, starts anew in the child of a fork, and
 * leaves at exit. This file depends on the region and the settings, and on no hook. */
#ifndef RATION_ATTACH_H
#define RATION_ATTACH_H

#include "config.h"
#include "mutex.h"
#include "region/region.h"
#include "region/words.h"

enum attach_state {
	ATTACH_COLD,   /* nothing has been decided yet */
	ATTACH_ON,     /* attached: calls are counted */
	ATTACH_OFF,    /* no job, or RATION_FAIL=open: every call is passed on */
	ATTACH_BROKEN, /* a job that cannot be joined: calls that take memory are denied */
	ATTACH_LEFT,   /* the process is exiting: every call is passed on */
};

/* State that a fork child must not inherit. It is on a page of its own, which the kernel zeroes
 * in the child, so a child starts as ATTACH_COLD whichever way it was forked. */
struct attach_page {
	uint32_t state;      /* enum attach_state; written under lock, except ATTACH_LEFT */
	uint32_t opened;     /* the region is mapped, with or without a slot; under lock */
	uint32_t unreadable; /* opening the region only to read it failed, and was logged; under lock */
	uint32_t nvml;       /* whether NVML was started; owned by nvml.c */
	uint32_t looked;     /* a process that only read found no job of a policy's user; under lock */
	uint32_t compute;    /* the job has a share, a cap or a priority; written before state */
	uint32_t logged;     /* the sleep that gate.c has logged; atomic */
	uint32_t counts;     /* RATION_SLEEP_FAST: threads inside the driver are counted; written before state */
	uint32_t inside;     /* how many there are; owned by gate.c, atomic */
	uint32_t lane;       /* whether the library moves memory itself; owned by hooks/lane.c, atomic */
	uint32_t moving;     /* the library is moving device memory; owned by hooks/lane_move.c, atomic */
	mutex lock;          /* LOCK_ATTACH */
	uint64_t turn;       /* this process's turn in the host-PID lock, without beats, or 0; owned by hostpid.c, atomic */
	uint64_t *sleep;     /* the region's word sleep while the process is attached, and NULL otherwise; atomic */
};

extern struct attach_page *attach_page; /* never NULL */

static inline enum attach_state attach_state(void)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	/* Acquire: a thread that reads ATTACH_ON then sees the mapped region. Pairs with
	 * attach_set_state. */
	return (enum attach_state)__atomic_load_n(&p->state, __ATOMIC_ACQUIRE);
}

/* attach_on reports whether this process is attached to a job, so that its calls are counted. */
static inline bool attach_on(void) { return __builtin_expect(attach_state() == ATTACH_ON, 1); }

/* The word that attach_straight reads; atomic. It is the region's word sleep while this process is
 * attached to a job without a share, a cap or a priority, and its calls are not counted. Otherwise it
 * is a word that says no: the caller then finds out why. */
extern const uint64_t *attach_straight_word;

/* attach_straight reports whether a call that takes no memory may go straight to the driver: it has
 * nothing to count, and the job is awake. It costs each launch of each job two loads. Relaxed: a
 * process that puts the job to sleep gives calls that read the old word a second to reach the driver
 * (PROTOCOLS.md, *The gate*). */
static inline bool attach_straight(void)
{
	const uint64_t *word = __atomic_load_n(&attach_straight_word, __ATOMIC_RELAXED);
	return sleep_state(__atomic_load_n(word, __ATOMIC_RELAXED)) == RATION_AWAKE;
}

/* attach_has_job reports whether this process has a job, joined or not. It works before cuInit, when
 * a program first looks up a call, and always gives the same answer. */
bool attach_has_job(void);

/* attach_compute reports whether this process is attached to a job with a share, a cap or a
 * priority. The answer was fixed when it joined. */
static inline bool attach_compute(void)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	return __builtin_expect(__atomic_load_n(&p->compute, __ATOMIC_ACQUIRE) != 0, 0);
}

/* attach_turn returns the address of this process's turn in the host-PID lock. */
static inline uint64_t *attach_turn(void) { return &__atomic_load_n(&attach_page, __ATOMIC_ACQUIRE)->turn; }

/* attach_prepare reads the settings once, and returns the state. ATTACH_COLD means that there
 * is a job to join. starts is set before the driver is initialised: then the job's place is up
 * to date as well. */
enum attach_state attach_prepare(bool starts);

/* attach_end_promise lets the policy service take back the user's job, if attach_prepare got it and
 * this process does not join it. */
void attach_end_promise(void);

/* attach_join takes a slot, after attach_prepare, and returns the state.
 *
 * For this function and those below: they call reset once in the life of a process, after it
 * has opened the region and before it counts anything. reset must forget the state that a fork
 * handed down. */
enum attach_state attach_join(void (*reset)(void));

/* attach_read_only maps the region without taking a slot, for processes that only read it. It
 * returns whether the region is mapped. */
bool attach_read_only(void (*reset)(void));

/* attach_rejoin takes a new slot after ours was reaped; lost is the claim that no longer holds.
 * If this call takes the slot, it calls bring, which must charge to the new slot all that this
 * process holds; no other thread returns from attach_rejoin before that. It returns whether
 * there is a slot. attach_wait_rejoin waits until the thread that took the new slot has
 * finished bring. */
bool attach_rejoin(uint64_t lost, void (*bring)(struct region *r));
void attach_wait_rejoin(void);

/* The region and the settings. Call these only in state ATTACH_ON, or after attach_read_only. */
struct region *attach_region(void);
const struct config *attach_config(void);

/* attach_host_pid returns this process's PID as the host sees it, or 0. */
uint64_t attach_host_pid(void);

#endif
