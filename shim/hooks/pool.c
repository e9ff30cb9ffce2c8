#include "hooks/pool.h"

#include "capture.h"
#include "charge.h"
#include "hooks/context_table.h"
#include "hooks/graph.h"
#include "hooks/managed.h"
#include "hooks/reserve.h"
#include "log.h"
#include "overhead.h"
#include "region/atomics.h"

/* How many places there are: for pools that programs make, and some beyond that for those
 * that no program makes, each device's own, of managed memory or not. */
enum { POOL_MADE_MAX = 1024, POOL_MAX = POOL_MADE_MAX + 3 * RATION_DEVICES };

/* The steps in which a pool grows, and in which it hands out. */
static const uint64_t POOL_CHUNK = 32 << 20, POOL_GRAIN = 512;

/* How often the current pool is asked for, while other threads destroy it. */
enum { POOL_TRIES = 8 };

/* The largest request that is worth counting. */
static const uint64_t POOL_MOST = UINT64_C(1) << 48;

static struct pool {
	struct reserve reserve; /* first, so that one leads to the other */
	CUmemoryPool handle;    /* NULL: a free place, or destroyed and not yet empty. Atomic */
	CUmemoryPool dying;     /* the handle, while the driver is asked to destroy it; under LOCK_POOL_LIST */
	bool used;              /* the place is taken; under LOCK_POOL_LIST */
	bool counted;           /* neither the host's memory nor another process's; written before handle */
	bool managed;           /* of managed memory, which may be elsewhere; written before handle */
	uint32_t in_pieces;     /* it grew although it had room, and was not trimmed since; atomic */
	uint32_t destroyed;     /* until pool_finish has freed the place; atomic */
} pools[POOL_MAX];

static unsigned pool_count;    /* places that were ever used; atomic */
static mutex pool_list_lock;   /* LOCK_POOL_LIST: over used, count and adding */
uint32_t pool_shrink_expected; /* atomic */

/* Pools that were destroyed, and whose places are still taken; atomic. */
static uint32_t pool_destroyed_count;

static bool pools_used(void) { return __atomic_load_n(&pool_count, __ATOMIC_RELAXED) != 0; }

static void pool_relieve(unsigned device);
static bool pool_before_reading(unsigned device);

/* Full order: with pool_hide, which must find the threads that have found the handle. */
static CUmemoryPool pool_handle(const struct pool *p) { return __atomic_load_n(&p->handle, __ATOMIC_SEQ_CST); }

static unsigned pool_device(const struct pool *p) { return __atomic_load_n(&p->reserve.device, __ATOMIC_RELAXED); }

static bool pool_get_attribute(const struct pool *p, int which, uint64_t *value)
{
	/* Seen on an H200: unless this thread is relaxed about it, the query fails while any
	 * stream is captured, and ends the capture. */
	int mode = capture_relax();
	int result = REAL(cuMemPoolGetAttribute, pool_handle(p), which, value);
	capture_restore(mode);
	return result == CUDA_SUCCESS;
}

static bool pool_reserved(const struct reserve *r, uint64_t *bytes)
{
	return pool_get_attribute((const struct pool *)r, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes);
}

static struct pool *pool_find(CUmemoryPool handle)
{
	unsigned n = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++)
		if (__atomic_load_n(&pools[i].handle, __ATOMIC_ACQUIRE) == handle)
			return &pools[i];
	return NULL;
}

/* What a pool is of. */
enum pool_kind { POOL_UNCOUNTED, POOL_PINNED, POOL_MANAGED };

/* pool_is_dying reports whether the driver is being asked to destroy a pool. Under
 * LOCK_POOL_LIST. */
static bool pool_is_dying(CUmemoryPool handle)
{
	for (unsigned i = 0; i < pool_count; i++)
		if (pools[i].dying == handle)
			return true;
	return false;
}

/* pool_place returns a free place among the first so many, or NULL. Under LOCK_POOL_LIST. */
static struct pool *pool_place(unsigned among)
{
	for (unsigned i = 0; i < among; i++)
		if (!pools[i].used)
			return &pools[i];
	return NULL;
}

