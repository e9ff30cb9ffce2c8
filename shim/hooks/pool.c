#include "hooks/pool.h"

#include "capture.h"
#include "charge.h"
#include "hooks/context_table.h"
#include "hooks/graph.h"
#include "log.h"
#include "overhead.h"
#include "region/atomics.h"

enum { POOL_MAX = 1024 };

/* The steps in which a pool grows, and in which it hands out. */
static const uint64_t POOL_CHUNK = 32 << 20, POOL_GRAIN = 512;

static struct pool {
	CUmemoryPool handle; /* NULL: a free place, or destroyed and not yet empty. Atomic */
	mutex lock;          /* LOCK_POOL; held across the driver's calls on the pool */
	unsigned device;     /* the region's index; atomic */
	bool used;           /* the place is taken; under LOCK_POOL_LIST */
	bool counted;        /* neither the host's memory nor another process's; under lock */
	uint64_t charged;    /* bytes; under lock */
	uint64_t ungranted;  /* of charged, bytes that were refused, and could not be undone yet; under lock */
	uint64_t live;       /* addresses that were handed out and not freed; atomic */
	uint64_t live_bytes; /* theirs, rounded to grains; atomic */
	uint64_t rounding;   /* bytes that rounding added to them; atomic */
	uint32_t destroyed;  /* until pool_finish has freed the place; atomic */
} pools[POOL_MAX];

static unsigned pool_count;    /* places that were ever used; atomic */
static mutex pool_list_lock;   /* LOCK_POOL_LIST: over used, count and adding */
uint32_t pool_shrink_expected; /* atomic */

static bool pools_used(void) { return __atomic_load_n(&pool_count, __ATOMIC_RELAXED) != 0; }

static void pool_relieve(unsigned device, bool wait);
static bool pool_before_reading(unsigned device);

static struct pool *pool_find(CUmemoryPool handle)
{
	unsigned n = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++)
		if (__atomic_load_n(&pools[i].handle, __ATOMIC_ACQUIRE) == handle)
			return &pools[i];
	return NULL;
}

/* pool_add returns the pool with a handle, added if need be, or NULL where there are too
 * many. */
static struct pool *pool_add(CUmemoryPool handle, unsigned device, bool counted)
{
	static uint32_t logged;
	mutex_lock(&pool_list_lock, LOCK_POOL_LIST);
	struct pool *p = pool_find(handle);
	for (unsigned i = 0; i < POOL_MAX && !p; i++) {
		if (pools[i].used)
			continue;
		p = &pools[i];
		/* The lock stays as it is: a late pool_freed may hold it. */
		mutex_lock(&p->lock, LOCK_POOL);
		p->used = true;
		__atomic_store_n(&p->device, device, __ATOMIC_RELAXED);
		p->counted = counted;
		p->charged = p->ungranted = 0;
		__atomic_store_n(&p->rounding, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&p->live_bytes, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&p->live, 0, __ATOMIC_SEQ_CST); /* pool_finish may read it meanwhile */
		__atomic_store_n(&p->handle, handle, __ATOMIC_RELEASE);
		mutex_unlock(&p->lock);
		if (i >= pool_count)
			__atomic_store_n(&pool_count, i + 1, __ATOMIC_RELEASE);
	}
	mutex_unlock(&pool_list_lock);
	if (p) {
		charge_on_pressure(RELIEF_POOLS, pool_relieve);
		overhead_on_reading(READING_POOLS, pool_before_reading);
	} else if (!__atomic_exchange_n(&logged, 1, __ATOMIC_RELAXED))
		log_warn("more than %d memory pools: the others show as driver overhead", POOL_MAX);
	return p;
}

static uint64_t pool_attribute(const struct pool *p, int which, uint64_t otherwise)
{
	uint64_t value = 0;
	/* Seen on an H200: unless this thread is relaxed about it, the query fails while any
	 * stream is captured, and ends the capture. */
	int mode = capture_relax();
	int result = REAL(cuMemPoolGetAttribute, p->handle, which, &value);
	capture_restore(mode);
	return result == CUDA_SUCCESS ? value : otherwise;
}

/* pool_sync_charge goes from what is charged to what is reserved. Under the pool's lock. */
static void pool_sync_charge(struct pool *p, uint64_t charged)
{
	uint64_t now = pool_attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, charged);
	charge_resize(p->device, RATION_DATA, charged, now);
	p->charged = now;
}

/* pool_trim lets a pool shrink to so many bytes. It does not wait: what the device may
 * still be at work on stays. Under the pool's lock. */
