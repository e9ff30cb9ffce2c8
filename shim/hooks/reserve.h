/* Memory that is charged by the bytes that the driver has reserved for it: a pool, or the
 * graphs of a device. Only the driver knows that number, and the question may block, so it is
 * asked without a lock. shim/PROTOCOLS.md, *A pool's charge*, describes the protocol. */
#ifndef RATION_RESERVE_H
#define RATION_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "mutex.h"
#include "region/atomics.h"

struct reserve {
	/* reserved asks the driver for the reserved bytes, and returns false if the driver does
	 * not tell. chunk is the step in which the memory grows, in bytes. Both are written
	 * once, before use. */
	bool (*reserved)(const struct reserve *r, uint64_t *bytes);
	uint64_t chunk;
	unsigned device;    /* the region's index; atomic */
	mutex lock;         /* LOCK_RESERVE; protects the fields up to promised */
	bool absent;        /* the bytes need not be on the device: see charge_mark_absent */
	bool owed;          /* the charge was not lowered because of a request under way: the last one does that */
	uint64_t seen;      /* bytes that are charged and were reserved at the last answer; also read without the lock */
	uint64_t announced; /* bytes granted to requests under way, and growth that one of them found and charges */
	uint64_t ungranted; /* part of seen: bytes that were refused and could not be undone yet; also read without the lock */
	uint64_t shrinks;   /* counts how often seen became less */
	uint64_t promised;  /* bytes handed out, or wanted by requests under way; atomic, as are the fields below */
	uint64_t changes;   /* counts ends of requests and of promises, and changes of seen */
	uint32_t requests;  /* requests under way */
	uint32_t lookers;   /* threads that ask the driver outside a request */
};

/* reserve_promise begins a request for so many bytes. */
static inline void reserve_promise(struct reserve *r, uint64_t bytes)
{
	__atomic_fetch_add(&r->requests, 1, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&r->promised, bytes, __ATOMIC_SEQ_CST);
}

/* reserve_unpromise takes bytes out of promised: they were freed, or not allocated after all.
 * If they made the driver reserve memory in a request that is still under way, that memory is
 * not promised any more, so the change invalidates the driver's earlier answers. */
static inline void reserve_unpromise(struct reserve *r, uint64_t bytes)
{
	__atomic_fetch_add(&r->changes, 1, __ATOMIC_SEQ_CST);
	__atomic_fetch_sub(&r->promised, bytes, __ATOMIC_SEQ_CST);
}

/* reserve_has_room reports whether the charged bytes cover all that is promised. seen must be
 * read first: others may promise more meanwhile, and while a request is under way seen does not
 * fall below promised. */
static inline bool reserve_has_room(const struct reserve *r)
{
	uint64_t seen = __atomic_load_n(&r->seen, __ATOMIC_SEQ_CST);
	return __atomic_load_n(&r->promised, __ATOMIC_SEQ_CST) <= seen && !load_relaxed(&r->ungranted);
}

/* reserve_grow charges the bytes that are promised and not covered, before the driver is asked.
 * It charges no more than own (the request's own bytes, in whole chunks) and no less than
 * least. beyond is the number of bytes in use in addition to promised. It returns CUDA_SUCCESS,
 * with the charged bytes in *growth, or the error that the call must return; then the request
 * has ended. */
int reserve_grow(struct reserve *r, uint64_t own, uint64_t beyond, uint64_t least, uint64_t *growth);

/* reserve_not_grown ends a request for which the driver has not allocated. reserve_grown
 * follows a successful allocation. It returns how many bytes the driver has reserved beyond all
 * that is charged. If that is 0, the request has ended. Otherwise the caller must charge them,
 * with reserve_charge_found or reserve_force_found, until nothing more is found. */
void reserve_not_grown(struct reserve *r, uint64_t growth);
uint64_t reserve_grown(struct reserve *r, uint64_t growth);

/* reserve_find_again asks again how many bytes were found, if the driver may have released some
 * of them before they were charged. It returns the new number; the request has ended if that is
 * 0. */
uint64_t reserve_find_again(struct reserve *r, uint64_t found);

/* reserve_charge_found charges the found bytes to the job. It returns CUDA_SUCCESS, with the
 * bytes that are found now in *found, or the error that the call must return. After an error
 * the caller undoes its allocation between reserve_undoing and reserve_undone. reserve_undoing
 * returns how many bytes should be left. reserve_undone charges the bytes that the driver has
 * kept even above the limit, as ungranted, and ends the request. reserve_force_found charges
 * the found bytes even above the limit, and ends the request. */
int reserve_charge_found(struct reserve *r, uint64_t *found);
uint64_t reserve_undoing(struct reserve *r, uint64_t found);
void reserve_undone(struct reserve *r, uint64_t found, uint64_t left);
void reserve_force_found(struct reserve *r, uint64_t found);

/* reserve_cancel ends a request that has not called the driver. */
void reserve_cancel(struct reserve *r);

/* reserve_look sets the charge to the reserved bytes, which the driver may have lowered. It
 * returns false if other threads kept changing the answer, or if a request has made the memory
 * grow and is about to charge that. */
bool reserve_look(struct reserve *r);

/* reserve_granted returns the charged bytes that were not refused. */
uint64_t reserve_granted(struct reserve *r);

/* reserve_shrinks returns how often the charge became less. */
uint64_t reserve_shrinks(struct reserve *r);

/* reserve_mark_absent marks all bytes of the reserve as absent from now on (charge_mark_absent). */
void reserve_mark_absent(struct reserve *r);

/* reserve_drop returns the whole charge. */
void reserve_drop(struct reserve *r);

#endif
