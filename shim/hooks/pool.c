#include "hooks/pool.h"

#include "capture.h"
#include "cannot.h"
#include "charge.h"
#include "hooks/context_table.h"
#include "hooks/managed.h"
#include "overhead.h"
#include "region/atomics.h"

static struct pool pools[POOL_MAX];
static unsigned pool_count;    /* entries that were ever used; atomic */
static mutex pool_list_lock;   /* LOCK_POOL_LIST: protects used, pool_count and adding */
uint32_t pool_shrink_expected; /* atomic */
uint64_t pool_stamp;           /* counts frees from destroyed pools, and destructions; atomic */

/* Pools that were destroyed and whose entries are still in use; atomic. */
static uint32_t pool_destroyed_count;

static bool pools_used(void) { return __atomic_load_n(&pool_count, __ATOMIC_RELAXED) != 0; }

static void pool_relieve(unsigned device);
static bool pool_before_reading(unsigned device);

bool pool_get_attribute(const struct pool *p, int which, uint64_t *value)
{
	/* Seen on an H200: unless this thread's capture mode is relaxed, the query fails while
	 * any stream is captured, and invalidates the capture. */
	int mode = capture_relax();
	int result = REAL(cuMemPoolGetAttribute, pool_handle(p), which, value);
	capture_restore(mode);
	return result == CUDA_SUCCESS;
}

static bool pool_reserved(const struct reserve *r, uint64_t *bytes)
{
	return pool_get_attribute((const struct pool *)r, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes);
}

bool pool_is_managed_default(CUmemoryPool handle, CUmemLocation location)
{
	CUmemoryPool own = NULL;
	return REAL(cuMemGetDefaultMemPool, &own, &location, CU_MEM_ALLOCATION_TYPE_MANAGED) == CUDA_SUCCESS && own == handle;
}

struct pool *pool_find(CUmemoryPool handle)
{
	unsigned n = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++)
		if (__atomic_load_n(&pools[i].handle, __ATOMIC_ACQUIRE) == handle)
			return &pools[i];
	return NULL;
}

/* pool_is_dying reports whether the driver is being asked to destroy a pool. The caller holds
 * LOCK_POOL_LIST. */
static bool pool_is_dying(CUmemoryPool handle)
{
	for (unsigned i = 0; i < pool_count; i++)
		if (pools[i].dying == handle)
			return true;
	return false;
}

/* pool_place returns a free entry among the first `among`, or NULL. The caller holds
 * LOCK_POOL_LIST. */
static struct pool *pool_place(unsigned among)
{
	for (unsigned i = 0; i < among; i++)
		if (!pools[i].used)
			return &pools[i];
	return NULL;
}

struct pool *pool_add(CUmemoryPool handle, unsigned device, enum pool_kind kind, bool made)
{
	mutex_lock(&pool_list_lock, LOCK_POOL_LIST);
	struct pool *p = pool_find(handle);
	if (!p && (made || !pool_is_dying(handle)) && (p = pool_place(made ? POOL_MADE_MAX : POOL_MAX))) {
		unsigned i = (unsigned)(p - pools);
		/* The charges of the last pool in this entry have been returned. Its lock and
		 * the counts of its users stay as they are: a late thread may still be in
		 * pool_look. */
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
		if (p->managed)
			cannot_add(RATION_CANNOT_MANAGED, 1); /* as long as the process lives: no hook sees when the pool has no memory */
	}
	mutex_unlock(&pool_list_lock);
	if (p) {
		charge_on_pressure(RELIEF_POOLS, pool_relieve);
		overhead_on_reading(READING_POOLS, pool_before_reading);
	}
	return p;
}