static void pool_trim(const struct pool *p, uint64_t keep)
{
	int mode = capture_relax();
	REAL(cuMemPoolTrimTo, p->handle, keep);
	capture_restore(mode);
}

/* pool_return_ungranted gives back what was not granted, as far as the driver lets go of
 * it by now. Where the job has room for it, it counts as granted. Under the pool's lock. */
static void pool_return_ungranted(struct pool *p)
{
	uint64_t granted = p->charged > p->ungranted ? p->charged - p->ungranted : 0;
	pool_trim(p, granted);
	pool_sync_charge(p, p->charged);
	p->ungranted = p->charged > granted && charge_would_refuse(p->device, 0) ? p->charged - granted : 0;
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
 * synchronisation ended, and a pool may have grown by more than it needed. Under the
 * pool's lock. */
static void pool_check_reserve(const struct pool *p)
{
	if (!__atomic_load_n(&pool_shrink_expected, __ATOMIC_RELAXED) && p->charged > pool_whole_chunks(load_relaxed(&p->live_bytes)) &&
	    p->charged > pool_attribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0))
		pool_expect_shrink();
}

/* pool_update makes the charge what is reserved. Under the pool's lock. */
static void pool_update(struct pool *p)
{
	if (!p->counted || !p->handle)
		return;
	if (unlikely(p->ungranted))
		pool_return_ungranted(p);
	else
		pool_sync_charge(p, p->charged);
	pool_check_reserve(p);
}

/* pool_update_all updates a device's pools, after trimming them if trim. Without wait,
 * pools whose lock is held are left out; it returns whether there were none. */
static bool pool_update_all(unsigned device, bool wait, bool trim)
{
	bool all = true;
	unsigned n = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++) {
		struct pool *p = &pools[i];
		if (!__atomic_load_n(&p->handle, __ATOMIC_ACQUIRE))
			continue;
		if (wait)
			mutex_lock(&p->lock, LOCK_POOL);
		else if (!mutex_try(&p->lock, LOCK_POOL)) {
			all = false;
			continue;
		}
		/* Now that the place cannot become another pool's. */
		if (p->handle && p->counted && (device == RATION_DEVICES || p->device == device)) {
			if (trim)
				pool_trim(p, 0);
			pool_update(p);
		}
		mutex_unlock(&p->lock);
	}
	return all;
}

/* pool_before_reading brings the charges up to date for a reading of the driver: a pool
 * may have shrunk by itself. It returns whether it saw all of them. */
static bool pool_before_reading(unsigned device) { return pool_update_all(device, false, false); }

void pools_sync_charges(unsigned device) { pool_update_all(device, true, false); }

/* pool_relieve makes room before a refusal. */
static void pool_relieve(unsigned device, bool wait) { pool_update_all(device, wait, true); }

/* pool_finish frees the place of a destroyed pool. The driver keeps a pool's memory until
 * no address of it is live and the frees have come to pass: not before a synchronisation. */
static void pool_finish(struct pool *p)
{
	/* Full order with pool_freed and cuMemPoolDestroy. */
	if (!__atomic_load_n(&p->destroyed, __ATOMIC_SEQ_CST) || __atomic_load_n(&p->live, __ATOMIC_SEQ_CST))
		return;
	/* Again, under the lock: another thread may have finished it, and the place may have
	 * become another pool's that was destroyed with live addresses. */
	mutex_lock(&p->lock, LOCK_POOL);
	bool finishes = p->destroyed && !__atomic_load_n(&p->live, __ATOMIC_SEQ_CST);
	if (finishes) {
		__atomic_store_n(&p->destroyed, 0, __ATOMIC_SEQ_CST);
		charge_leaving(p->device, p->charged);
		charge_mark_absent(p->device, p->charged, false);
		charge_return(p->device, RATION_DATA, p->charged);
	}
	mutex_unlock(&p->lock);
	if (!finishes)
		return;
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
	pool_update_all(device, true, false);
	unsigned n = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++)
		if (device == RATION_DEVICES || __atomic_load_n(&pools[i].device, __ATOMIC_RELAXED) == device)
			pool_finish(&pools[i]);
}