/* pool_add returns the pool with a handle, added if need be; or NULL, where it is being
 * destroyed, or there are too many. made: the driver has just made it, so that what is
 * being destroyed under this handle is another one. device may be RATION_DEVICES: then it
 * is that of the first allocation. */
static struct pool *pool_add(CUmemoryPool handle, unsigned device, enum pool_kind kind, bool made)
{
	mutex_lock(&pool_list_lock, LOCK_POOL_LIST);
	struct pool *p = pool_find(handle);
	if (!p && (made || !pool_is_dying(handle)) && (p = pool_place(made ? POOL_MADE_MAX : POOL_MAX))) {
		unsigned i = (unsigned)(p - pools);
		/* What the last pool here left has been returned. Its lock and the counts of its
		 * users stay as they are: a thread that comes late may still look. */
		p->used = true;
		p->counted = kind != POOL_UNCOUNTED;
		p->managed = p->reserve.absent = kind == POOL_MANAGED;
		p->reserve.reserved = pool_reserved;
		p->reserve.chunk = POOL_CHUNK;
		__atomic_store_n(&p->reserve.device, device, __ATOMIC_RELAXED);
		__atomic_store_n(&p->in_pieces, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&p->handle, handle, __ATOMIC_RELEASE);
		if (i >= pool_count)
			__atomic_store_n(&pool_count, i + 1, __ATOMIC_RELEASE);
	}
	mutex_unlock(&pool_list_lock);
	if (p) {
		charge_on_pressure(RELIEF_POOLS, pool_relieve);
		overhead_on_reading(READING_POOLS, pool_before_reading);
	}
	return p;
}

/* pool_left wakes the thread that waits for the users of a pool in order to destroy it.
 * Full order: with pool_hide. */
