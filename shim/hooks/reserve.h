/* Memory that is charged by what the driver has reserved for it: a pool's, and each
 * device's for graphs. How much that is only the driver knows, and it may wait, so it is
 * asked without a lock. shim/PROTOCOLS.md, *A pool's charge*, is the protocol. */
#ifndef RATION_RESERVE_H
#define RATION_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "mutex.h"
#include "region/atomics.h"

struct reserve {
	/* reserved asks the driver; false where it does not say. This and chunk, the steps in
	 * which it grows, are written once, before use. */
	bool (*reserved)(const struct reserve *r, uint64_t *bytes);
	uint64_t chunk;
	unsigned device;    /* the region's index; atomic */
	mutex lock;         /* LOCK_RESERVE, over what follows up to promised */
	bool absent;        /* the driver need not have it on the device: see charge_mark_absent */
	bool owed;          /* it was not lowered for the sake of a request: the last one does that */
	uint64_t seen;      /* bytes that are charged, and were reserved at the last answer; read without the lock, too */
	uint64_t announced; /* bytes that were granted to requests under way, and what one has found and asks for */
	uint64_t ungranted; /* of seen, bytes that were refused, and could not be undone yet; read without the lock, too */
	uint64_t shrinks;   /* how often seen became less */
	uint64_t promised;  /* bytes handed out, or wanted by requests under way; atomic, as are those that follow */
	uint64_t changes;   /* counts ends of requests and of promises, and changes of seen */
	uint32_t requests;  /* under way */
	uint32_t lookers;   /* threads that ask the driver beside a request */
};

/* reserve_promise begins a request of so many bytes. */
static inline void reserve_promise(struct reserve *r, uint64_t bytes)
{
	__atomic_fetch_add(&r->requests, 1, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&r->promised, bytes, __ATOMIC_SEQ_CST);
}

/* reserve_unpromise is for bytes that are freed, or not allocated after all. What they made
 * the driver reserve, in a request that is still under way, is no longer promised: an
 * answer of the driver from before counts no more. */
static inline void reserve_unpromise(struct reserve *r, uint64_t bytes)
{
	__atomic_fetch_add(&r->changes, 1, __ATOMIC_SEQ_CST);
	__atomic_fetch_sub(&r->promised, bytes, __ATOMIC_SEQ_CST);
}

/* reserve_has_room reports whether all that is promised is there. In this order: others may
 * promise more meanwhile; seen does not fall below what is promised, while a request is
 * under way. */
static inline bool reserve_has_room(const struct reserve *r)
{
	uint64_t seen = __atomic_load_n(&r->seen, __ATOMIC_SEQ_CST);
	return __atomic_load_n(&r->promised, __ATOMIC_SEQ_CST) <= seen && !load_relaxed(&r->ungranted);
}

/* reserve_grow charges, before the driver is asked, what is promised and lacks, but no more
 * than own, the request's own bytes, in whole chunks, and not less than least: CUDA_SUCCESS,
 * or what the call must return; then the request has ended. *growth is what was charged.
 * beyond is what is in use beside what was promised. */
int reserve_grow(struct reserve *r, uint64_t own, uint64_t beyond, uint64_t least, uint64_t *growth);

/* reserve_not_grown ends a request for which the driver has not allocated. reserve_grown is
 * for when it has. It returns what the driver has reserved beyond all that is charged; the
 * request has ended if that is 0. Otherwise it is the caller's to charge, by
 * reserve_charge_found or reserve_force_found, until it is. */
void reserve_not_grown(struct reserve *r, uint64_t growth);
uint64_t reserve_grown(struct reserve *r, uint64_t growth);

/* reserve_find_again is for when the driver may have let go of some of it before it was
 * charged. */
uint64_t reserve_find_again(struct reserve *r, uint64_t found);

/* reserve_charge_found asks the job for it: CUDA_SUCCESS and what is found now; or what the
 * call must return, and the caller undoes its allocation between reserve_undoing, which
 * returns how many bytes are to be left, and reserve_undone, which charges by force what
 * the driver has kept, as ungranted, and ends the request. */
int reserve_charge_found(struct reserve *r, uint64_t *found);
uint64_t reserve_undoing(struct reserve *r, uint64_t found);
void reserve_undone(struct reserve *r, uint64_t found, uint64_t left);
void reserve_force_found(struct reserve *r, uint64_t found);

/* reserve_cancel ends a request that did not ask the driver for anything. */
void reserve_cancel(struct reserve *r);

/* reserve_look makes the charge what is reserved, where the driver may have made it less.
 * False where other threads were too busy to tell, or a request has made it grow and is
 * about to charge that. */
bool reserve_look(struct reserve *r);

/* reserve_granted returns what is charged and was not refused. */
uint64_t reserve_granted(struct reserve *r);

/* reserve_shrinks returns how often it was seen to have become less. */
uint64_t reserve_shrinks(struct reserve *r);

/* reserve_mark_absent says that from now on the driver need not have it. */
void reserve_mark_absent(struct reserve *r);

/* reserve_drop returns all that is charged. */
void reserve_drop(struct reserve *r);

#endif