/* pool_forget counts an address as no longer live. */
static void pool_forget(const struct alloc_record *r)
{
	struct pool *p = &pools[r->pool - 1];
	__atomic_fetch_sub(&p->rounding, pool_whole_grains(r->bytes) - r->bytes, __ATOMIC_RELAXED);
	__atomic_fetch_sub(&p->live_bytes, pool_whole_grains(r->bytes), __ATOMIC_RELAXED);
	__atomic_fetch_sub(&p->live, 1, __ATOMIC_SEQ_CST);
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
	if (pools_used())
		alloc_table_sweep(&context_addresses, pool_not_on_device, &device);
}

static void pool_lock_and_update(struct pool *p)
{
	mutex_lock(&p->lock, LOCK_POOL);
	pool_update(p);
	mutex_unlock(&p->lock);
}

void pool_freed(const struct alloc_record *r)
{
	pool_forget(r);
	pool_lock_and_update(&pools[r->pool - 1]);
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

/* pool_growth returns what the pool must reserve for a request, if it can use all it has
 * but what was not granted. */
static uint64_t pool_growth(struct pool *p, uint64_t bytes)
{
	uint64_t need;
	if (unlikely(p->ungranted))
		pool_return_ungranted(p);
	if (unlikely(p->ungranted))
		return pool_whole_chunks(bytes);
	uint64_t taken = pool_attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0) + load_relaxed(&p->rounding);
	if (__builtin_add_overflow(taken, pool_whole_grains(bytes), &need))
		return UINT64_MAX;
	return need > p->charged ? pool_whole_chunks(need - p->charged) : 0;
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
static void pool_undo(const struct pool_request *q, struct pool *p)
{
	uint64_t granted = p->charged;
	int result = pool_per_thread(q) ? REAL(cuMemFreeAsync_ptsz, *q->out, q->stream) : REAL(cuMemFreeAsync, *q->out, q->stream);
	if (result != CUDA_SUCCESS)
		log_warn("an allocation beyond the limit could not be undone (%d): its pool stays larger", result);
	*q->out = 0;
	/* On an idle stream the free comes to pass at once. */
	for (unsigned tries = 0; tries < 100 && !pool_stream_idle(q); tries++)
		;
	pool_trim(p, granted);
	pool_sync_charge(p, granted);
	p->ungranted = p->charged > granted ? p->charged - granted : 0;
	pool_expect_shrink();
}

/* pool_charge_rest charges what the pool grew by beyond pool_growth: what it had may be in
 * pieces, or wait for another stream. What does not fit is undone. */
static int pool_charge_rest(const struct pool_request *q, struct pool *p)
{
	uint64_t now = pool_attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, p->charged);
	/* Pieces that are too small to be used go first. */
	if (unlikely(now > p->charged) && charge_would_refuse(p->device, now - p->charged)) {
		pool_trim(p, 0);
		now = pool_attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, now);
	}
	if (likely(now <= p->charged)) {
		charge_resize(p->device, RATION_DATA, p->charged, now);
		p->charged = now;
		return CUDA_SUCCESS;
	}
	int result = charge_add(p->device, RATION_DATA, now - p->charged, true);
	if (result == CUDA_SUCCESS) {
		charge_arrived(p->device, now - p->charged);
		p->charged = now;
	} else {
		pool_undo(q, p);
	}
	return result;
}

/* pool_charge_and_call charges what the pool will grow by, and asks the driver. The pool
 * was last looked at when something of it was freed: if it has shrunk since, pool_growth
 * is too low, and pool_charge_rest charges the rest. Under the pool's lock. */
static int pool_charge_and_call(const struct pool_request *q, struct pool *p)
{
	uint64_t more = pool_growth(p, q->bytes);
	/* A stream that is none is the driver's to refuse. */
	if (more && unlikely(charge_would_refuse(p->device, more)) && !pool_stream_valid(q))
		return pool_call_driver(q);
	int result = more ? charge_add(p->device, RATION_DATA, more, true) : CUDA_SUCCESS;
	if (result != CUDA_SUCCESS)
		return result;
	result = pool_call_driver(q);
	if (result == CUDA_SUCCESS) {
		charge_arrived(p->device, more);
		p->charged += more;
		return pool_charge_rest(q, p);
	}
	charge_return(p->device, RATION_DATA, more);
	pool_sync_charge(p, p->charged);
	return result;
}

/* pool_keep counts an address as live, and records it. */
static void pool_keep(const struct pool_request *q, struct pool *p, const struct alloc_target *t)
{
	__atomic_fetch_add(&p->rounding, pool_whole_grains(q->bytes) - q->bytes, __ATOMIC_RELAXED);
	__atomic_fetch_add(&p->live_bytes, pool_whole_grains(q->bytes), __ATOMIC_RELAXED);
	__atomic_fetch_add(&p->live, 1, __ATOMIC_SEQ_CST);
	pool_keep_address(&(struct alloc_record){
		.key = *q->out, .bytes = q->bytes, .device = (uint8_t)p->device, .context = t->context, .pool = (uint16_t)(p - pools + 1)});
}

