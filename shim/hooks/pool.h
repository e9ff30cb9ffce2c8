/* Memory pools: charged by what they have reserved. In calls that take a device it is
 * the region's index, or RATION_DEVICES for all devices. */
#ifndef RATION_POOL_H
#define RATION_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc_table.h"
#include "hooks.h"
#include "hooks/reserve.h"
#include "region/abi.h"

/* pools_sync_charges makes the charges of a device's pools what they have reserved. */
void pools_sync_charges(unsigned device);

/* pools_stamp is read before a call that waits for the device. What is freed on a stream after that, the wait need not
 * have waited for. */
extern uint64_t pool_stamp;
static inline uint64_t pools_stamp(void) { return __atomic_load_n(&pool_stamp, __ATOMIC_SEQ_CST); }

/* pools_synchronised is for when what was freed on streams until since, a stamp, has been freed:
 * after waiting for the device, or at a context's end. */
void pools_synchronised(unsigned device, uint64_t since);

/* pools_shrink_expected reports whether a synchronisation may make a pool smaller. */
extern uint32_t pool_shrink_expected;
static inline bool pools_shrink_expected(void) { return __builtin_expect(__atomic_load_n(&pool_shrink_expected, __ATOMIC_RELAXED), 0); }

/* pools_emptied forgets all addresses from a device's pools: none of them is live. */
void pools_emptied(unsigned device);

/* pool_keep_address records an address that was charged as data, from a pool or not. */
void pool_keep_address(const struct alloc_record *r);

/* pool_freed is for an address that came from a pool, and was freed by a call that waits for the device, before which
 * since was read. pool_freed_async is for a call that does not wait. */
void pool_freed(const struct alloc_record *r, uint64_t since);
void pool_freed_async(const struct alloc_record *r);

/* The rest is for the calls on pools: pool_alloc.c and pool_calls.c. */

/* How many places there are: for pools that programs make, and some beyond that for those
 * that no program makes, each device's own, of managed memory or not. */
enum { POOL_MADE_MAX = 1024, POOL_MAX = POOL_MADE_MAX + 3 * RATION_DEVICES };

/* The steps in which a pool grows, and in which it hands out. */
static const uint64_t POOL_CHUNK = 32 << 20, POOL_GRAIN = 512;

/* What a pool is of. */
enum pool_kind { POOL_UNCOUNTED, POOL_PINNED, POOL_MANAGED };

/* What the end of a pool has come to: frees of it have stamps, and waits settle it. */
enum pool_end { POOL_ALIVE, POOL_ENDING, POOL_DESTROYED };

struct pool {
	struct reserve reserve; /* first, so that one leads to the other */
	CUmemoryPool handle;    /* NULL: a free place, or destroyed and not yet empty. Atomic */
	CUmemoryPool dying;     /* the handle, while the driver is asked to destroy it; under LOCK_POOL_LIST */
	bool used;              /* the place is taken; under LOCK_POOL_LIST */
	bool counted;           /* neither the host's memory nor another process's; written before handle */
	bool managed;           /* of managed memory, which may be elsewhere; written before handle */
	uint32_t in_pieces;     /* it grew although it had room, and was not trimmed since; atomic */
	uint32_t destroyed;     /* enum pool_end, until pool_finish has freed the place; atomic */
	uint32_t shrinks;       /* the next synchronisation may make it smaller; atomic */
	uint64_t freed_at;      /* the stamp of the last free that no call has waited for, or of its destruction; atomic */
};

/* Full order: with pool_hide, which must find the threads that have found the handle. */
static inline CUmemoryPool pool_handle(const struct pool *p) { return __atomic_load_n(&p->handle, __ATOMIC_SEQ_CST); }

static inline unsigned pool_device(const struct pool *p) { return __atomic_load_n(&p->reserve.device, __ATOMIC_RELAXED); }

/* pool_number is the number of a pool in the record of an address. */
uint16_t pool_number(const struct pool *p);

static inline uint64_t pool_whole_chunks(uint64_t bytes)
{
	return bytes > UINT64_MAX - POOL_CHUNK ? UINT64_MAX : (bytes + POOL_CHUNK - 1) / POOL_CHUNK * POOL_CHUNK;
}

static inline uint64_t pool_whole_grains(uint64_t bytes) { return (bytes + POOL_GRAIN - 1) / POOL_GRAIN * POOL_GRAIN; }

struct pool *pool_find(CUmemoryPool handle);

/* pool_add returns the pool with a handle, added if need be; or NULL, where it is being
 * destroyed, or there are too many. made: the driver has just made it, so that what is
 * being destroyed under this handle is another one. device may be RATION_DEVICES: then it
 * is that of the first allocation. */
struct pool *pool_add(CUmemoryPool handle, unsigned device, enum pool_kind kind, bool made);

/* pool_is_managed_default reports whether the handle is that of the pool of managed memory that
 * the driver has for a location. */
bool pool_is_managed_default(CUmemoryPool handle, CUmemLocation location);

/* pool_left wakes the thread that waits for the users of a pool in order to destroy it.
 * Full order: with pool_hide. */
void pool_left(struct pool *p, uint32_t *users);

/* pool_hide makes a pool unfindable, before the driver is asked to destroy it: its handle
 * may be another pool's as soon as it is free. It waits for those that are asking the
 * driver about it, which does not take long; a program that destroys a pool allocates
 * nothing from it at that time. */
void pool_hide(struct pool *p);

/* pool_hidden ends that: handle is NULL where the pool is destroyed, and otherwise its own,
 * by which it is found again. */
void pool_hidden(struct pool *p, CUmemoryPool handle);

bool pool_get_attribute(const struct pool *p, int which, uint64_t *value);

/* pool_trim lets a pool shrink to so many bytes. It does not wait: what the device may
 * still be at work on stays. */
void pool_trim(struct pool *p, uint64_t keep);

/* pool_expect_shrink lets the next synchronisation look at a pool. */
void pool_expect_shrink(struct pool *p);

/* pool_update makes the charge what is reserved, after giving back what was not granted,
 * as far as the driver lets go of it by now. In a thread that uses the pool. */
bool pool_update(struct pool *p);

/* pool_look updates a pool that is counted, after trimming it if trim. It returns whether
 * its charge is what it has reserved. */
bool pool_look(struct pool *p, bool trim);

/* pool_destroyed is for a pool that the driver has destroyed, and which is hidden. Its place is
 * free when nothing of it is left. */
void pool_destroyed(struct pool *p);

#endif