void pool_left(struct pool *p, uint32_t *users)
{
	if (unlikely(!pool_handle(p)))
		syscall(SYS_futex, users, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void pool_hide(struct pool *p)
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

void pool_hidden(struct pool *p, CUmemoryPool handle)
{
	mutex_lock(&pool_list_lock, LOCK_POOL_LIST);
	p->dying = NULL;
	__atomic_store_n(&p->handle, handle, __ATOMIC_SEQ_CST);
	mutex_unlock(&pool_list_lock);
}

void pool_trim(struct pool *p, uint64_t keep)
{
	int mode = capture_relax();
	__atomic_store_n(&p->in_pieces, 0, __ATOMIC_RELAXED);
	REAL(cuMemPoolTrimTo, pool_handle(p), keep);
	capture_restore(mode);
}

void pool_expect_shrink(struct pool *p)
{
	/* Release: pairs with pools_synchronised, which then sees the memory that was freed. */
	__atomic_store_n(&p->shrinks, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&pool_shrink_expected, 1, __ATOMIC_RELEASE);
}

/* pool_check_reserve makes the next synchronisation update a pool that has reserved more than
 * it handed out, and more than its threshold. This is needed even without a new free: an
 * earlier free may have waited for another stream, or come while the last synchronisation
 * ended, and the pool may have grown by more than it needed. */
static void pool_check_reserve(struct pool *p)
{
	uint64_t seen = load_relaxed(&p->reserve.seen), threshold = 0;
	if (__atomic_load_n(&p->shrinks, __ATOMIC_RELAXED) || seen <= pool_whole_chunks(load_relaxed(&p->reserve.promised)))
		return;
	pool_get_attribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
	if (seen > threshold)
		pool_expect_shrink(p);
}

bool pool_update(struct pool *p)
{
	if (unlikely(load_relaxed(&p->reserve.ungranted)))
		pool_trim(p, reserve_granted(&p->reserve));
	bool done = reserve_look(&p->reserve);
	if (unlikely(!done))
		pool_expect_shrink(p);
	pool_check_reserve(p);
	return done;
}

bool pool_look(struct pool *p, bool trim)
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

/* pool_look_all updates the pools of a device, and returns whether all their charges equal
 * their reserved bytes. */
static bool pool_look_all(unsigned device, bool trim)
{
	bool done = true;
	unsigned n = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++)
		if (pool_handle(&pools[i]) && (device == RATION_DEVICES || pool_device(&pools[i]) == device))
			done = pool_look(&pools[i], trim) && done;
	return done;
}

/* pool_before_reading updates the charges for a reading of the driver's count: a pool may have
 * shrunk by itself. */
static bool pool_before_reading(unsigned device) { return pool_look_all(device, false); }

void pools_sync_charges(unsigned device) { pool_look_all(device, false); }

/* pool_relieve trims the pools of a device, to free room before a refusal. */
static void pool_relieve(unsigned device) { pool_look_all(device, true); }

/* Call pool_set_stamp after the driver has been asked to free memory of a destroyed pool, or to
 * destroy it: only a wait that begins after that proves that the memory is gone. If several
 * threads set a stamp, the latest stays. */
static void pool_set_stamp(struct pool *p)
{
	uint64_t now = __atomic_add_fetch(&pool_stamp, 1, __ATOMIC_SEQ_CST), before = load_relaxed(&p->freed_at);
	while (before < now && !__atomic_compare_exchange_n(&p->freed_at, &before, now, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
}

/* pool_finish frees the entry of a destroyed pool that has no memory left; it does nothing for
 * other pools. The driver keeps a pool's memory until no address of it is live and the frees
 * have taken effect. So a thread must have waited for the device, and have read since before
 * that wait: on an H200, cuMemFree waits and cuMemFreeAsync does not. */
static void pool_finish(struct pool *p, uint64_t since)
{
	uint32_t destroyed = POOL_DESTROYED;
	/* Sequentially consistent, with pool_forget and pool_destroyed. */
	if (__atomic_load_n(&p->destroyed, __ATOMIC_SEQ_CST) != POOL_DESTROYED || __atomic_load_n(&p->reserve.promised, __ATOMIC_SEQ_CST))
		return;
	if (__atomic_load_n(&p->freed_at, __ATOMIC_SEQ_CST) > since) {
		pool_expect_shrink(p); /* try again at the next wait */
		return;
	}
	/* Only one of several threads goes on. A pool without live memory stays so. */
	if (!__atomic_compare_exchange_n(&p->destroyed, &destroyed, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return;
	__atomic_fetch_sub(&pool_destroyed_count, 1, __ATOMIC_RELAXED);
	reserve_drop(&p->reserve);
	mutex_lock(&pool_list_lock, LOCK_POOL_LIST);
	p->used = false;
	mutex_unlock(&pool_list_lock);
}

void pool_destroyed(struct pool *p)
{
	reserve_mark_absent(&p->reserve); /* it may shrink without any call */
	bool empty = !load_relaxed(&p->reserve.seen);
	__atomic_fetch_add(&pool_destroyed_count, 1, __ATOMIC_RELAXED);
	/* Two steps: a free that sees POOL_ALIVE and sets no stamp was asked for before this
	 * stamp. */
	__atomic_store_n(&p->destroyed, POOL_ENDING, __ATOMIC_SEQ_CST);
	pool_set_stamp(p);
	__atomic_store_n(&p->destroyed, POOL_DESTROYED, __ATOMIC_SEQ_CST);
	pool_expect_shrink(p);
	if (empty)
		pool_finish(p, UINT64_MAX);
}

void pools_synchronised(unsigned device, uint64_t since)
{
	if (!pools_used())
		return;
	if (device == RATION_DEVICES)
		__atomic_exchange_n(&pool_shrink_expected, 0, __ATOMIC_ACQUIRE);
	unsigned n = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++) {
		struct pool *p = &pools[i];
		/* The end of a context may shrink any pool of its device. Other waits can
		 * shrink only pools from which memory was freed. */
		if (device == RATION_DEVICES ? !__atomic_load_n(&p->shrinks, __ATOMIC_RELAXED) : pool_device(p) != device)
			continue;
		__atomic_exchange_n(&p->shrinks, 0, __ATOMIC_ACQUIRE);
		if (pool_handle(p))
			pool_look(p, false);
		pool_finish(p, since);
	}
}

uint16_t pool_number(const struct pool *p) { return (uint16_t)(p - pools + 1); }

/* pool_forget counts an address as no longer live, after its record was removed. */
static void pool_forget(const struct alloc_record *r)
{
	struct pool *p = &pools[r->pool - 1];
	reserve_unpromise(&p->reserve, pool_whole_grains(r->bytes));
	pool_expect_shrink(p);
}

void pool_keep_address(const struct alloc_record *r)
{
	struct alloc_record old;
	context_replace(&context_addresses, r, &old);
	if (likely(!old.key))
		return;
	/* The old record belongs to a context that has ended: the driver reused the address
	 * before the record was removed. Its memory is gone, so return its charge. */
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

void pool_freed_async(const struct alloc_record *r)
{
	struct pool *p = &pools[r->pool - 1];
	/* Set the stamp before the address is forgotten: otherwise pool_finish could run in
	 * between. */
	if (unlikely(__atomic_load_n(&p->destroyed, __ATOMIC_SEQ_CST)))
		pool_set_stamp(p);
	pool_forget(r);
}

void pool_freed(const struct alloc_record *r, uint64_t since)
{
	struct pool *p = &pools[r->pool - 1];
	pool_forget(r);
	if (pool_handle(p))
		pool_look(p, false);
	for (unsigned i = 0; __atomic_load_n(&pool_destroyed_count, __ATOMIC_RELAXED) && i < POOL_MAX; i++)
		pool_finish(&pools[i], since);
}