static int pool_allocate(const struct pool_request *q, struct pool *p, const struct alloc_target *t)
{
	if (!p || !p->counted)
		return pool_call_driver(q);
	mutex_lock(&p->lock, LOCK_POOL);
	uint64_t before = p->charged;
	int result = pool_charge_and_call(q, p);
	if (result == CUDA_SUCCESS)
		pool_keep(q, p, t);
	if (p->charged > before)
		pool_check_reserve(p);
	mutex_unlock(&p->lock);
	overhead_tick();
	return result;
}

static bool pool_stream_captured(const struct pool_request *q)
{
	int status = 0;
	int result =
		pool_per_thread(q) ? REAL(cuStreamIsCapturing_ptsz, q->stream, &status) : REAL(cuStreamIsCapturing, q->stream, &status);
	return result == CUDA_SUCCESS && status != 0;
}

/* pool_add_default adds a pool whose making was not hooked: a device's own, which programs
 * ask for by name. NULL for all others: the host's, which cost the device nothing, and
 * what is no pool at all. */
static struct pool *pool_add_default(CUmemoryPool handle)
{
	CUmemoryPool own = NULL;
	struct device *d;
	for (CUdevice ordinal = 0; REAL(cuDeviceGetDefaultMemPool, &own, ordinal) == CUDA_SUCCESS; ordinal++)
		if (own == handle)
			return device_of(ordinal, &d) == 1 ? pool_add(handle, d->index, true) : NULL;
	return NULL;
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
		graph_takes_memory();
		return pool_call_driver(&q);
	}
	if (unlikely(devices_several()) && !q.pool)
		pool_follow_stream(q.stream, &t);
	CUmemoryPool handle = q.pool;
	if (!handle && REAL(cuDeviceGetMemPool, &handle, t.device->ordinal) != CUDA_SUCCESS)
		return pool_call_driver(&q);
	struct pool *p = pool_find(handle);
	if (!p)
		p = q.pool ? pool_add_default(handle) : pool_add(handle, t.device->index, true);
	return pool_allocate(&q, p, &t);
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
	if (result == CUDA_SUCCESS && attach_on())
		pool_add(*out, d ? d->index : 0, d != NULL);
	return result;
}

int cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type, unsigned long long flags)
{
	int result = REAL(cuMemPoolImportFromShareableHandle, out, handle, type, flags);
	if (result == CUDA_SUCCESS && attach_on())
		pool_add(*out, 0, false);
	return result;
}

int cuMemPoolDestroy(CUmemoryPool handle)
{
	struct pool *p = handle && attach_on() ? pool_find(handle) : NULL;
	if (!p)
		return REAL(cuMemPoolDestroy, handle);
	mutex_lock(&p->lock, LOCK_POOL);
	/* What is left cannot be asked for afterwards, so the charge goes down to it now. */
	if (p->counted) {
		pool_trim(p, 0);
		pool_update(p);
	}
	/* Hidden first: the handle may be another pool's as soon as it is free. */
	__atomic_store_n(&p->handle, NULL, __ATOMIC_RELEASE);
	int result = REAL(cuMemPoolDestroy, handle);
	if (result != CUDA_SUCCESS) {
		__atomic_store_n(&p->handle, handle, __ATOMIC_RELEASE);
	} else {
		/* It may become less, unseen. */
		charge_mark_absent(p->device, p->charged, true);
		__atomic_store_n(&p->destroyed, 1, __ATOMIC_SEQ_CST);
	}
	bool empty = !p->charged;
	mutex_unlock(&p->lock);
	pool_expect_shrink();
	if (empty)
		pool_finish(p);
	return result;
}

static void pool_update_handle(CUmemoryPool handle)
{
	struct pool *p = handle && attach_on() ? pool_find(handle) : NULL;
	if (p)
		pool_lock_and_update(p);
}

int cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	int result = REAL(cuMemPoolTrimTo, pool, keep);
	pool_update_handle(pool);
	return result;
}

int cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	int result = REAL(cuMemPoolSetAttribute, pool, attribute, value);
	if (attach_on())
		pool_expect_shrink(); /* a lower threshold counts at the next synchronisation */
	pool_update_handle(pool);
	return result;
}
