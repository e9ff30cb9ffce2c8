/* A process's life in its job: joining at cuInit, forking, leaving at exit. */
#ifndef RATION_LIFE_H
#define RATION_LIFE_H

#include "config.h"
#include "hooks.h"
#include "mutex.h"
#include "region.h"

enum life_state {
	LIFE_COLD,   /* nothing was decided yet */
	LIFE_ON,     /* attached: count */
	LIFE_OFF,    /* nothing to do here, or RATION_FAIL=open: pass everything on */
	LIFE_BROKEN, /* configured and unusable: refuse */
	LIFE_LEFT,   /* the process is on its way out: pass everything on */
};

/* What a fork must not hand down, on a page of its own that the kernel empties in
 * the child: a child starts cold, whoever forked it and however. */
struct life {
	uint32_t state;
	uint32_t opened; /* the region is mapped, with or without a slot */
	uint32_t blind;  /* it could not be, for somebody who only looks; said once */
	uint32_t nvml;   /* figure.c's */
	mutex lock;
};

extern struct life *ration_life; /* never NULL */

static inline enum life_state life_state(void)
{
	struct life *l = __atomic_load_n(&ration_life, __ATOMIC_ACQUIRE);
	/* Acquire: whoever finds it on finds the region. Pairs with settle in life.c. */
	return (enum life_state)__atomic_load_n(&l->state, __ATOMIC_ACQUIRE);
}

/* life_enter is the slow side of ENTER: what to do in a call that takes memory
 * while we are not (known to be) on. */
enum life_verdict { LIFE_COUNT, LIFE_PASS, LIFE_DENY };
enum life_verdict life_enter(void);

/* ENTER is how a hook that takes or returns memory begins: it goes on only where
 * this process counts, and otherwise passes the call on, or denies it. */
#define ENTER(symbol, ...)                                                                                             \
	do {                                                                                                           \
		if (unlikely(life_state() != LIFE_ON)) {                                                               \
			enum life_verdict verdict_ = life_enter();                                                     \
			if (verdict_ == LIFE_DENY)                                                                     \
				return CUDA_ERROR_OPERATING_SYSTEM;                                                    \
			if (verdict_ == LIFE_PASS)                                                                     \
				return REAL(symbol, __VA_ARGS__);                                                      \
		}                                                                                                      \
	} while (0)

/* LEAVE_ALONE is the same for hooks that take nothing: they never join. */
#define LEAVE_ALONE(symbol, ...)                                                                                       \
	do {                                                                                                           \
		if (unlikely(life_state() != LIFE_ON))                                                                 \
			return REAL(symbol, __VA_ARGS__);                                                              \
	} while (0)

/* The region and the settings; only while on, or after life_look. */
struct region *life_region(void);
const struct config *life_config(void);

/* life_look maps the region without joining, for processes that only ask. */
bool life_look(void);

/* life_rejoin takes a new slot after ours was taken away. True if there is one
 * now, with fresh set where it is this call's. */
bool life_rejoin(uint64_t lost, bool *fresh);

/* life_host_pid is this process's PID as the host sees it, or 0. */
uint64_t life_host_pid(void);

#endif