static void pool_left(struct pool *p, uint32_t *users)
{
	if (unlikely(!pool_handle(p)))
		syscall(SYS_futex, users, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* pool_hide makes a pool unfindable, before the driver is asked to destroy it: its handle
 * may be another pool's as soon as it is free. It waits for those that are asking the
 * driver about it, which does not take long; a program that destroys a pool allocates
 * nothing from it at that time. */
static void pool_hide(struct pool *p)
{
	uint32_t *const users[] = {&p->reserve.requests, &p->reserve.lookers}, n;
	mutex_lock(&pool_list_lock, LOCK_POOL_LIST);
	p->dying = p->handle;
	__atomic_store_n(&p->handle, NULL, __ATOMIC_SEQ_CST);
	mutex_unlock(&pool_list_lock);
	for (unsigned i = 0; i < 2; i++)
		while ((n = __atomic_load_n(users[i], __ATOMIC_SEQ_CST)))
			syscall(SYS_futex, users[i], FUTEX_WAIT_PRIVATE, n, NULL, NULL, 0);
}

/* pool_hidden ends that: handle is NULL where the pool is destroyed, and otherwise its own,
 * by which it is found again. */
static void pool_hidden(struct pool *p, CUmemoryPool handle)
{
	mutex_lock(&pool_list_lock, LOCK_POOL_LIST);
	p->dying = NULL;
	__atomic_store_n(&p->handle, handle, __ATOMIC_SEQ_CST);
	mutex_unlock(&pool_list_lock);
}

/* pool_trim lets a pool shrink to so many bytes. It does not wait: what the device may
 * still be at work on stays. */
static void pool_trim(struct pool *p, uint64_t keep)
{
	int mode = capture_relax();
	__atomic_store_n(&p->in_pieces, 0, __ATOMIC_RELAXED);
	REAL(cuMemPoolTrimTo, pool_handle(p), keep);
	capture_restore(mode);
}

static uint64_t pool_whole_chunks(uint64_t bytes)
{
	return bytes > UINT64_MAX - POOL_CHUNK ? UINT64_MAX : (bytes + POOL_CHUNK - 1) / POOL_CHUNK * POOL_CHUNK;
}

static uint64_t pool_whole_grains(uint64_t bytes) { return (bytes + POOL_GRAIN - 1) / POOL_GRAIN * POOL_GRAIN; }

/* Release: pairs with pools_synchronised, which then finds what was freed. */
static void pool_expect_shrink(void) { __atomic_store_n(&pool_shrink_expected, 1, __ATOMIC_RELEASE); }

/* pool_check_reserve lets the next synchronisation look again at a pool that has more
 * than it handed out, and than it is to keep. No free need have come since the last one:
 * what was freed before may have waited for another stream, or come while that
 * synchronisation ended, and a pool may have grown by more than it needed. */
static void pool_check_reserve(const struct pool *p)
{
	uint64_t seen = load_relaxed(&p->reserve.seen), threshold = 0;
	if (__atomic_load_n(&pool_shrink_expected, __ATOMIC_RELAXED) || seen <= pool_whole_chunks(load_relaxed(&p->reserve.promised)))
		return;
	pool_get_attribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
	if (seen > threshold)
		pool_expect_shrink();
}

/* pool_update makes the charge what is reserved, after giving back what was not granted,
 * as far as the driver lets go of it by now. In a thread that uses the pool. */
static bool pool_update(struct pool *p)
{
	if (unlikely(load_relaxed(&p->reserve.ungranted)))
		pool_trim(p, reserve_granted(&p->reserve));
	bool done = reserve_look(&p->reserve);
	if (unlikely(!done))
		pool_expect_shrink();
	pool_check_reserve(p);
	return done;
}

/* pool_look updates a pool that is counted, after trimming it if trim. It returns whether
 * its charge is what it has reserved. */
static bool pool_look(struct pool *p, bool trim)
{
	bool done = true;
	__atomic_fetch_add(&p->reserve.lookers, 1, __ATOMIC_SEQ_CST);
	if (pool_handle(p) && p->counted) {
		if (trim)
			pool_trim(p, 0);
		done = pool_update(p);
	}
	__atomic_fetch_sub(&p->reserve.lookers, 1, __ATOMIC_SEQ_CST);
	pool_left(p, &p->reserve.lookers);
	return done;
}

/* pool_look_all looks at a device's pools, and returns whether all their charges are what
 * they have reserved. */
static bool pool_look_all(unsigned device, bool trim)
{
	bool done = true;
	unsigned n = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++)
		if (pool_handle(&pools[i]) && (device == RATION_DEVICES || pool_device(&pools[i]) == device))
			done = pool_look(&pools[i], trim) && done;
	return done;
}

/* pool_before_reading brings the charges up to date for a reading of the driver: a pool
 * may have shrunk by itself. */
static bool pool_before_reading(unsigned device) { return pool_look_all(device, false); }

void pools_sync_charges(unsigned device) { pool_look_all(device, false); }

/* pool_relieve makes room before a refusal. */
static void pool_relieve(unsigned device) { pool_look_all(device, true); }

/* pool_finish frees the place of a destroyed pool. The driver keeps a pool's memory until
 * no address of it is live and the frees have come to pass: it is called after a thread has
 * waited for the device. On an H200 cuMemFree does, and cuMemFreeAsync does not. */
static void pool_finish(struct pool *p)
{
	uint32_t destroyed = 1;
	/* Full order with pool_forget and cuMemPoolDestroy. Of several threads one goes on: a
	 * pool that has nothing live stays so. */
	if (!__atomic_load_n(&p->destroyed, __ATOMIC_SEQ_CST) || __atomic_load_n(&p->reserve.promised, __ATOMIC_SEQ_CST) ||
	    !__atomic_compare_exchange_n(&p->destroyed, &destroyed, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return;
	__atomic_fetch_sub(&pool_destroyed_count, 1, __ATOMIC_RELAXED);
	reserve_drop(&p->reserve);
	mutex_lock(&pool_list_lock, LOCK_POOL_LIST);
	p->used = false;
	mutex_unlock(&pool_list_lock);
}

void pools_synchronised(unsigned device)
{
	if (!pools_used())
		return;
	if (device == RATION_DEVICES)
		__atomic_exchange_n(&pool_shrink_expected, 0, __ATOMIC_ACQUIRE);
	unsigned n = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++) {
		struct pool *p = &pools[i];
		if (device != RATION_DEVICES && pool_device(p) != device)
			continue;
		if (pool_handle(p))
			pool_look(p, false);
		pool_finish(p);
	}
}

/* pool_forget counts an address as no longer live. */
static void pool_forget(const struct alloc_record *r)
{
	reserve_unpromise(&pools[r->pool - 1].reserve, pool_whole_grains(r->bytes));
	pool_expect_shrink();
}

void pool_keep_address(const struct alloc_record *r)
{
	struct alloc_record old;
	context_replace(&context_addresses, r, &old);
	if (likely(!old.key))
		return;
	/* Of a context that has ended: as in context_keep. */
	if (old.pool)
		pool_forget(&old);
	else
		context_drop(&old, RATION_DATA);
}

static bool pool_not_on_device(struct alloc_record *r, void *device)
{
	if (!r->pool || r->device != *(const unsigned *)device)
		return true;
	pool_forget(r);
	return false;
}

void pools_emptied(unsigned device)
{
	if (pools_used()) {
		alloc_table_sweep(&context_addresses, pool_not_on_device, &device);
		managed_pools_emptied(device);
	}
}

void pool_freed(const struct alloc_record *r, bool waited)
{
	struct pool *p = &pools[r->pool - 1];
	pool_forget(r);
	/* A pool gives nothing back before a thread waits. */
	if (!waited)
		return;
	if (pool_handle(p))
		pool_look(p, false);
	for (unsigned i = 0; __atomic_load_n(&pool_destroyed_count, __ATOMIC_RELAXED) && i < POOL_MAX; i++)
		pool_finish(&pools[i]);
}

/* A call that allocates from a pool. */
struct pool_request {
	enum ration_call call;
	CUdeviceptr *out;
	size_t bytes;
	CUmemoryPool pool; /* NULL: the device's current one */
	CUstream stream;
};

static bool pool_per_thread(const struct pool_request *q)
{
	return q->call == CALL_cuMemAllocAsync_ptsz || q->call == CALL_cuMemAllocFromPoolAsync_ptsz;
}

static int pool_call_driver(const struct pool_request *q)
{
	switch (q->call) {
	case CALL_cuMemAllocAsync: return REAL(cuMemAllocAsync, q->out, q->bytes, q->stream);
	case CALL_cuMemAllocAsync_ptsz: return REAL(cuMemAllocAsync_ptsz, q->out, q->bytes, q->stream);
	case CALL_cuMemAllocFromPoolAsync: return REAL(cuMemAllocFromPoolAsync, q->out, q->bytes, q->pool, q->stream);
	default: return REAL(cuMemAllocFromPoolAsync_ptsz, q->out, q->bytes, q->pool, q->stream);
	}
}

/* pool_stream_idle reports whether the stream has nothing left to do. */
static bool pool_stream_idle(const struct pool_request *q)
{
	int mode = capture_relax();
	int result = pool_per_thread(q) ? REAL(cuStreamQuery_ptsz, q->stream) : REAL(cuStreamQuery, q->stream);
	capture_restore(mode);
	return result == CUDA_SUCCESS;
}

/* pool_stream_valid asks the driver whether the stream is one. */
static bool pool_stream_valid(const struct pool_request *q)
{
	int status;
	int result =
		pool_per_thread(q) ? REAL(cuStreamIsCapturing_ptsz, q->stream, &status) : REAL(cuStreamIsCapturing, q->stream, &status);
	return result == CUDA_SUCCESS;
}

/* pool_undo frees what the driver has just given. It does not wait for the stream, as the
 * driver would not have: the stream's work may wait for what this thread does next. So the
 * memory may stay the pool's for now, ungranted. */
static void pool_undo(const struct pool_request *q, struct pool *p, uint64_t found)
{
	uint64_t left = reserve_undoing(&p->reserve, found);
	int result = pool_per_thread(q) ? REAL(cuMemFreeAsync_ptsz, *q->out, q->stream) : REAL(cuMemFreeAsync, *q->out, q->stream);
	if (result != CUDA_SUCCESS)
		log_warn("an allocation beyond the limit could not be undone (%d): its pool stays larger", result);
	*q->out = 0;
	/* On an idle stream the free comes to pass at once. */
	for (unsigned tries = 0; tries < 100 && !pool_stream_idle(q); tries++)
		;
	pool_trim(p, left);
	reserve_undone(&p->reserve, found, left);
	pool_expect_shrink();
}

/* pool_charge_found charges what the pool grew by beyond what was foreseen: what it had may
 * be in pieces, or wait for another stream. What does not fit is undone. */
static int pool_charge_found(const struct pool_request *q, struct pool *p, uint64_t found)
{
	__atomic_store_n(&p->in_pieces, 1, __ATOMIC_RELAXED);
	/* Pieces that are too small to be used go first. */
	if (charge_would_refuse(pool_device(p), found)) {
		pool_trim(p, 0);
		found = reserve_find_again(&p->reserve, found);
	}
	while (found) {
		int refused = reserve_charge_found(&p->reserve, &found);
		if (refused) {
			pool_undo(q, p, found);
			return refused;
		}
	}
	return CUDA_SUCCESS;
}

/* pool_grow charges what the pool must reserve for a request, if it can use all it has but
 * what was not granted: CUDA_SUCCESS, or what the call must return. A stream that is none is
 * the driver's to refuse.
 *
 * Near the limit, where the job has no room for all of the request, the driver is asked
 * what is in use, which may be more than what this process was handed out. And a pool that
 * has grown although it had room is trimmed once, so that it does not seem to have what is
 * in pieces; where all of the request fits then, all of it is charged. It is not refused
 * where that does not fit: what was freed on the same stream may serve it, and no trim
 * lets go of that before the device has come to it. */
__attribute__((noinline)) static int pool_grow(const struct pool_request *q, struct pool *p, uint64_t *growth)
{
	struct reserve *r = &p->reserve;
	uint64_t own = pool_whole_grains(q->bytes), whole = pool_whole_chunks(q->bytes), used = 0, beyond = 0, least = 0;
	if (load_relaxed(&r->ungranted))
		pool_update(p);
	if (load_relaxed(&r->ungranted)) {
		least = whole;
	} else if (charge_would_refuse(pool_device(p), whole)) {
		pool_get_attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
		uint64_t promised = load_relaxed(&r->promised);
		beyond = used + own > promised ? used + own - promised : 0;
		if (__atomic_load_n(&p->in_pieces, __ATOMIC_RELAXED)) {
			pool_trim(p, 0);
			pool_update(p);
			least = charge_would_refuse(pool_device(p), whole) ? 0 : whole;
		}
	}
	if ((least || !reserve_has_room(r)) && charge_would_refuse(pool_device(p), whole) && !pool_stream_valid(q))
		return CUDA_SUCCESS;
	return reserve_grow(r, own, beyond, least, growth);
}

/* pool_charge_and_call charges what the pool will grow by, and asks the driver. */
static int pool_charge_and_call(const struct pool_request *q, struct pool *p)
{
	struct reserve *r = &p->reserve;
	uint64_t growth = 0;
	if (unlikely(!reserve_has_room(r) || charge_would_refuse(pool_device(p), pool_whole_chunks(q->bytes)))) {
		int refused = pool_grow(q, p, &growth);
		if (refused)
			return refused;
	}
	int result = pool_call_driver(q);
	if (unlikely(result != CUDA_SUCCESS)) {
		reserve_not_grown(r, growth);
		return result;
	}
	uint64_t found = reserve_grown(r, growth);
	return unlikely(found) ? pool_charge_found(q, p, found) : CUDA_SUCCESS;
}

/* pool_keep records an address. */
static void pool_keep(const struct pool_request *q, struct pool *p, const struct alloc_target *t)
{
	pool_keep_address(&(struct alloc_record){.key = *q->out,
						 .bytes = q->bytes,
						 .device = (uint8_t)pool_device(p),
						 .flags = p->managed ? RECORD_MANAGED_POOL : 0,
						 .context = t->context,
						 .pool = (uint16_t)(p - pools + 1)});
}

/* pool_refuse_huge is for what no device has, and what could not be added up. */
static int pool_refuse_huge(const struct pool_request *q, const struct pool *p)
{
	int refused = charge_add(pool_device(p), RATION_DATA, UINT64_MAX);
	if (refused)
		return refused;
	charge_return(pool_device(p), RATION_DATA, UINT64_MAX);
	return pool_call_driver(q);
}

/* pool_promise begins a request: the pool is not destroyed until it has ended. False where
 * it is being destroyed, or the place has become another pool's. */
static bool pool_promise(struct pool *p, CUmemoryPool handle, uint64_t bytes)
{
	reserve_promise(&p->reserve, bytes);
	if (likely(pool_handle(p) == handle))
		return true;
	reserve_cancel(&p->reserve);
	reserve_unpromise(&p->reserve, bytes);
	pool_left(p, &p->reserve.requests);
	return false;
}

/* pool_request_from allocates from a pool that is counted, and for which a request has begun. */
static int pool_request_from(const struct pool_request *q, struct pool *p, const struct alloc_target *t)
{
	struct reserve *r = &p->reserve;
	unsigned none = RATION_DEVICES;
	if (unlikely(pool_device(p) == none))
		__atomic_compare_exchange_n(&r->device, &none, t->device->index, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	uint64_t bytes = pool_whole_grains(q->bytes), seen = load_relaxed(&r->seen);
	int result = pool_charge_and_call(q, p);
	if (likely(result == CUDA_SUCCESS))
		pool_keep(q, p, t);
	else
		reserve_unpromise(r, bytes);
	if (unlikely(load_relaxed(&r->seen) > seen))
		pool_expect_shrink();
	return result;
}

/* pool_allocate allocates from the pool that the request names. False where that is being
 * destroyed, and nothing was done. */
static bool pool_allocate(const struct pool_request *q, struct pool *p, const struct alloc_target *t, int *result)
{
	if (unlikely(q->bytes > POOL_MOST)) {
		*result = pool_refuse_huge(q, p);
		return true;
	}
	if (!pool_promise(p, q->pool, pool_whole_grains(q->bytes)))
		return false;
	*result = pool_request_from(q, p, t);
	pool_left(p, &p->reserve.requests);
	overhead_tick();
	return true;
}

static bool pool_stream_captured(const struct pool_request *q)
{
	int status = 0;
	int result =
		pool_per_thread(q) ? REAL(cuStreamIsCapturing_ptsz, q->stream, &status) : REAL(cuStreamIsCapturing, q->stream, &status);
	return result == CUDA_SUCCESS && status != 0;
}

/* pool_is_managed_default reports whether the handle is that of the pool of managed memory that
 * the driver has for a location. */
static bool pool_is_managed_default(CUmemoryPool handle, CUmemLocation location)
{
	CUmemoryPool own = NULL;
	return REAL(cuMemGetDefaultMemPool, &own, &location, CU_MEM_ALLOCATION_TYPE_MANAGED) == CUDA_SUCCESS && own == handle;
}

/* pool_add_default adds a pool whose making was not hooked: a device's own, which programs
 * ask for by name. NULL for all others: the host's, which cost the device nothing, and
 * what is no pool at all. */
static struct pool *pool_add_default(CUmemoryPool handle)
{
	CUmemoryPool own = NULL;
	struct device *d;
	for (CUdevice ordinal = 0; REAL(cuDeviceGetDefaultMemPool, &own, ordinal) == CUDA_SUCCESS; ordinal++) {
		bool managed = own != handle && pool_is_managed_default(handle, (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, ordinal});
		if (own == handle || managed)
			return device_of(ordinal, &d) == 1 ? pool_add(handle, d->index, managed ? POOL_MANAGED : POOL_PINNED, false) : NULL;
	}
	bool anywhere = pool_is_managed_default(handle, (CUmemLocation){0, 0});
	return anywhere ? pool_add(handle, RATION_DEVICES, POOL_MANAGED, false) : NULL;
}

/* pool_follow_stream makes the target the stream's context: the pool is that of the
 * stream's device, whichever context is current. The predefined streams are the current
 * context's. */
static void pool_follow_stream(CUstream stream, struct alloc_target *t)
{
	CUcontext c = NULL;
	struct alloc_target there;
	if ((uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD && REAL(cuStreamGetCtx, stream, &c) == CUDA_SUCCESS && c &&
	    context_target_of(c, &there))
		*t = there;
}

/* pool_alloc_named allocates from a pool that the program names. One that it destroys at
 * this moment is the driver's to refuse. */
static int pool_alloc_named(const struct pool_request *q, const struct alloc_target *t)
{
	int result;
	struct pool *p = pool_find(q->pool);
	if (!p)
		p = pool_add_default(q->pool);
	return p && p->counted && pool_allocate(q, p, t, &result) ? result : pool_call_driver(q);
}

/* pool_alloc_current allocates from the device's current pool. The driver is asked for which
 * one that is, and then told to allocate from that one, not from the one that is current by
 * then: another thread may change it between the charge and the driver's call. A pool that
 * is destroyed is not current any more (cuMemPoolDestroy), so the next one is found. */
static int pool_alloc_current(struct pool_request *q, const struct alloc_target *t)
{
	struct pool_request named = *q;
	named.call = pool_per_thread(q) ? CALL_cuMemAllocFromPoolAsync_ptsz : CALL_cuMemAllocFromPoolAsync;
	for (unsigned tries = 0; tries < POOL_TRIES; tries++) {
		int result;
		if (REAL(cuDeviceGetMemPool, &named.pool, t->device->ordinal) != CUDA_SUCCESS)
			break;
		struct pool *p = pool_find(named.pool);
		if (!p)
			p = pool_add(named.pool, t->device->index, POOL_PINNED, false);
		if (p && pool_allocate(&named, p, t, &result))
			return result;
	}
	return pool_call_driver(q);
}

/* pool_alloc_async is the body of the four calls that allocate. */
static int pool_alloc_async(struct pool_request q)
{
	struct alloc_target t;
	int denied = context_enter(&t);
	if (denied)
		return denied;
	if (!t.device || !q.out || !q.bytes)
		return pool_call_driver(&q);
	if (unlikely(capture_seen()) && pool_stream_captured(&q)) {
		graph_captures();
		return pool_call_driver(&q);
	}
	if (q.pool)
		return pool_alloc_named(&q, &t);
	if (unlikely(devices_several()))
		pool_follow_stream(q.stream, &t);
	return pool_alloc_current(&q, &t);
}

int cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream)
{
	return pool_alloc_async((struct pool_request){CALL_cuMemAllocAsync, out, bytes, NULL, stream});
}

int cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream stream)
{
	return pool_alloc_async((struct pool_request){CALL_cuMemAllocAsync_ptsz, out, bytes, NULL, stream});
}

int cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return pool_alloc_async((struct pool_request){CALL_cuMemAllocFromPoolAsync, out, bytes, pool, stream});
}

int cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return pool_alloc_async((struct pool_request){CALL_cuMemAllocFromPoolAsync_ptsz, out, bytes, pool, stream});
}

int cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
	struct device *d = NULL;
	bool on_device = props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
	int denied = on_device ? init_enter_device(props->location.id, &d) : init_enter();
	int result = REAL_UNLESS(denied, cuMemPoolCreate, out, props);
	if (result != CUDA_SUCCESS || !attach_on())
		return result;
	/* Managed memory may move to a device at any time, wherever the pool is. */
	bool managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED && (d || !on_device);
	enum pool_kind kind = managed ? POOL_MANAGED : d ? POOL_PINNED : POOL_UNCOUNTED;
	if (pool_add(*out, d ? d->index : RATION_DEVICES, kind, true) || kind == POOL_UNCOUNTED)
		return result;
	/* One that has no place could not be counted. */
	static uint32_t logged;
	if (!__atomic_exchange_n(&logged, 1, __ATOMIC_RELAXED))
		log_error("more than %d memory pools at a time cannot be counted: refusing another", POOL_MADE_MAX);
	REAL(cuMemPoolDestroy, *out);
	*out = NULL;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

int cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type, unsigned long long flags)
{
	int result = REAL(cuMemPoolImportFromShareableHandle, out, handle, type, flags);
	if (result == CUDA_SUCCESS && attach_on())
		pool_add(*out, RATION_DEVICES, POOL_UNCOUNTED, true);
	return result;
}

