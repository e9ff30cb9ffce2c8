/* Memory pools. The charge is the number of bytes that a pool has reserved. A device argument
 * is the region's index, or RATION_DEVICES for all devices. */
#ifndef RATION_POOL_H
#define RATION_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc_table.h"
#include "hooks.h"
#include "hooks/reserve.h"
#include "region/abi.h"

/* pools_sync_charges sets the charges of a device's pools to the bytes that they have reserved. */
void pools_sync_charges(unsigned device);

/* Read pools_stamp before a call that waits for the device. The wait need not cover memory that
 * is freed on a stream after that. */
extern uint64_t pool_stamp;
static inline uint64_t pools_stamp(void) { return __atomic_load_n(&pool_stamp, __ATOMIC_SEQ_CST); }

/* Call pools_synchronised when all memory that was freed on streams up to the stamp since has
 * really been freed: after waiting for the device, or at the end of a context. */
void pools_synchronised(unsigned device, uint64_t since);

/* pools_shrink_expected reports whether the next synchronisation may make a pool smaller. */
extern uint32_t pool_shrink_expected;
static inline bool pools_shrink_expected(void) { return __builtin_expect(__atomic_load_n(&pool_shrink_expected, __ATOMIC_RELAXED), 0); }

/* pools_emptied removes the records of all addresses from a device's pools: none of them is
 * live. */
void pools_emptied(unsigned device);

/* pool_keep_address stores the record of an address that was charged as data, from a pool or
 * not. */
void pool_keep_address(const struct alloc_record *r);

/* Call pool_freed for an address from a pool that was freed by a call that waits for the
 * device; since is the stamp read before that call. Call pool_freed_async if the call does not
 * wait. */
void pool_freed(const struct alloc_record *r, uint64_t since);
void pool_freed_async(const struct alloc_record *r);

/* The rest is used only by pool_alloc.c and pool_calls.c. */

/* Number of entries: for pools that programs make, and some more for the pools that the driver
 * makes: each device's own, of managed memory or not. */
enum { POOL_MADE_MAX = 1024, POOL_MAX = POOL_MADE_MAX + 3 * RATION_DEVICES };

/* The step in which a pool grows, and the step in which it hands out memory, in bytes. */
static const uint64_t POOL_CHUNK = 32 << 20, POOL_GRAIN = 512;

/* The kind of memory in a pool. */
enum pool_kind { POOL_UNCOUNTED, POOL_PINNED, POOL_MANAGED };

/* How far the destruction of a pool has come. While it is not POOL_ALIVE, frees get stamps, and
 * waits settle them. */
enum pool_end { POOL_ALIVE, POOL_ENDING, POOL_DESTROYED };

struct pool {
	struct reserve reserve; /* first, so that a pointer to it is a pointer to the pool */
	CUmemoryPool handle;    /* NULL: the entry is free, or the pool is destroyed and not yet empty. Atomic */
	CUmemoryPool dying;     /* the handle while the driver is asked to destroy the pool; under LOCK_POOL_LIST */
	bool used;              /* the entry is in use; under LOCK_POOL_LIST */
	bool counted;           /* it is charged: not host memory, nor memory of another process; written before handle */
	bool managed;           /* managed memory, which need not be on the device; written before handle */
	uint32_t in_pieces;     /* it grew although it had room, and was not trimmed since; atomic */
	uint32_t destroyed;     /* enum pool_end, until pool_finish has freed the entry; atomic */
	uint32_t shrinks;       /* the next synchronisation may make it smaller; atomic */
	uint64_t freed_at;      /* the stamp of the last free that no call has waited for, or of its destruction; atomic */
};

/* Sequentially consistent, with pool_hide, which must see the threads that have read the handle. */
static inline CUmemoryPool pool_handle(const struct pool *p) { return __atomic_load_n(&p->handle, __ATOMIC_SEQ_CST); }

static inline unsigned pool_device(const struct pool *p) { return __atomic_load_n(&p->reserve.device, __ATOMIC_RELAXED); }

/* pool_number returns the number of a pool that is stored in records of addresses. */
uint16_t pool_number(const struct pool *p);

static inline uint64_t pool_whole_chunks(uint64_t bytes)
{
	return bytes > UINT64_MAX - POOL_CHUNK ? UINT64_MAX : (bytes + POOL_CHUNK - 1) / POOL_CHUNK * POOL_CHUNK;
}

static inline uint64_t pool_whole_grains(uint64_t bytes) { return (bytes + POOL_GRAIN - 1) / POOL_GRAIN * POOL_GRAIN; }

struct pool *pool_find(CUmemoryPool handle);

/* pool_add returns the pool with a handle, and adds it if necessary. It returns NULL if the
 * pool is being destroyed, or if there are too many. made: the driver has just made the pool,
 * so a pool with this handle that is being destroyed is another one. If device is
 * RATION_DEVICES, the pool gets the device of its first allocation. */
struct pool *pool_add(CUmemoryPool handle, unsigned device, enum pool_kind kind, bool made);

/* pool_is_managed_default reports whether the handle is the driver's own pool of managed memory
 * for a location. */
bool pool_is_managed_default(CUmemoryPool handle, CUmemLocation location);

/* pool_left wakes the thread that waits in pool_hide for the users of a pool. Sequentially
 * consistent, with pool_hide. */
void pool_left(struct pool *p, uint32_t *users);

/* pool_hide makes a pool unfindable, before the driver is asked to destroy it: as soon as it is
 * destroyed, its handle may belong to another pool. It waits for threads that are asking the
 * driver about the pool, which does not take long: a correct program does not allocate from a
 * pool while it destroys it. */
void pool_hide(struct pool *p);

/* pool_hidden ends what pool_hide began: handle is NULL if the pool is destroyed, and otherwise
 * its handle, by which it is found again. */
void pool_hidden(struct pool *p, CUmemoryPool handle);

bool pool_get_attribute(const struct pool *p, int which, uint64_t *value);

/* pool_trim lets a pool shrink to keep bytes. It does not wait: memory that the device may
 * still use stays. */
void pool_trim(struct pool *p, uint64_t keep);

/* pool_expect_shrink makes the next synchronisation update this pool. */
void pool_expect_shrink(struct pool *p);

/* pool_update sets the charge to the reserved bytes, after it has trimmed ungranted memory as
 * far as the driver releases it by now. It returns the same as reserve_look. The caller must
 * count as a user of the pool (requests or lookers). */
bool pool_update(struct pool *p);

/* pool_look updates a pool that is counted, and trims it first if trim. It returns whether its
 * charge equals its reserved bytes. */
bool pool_look(struct pool *p, bool trim);

/* pool_destroyed records that the driver has destroyed a pool, which is hidden. Its entry
 * becomes free when none of its memory is left. */
void pool_destroyed(struct pool *p);

#endif
