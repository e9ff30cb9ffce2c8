/* How a process belongs to its job: it joins at cuInit, starts anew in the child of a
 * fork, and leaves at exit. This file knows the region and the settings, and no hook. */
#ifndef RATION_ATTACH_H
#define RATION_ATTACH_H

#include "config.h"
#include "mutex.h"
#include "region/region.h"

enum attach_state {
	ATTACH_COLD,   /* nothing has been decided yet */
	ATTACH_ON,     /* attached: calls are counted */
	ATTACH_OFF,    /* no job, or RATION_FAIL=open: every call is passed on */
	ATTACH_BROKEN, /* a job that cannot be joined: calls that take memory are denied */
	ATTACH_LEFT,   /* the process is exiting: every call is passed on */
};

/* What a fork must not hand down, on a page of its own that the kernel zeroes in the
 * child, so that a child starts cold however it was forked. */
struct attach_page {
	uint32_t state;      /* enum attach_state; written under lock, but for ATTACH_LEFT */
	uint32_t opened;     /* the region is mapped, with or without a slot; under lock */
	uint32_t unreadable; /* opening it only to read failed, and was logged; under lock */
	uint32_t nvml;       /* whether NVML was started; nvml.c's */
	uint32_t compute;    /* the job has a share or a cap: launches are hooked; written before state */
	mutex lock;          /* LOCK_ATTACH */
	uint64_t turn;       /* this process's in the host-PID lock, without beats, or 0; hostpid.c's, atomic */
};

extern struct attach_page *attach_page; /* never NULL */

static inline enum attach_state attach_state(void)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	/* Acquire: a thread that finds it on finds the region. Pairs with attach_set_state. */
	return (enum attach_state)__atomic_load_n(&p->state, __ATOMIC_ACQUIRE);
}

/* attach_on reports whether this process counts. */
static inline bool attach_on(void) { return __builtin_expect(attach_state() == ATTACH_ON, 1); }

/* attach_wants_compute reports whether this process's job has a share or a cap, also before
 * it has joined: config_wants_compute. */
bool attach_wants_compute(void);

/* attach_compute reports whether this process is attached to a job with a share or a cap, as
 * it was when the process first looked a launch up, or joined. */
static inline bool attach_compute(void)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	return __builtin_expect(__atomic_load_n(&p->compute, __ATOMIC_ACQUIRE) != 0, 0);
}

/* attach_turn is where this process's turn in the host-PID lock is. */
static inline uint64_t *attach_turn(void) { return &__atomic_load_n(&attach_page, __ATOMIC_ACQUIRE)->turn; }

/* attach_prepare reads the settings once, and returns the state. ATTACH_COLD: there is a
 * job to join. */
enum attach_state attach_prepare(void);

/* attach_join takes a slot, after attach_prepare, and returns the state.
 *
 * Here and below: reset is called once in the life of a process, when it has opened the
 * region and before it counts anything; what a fork handed down is forgotten there. */
enum attach_state attach_join(void (*reset)(void));

/* attach_read_only maps the region without joining, for processes that only read. */
bool attach_read_only(void (*reset)(void));

/* attach_rejoin takes a new slot after ours was reaped; lost is the claim that no longer
 * holds. Where this call took it, bring charges to it what this process holds, before any
 * other thread comes back from here. It returns whether there is a slot.
 * attach_wait_rejoin is for a thread that has found the new slot without that. */
bool attach_rejoin(uint64_t lost, void (*bring)(struct region *r));
void attach_wait_rejoin(void);

/* The region and the settings; only while on, or after attach_read_only. */
struct region *attach_region(void);
const struct config *attach_config(void);

/* attach_host_pid returns this process's PID as the host sees it, or 0. */
uint64_t attach_host_pid(void);

#endif