/* pool_is_default reports whether a pool is a device's own, which no program can destroy. */
static bool pool_is_default(const struct pool *p, CUmemoryPool handle)
{
	CUmemoryPool own = NULL;
	struct device *d = pool_device(p) < RATION_DEVICES ? device_at(pool_device(p)) : NULL;
	if (!d)
		return pool_is_managed_default(handle, (CUmemLocation){0, 0});
	return p->managed ? pool_is_managed_default(handle, (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, d->ordinal})
			  : REAL(cuDeviceGetDefaultMemPool, &own, d->ordinal) == CUDA_SUCCESS && own == handle;
}

static mutex pool_current_lock; /* LOCK_POOL_CURRENT: over each change of a device's current pool */

/* pool_replace_current makes a device's current pool another one, and returns whether it
 * was from. */
static bool pool_replace_current(const struct device *d, CUmemoryPool from, CUmemoryPool to)
{
	CUmemoryPool now = NULL;
	mutex_lock(&pool_current_lock, LOCK_POOL_CURRENT);
	bool was = REAL(cuDeviceGetMemPool, &now, d->ordinal) == CUDA_SUCCESS && now == from &&
		   REAL(cuDeviceSetMemPool, d->ordinal, to) == CUDA_SUCCESS;
	mutex_unlock(&pool_current_lock);
	return was;
}

int cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	if (!attach_on())
		return REAL(cuDeviceSetMemPool, device, pool);
	mutex_lock(&pool_current_lock, LOCK_POOL_CURRENT);
	int result = REAL(cuDeviceSetMemPool, device, pool);
	mutex_unlock(&pool_current_lock);
	return result;
}

int cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
	if (!attach_on())
		return REAL(cuMemSetMemPool, location, type, pool);
	mutex_lock(&pool_current_lock, LOCK_POOL_CURRENT);
	int result = REAL(cuMemSetMemPool, location, type, pool);
	mutex_unlock(&pool_current_lock);
	return result;
}

/* pool_call_destroy asks the driver to destroy a pool that no thread finds meanwhile. A
 * device whose current pool it is gets its own back before that, as the driver would have
 * done with it: a thread that names no pool finds another one from then on. */
static int pool_call_destroy(struct pool *p, CUmemoryPool handle)
{
	CUmemoryPool own = NULL;
	struct device *d = p->counted && !p->managed ? device_at(pool_device(p)) : NULL;
	bool current = d && REAL(cuDeviceGetDefaultMemPool, &own, d->ordinal) == CUDA_SUCCESS && pool_replace_current(d, handle, own);
	pool_hide(p);
	int result = REAL(cuMemPoolDestroy, handle);
	pool_hidden(p, result == CUDA_SUCCESS ? NULL : handle);
	if (result != CUDA_SUCCESS && current)
		pool_replace_current(d, own, handle);
	return result;
}

