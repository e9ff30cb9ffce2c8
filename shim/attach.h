/* A process's life in its job: joining at cuInit, forking, leaving at exit. */
#ifndef RATION_LIFE_H
#define RATION_LIFE_H

#include "config.h"
#include "hooks.h"
#include "mutex.h"
#include "region/region.h"

enum attach_state {
	ATTACH_COLD,   /* nothing was decided yet */
	ATTACH_ON,     /* attached: count */
	ATTACH_OFF,    /* nothing to do here, or RATION_FAIL=open: pass everything on */
	ATTACH_BROKEN, /* configured and unusable: refuse */
	ATTACH_LEFT,   /* the process is on its way out: pass everything on */
};

/* What a fork must not hand down, on a page of its own that the kernel empties in
 * the child: a child starts cold, whoever forked it and however. */
struct attach {
	uint32_t state;
	uint32_t opened; /* the region is mapped, with or without a slot */
	uint32_t blind;  /* it could not be, for somebody who only looks; said once */
	uint32_t nvml;   /* figure.c's */
	mutex lock;
};

extern struct attach *attach_page; /* never NULL */

static inline enum attach_state attach_state(void)
{
	struct attach *l = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	/* Acquire: whoever finds it on finds the region. Pairs with attach_set_state. */
	return (enum attach_state)__atomic_load_n(&l->state, __ATOMIC_ACQUIRE);
}

/* attach_enter is the slow side of ENTER: what to do in a call that takes memory
 * while we are not (known to be) on. */
enum attach_verdict { ATTACH_COUNT, ATTACH_PASS, ATTACH_DENY };
enum attach_verdict attach_enter(void);

/* ENTER is how a hook that takes or returns memory begins: it goes on only where
 * this process counts, and otherwise passes the call on, or denies it. */
#define ENTER(symbol, ...)                                                                                             \
	do {                                                                                                           \
		if (unlikely(attach_state() != ATTACH_ON)) {                                                               \
			enum attach_verdict verdict_ = attach_enter();                                                     \
			if (verdict_ == ATTACH_DENY)                                                                     \
				return CUDA_ERROR_OPERATING_SYSTEM;                                                    \
			if (verdict_ == ATTACH_PASS)                                                                     \
				return REAL(symbol, __VA_ARGS__);                                                      \
		}                                                                                                      \
	} while (0)

/* LEAVE_ALONE is the same for hooks that take nothing: they never join. */
#define LEAVE_ALONE(symbol, ...)                                                                                       \
	do {                                                                                                           \
		if (unlikely(attach_state() != ATTACH_ON))                                                                 \
			return REAL(symbol, __VA_ARGS__);                                                              \
	} while (0)

/* The region and the settings; only while on, or after attach_read_only. */
struct region *attach_region(void);
const struct config *attach_config(void);

/* attach_read_only maps the region without joining, for processes that only ask. */
bool attach_read_only(void);

/* attach_rejoin takes a new slot after ours was taken away. True if there is one
 * now, with fresh set where it is this call's. */
bool attach_rejoin(uint64_t lost, bool *fresh);

/* attach_host_pid is this process's PID as the host sees it, or 0. */
uint64_t attach_host_pid(void);

#endif