int cuMemPoolDestroy(CUmemoryPool handle)
{
	struct pool *p = handle && attach_on() ? pool_find(handle) : NULL;
	/* What the driver does not destroy is not hidden: other threads allocate from it. */
	if (!p || pool_is_default(p, handle))
		return REAL(cuMemPoolDestroy, handle);
	/* What is left cannot be asked for afterwards, so the charge goes down to it now. */
	pool_look(p, true);
	int result = pool_call_destroy(p, handle);
	if (result != CUDA_SUCCESS) {
		pool_look(p, false);
		return result;
	}
	reserve_mark_absent(&p->reserve); /* it may become less, unseen */
	bool empty = !load_relaxed(&p->reserve.seen);
	__atomic_fetch_add(&pool_destroyed_count, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&p->destroyed, 1, __ATOMIC_SEQ_CST);
	pool_expect_shrink();
	if (empty)
		pool_finish(p);
	return result;
}

static void pool_look_at_handle(CUmemoryPool handle)
{
	struct pool *p = handle && attach_on() ? pool_find(handle) : NULL;
	if (p)
		pool_look(p, false);
}

int cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	int result = REAL(cuMemPoolTrimTo, pool, keep);
	pool_look_at_handle(pool);
	return result;
}

int cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	int result = REAL(cuMemPoolSetAttribute, pool, attribute, value);
	if (attach_on())
		pool_expect_shrink(); /* a lower threshold counts at the next synchronisation */
	pool_look_at_handle(pool);
	return result;
}
