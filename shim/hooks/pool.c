#include "hooks/pool.h"

#include "charge.h"
#include "region/atomics.h"
#include "hooks/context.h"
#include "overhead.h"
#include "hooks/graph.h"
#include "attach.h"
#include "log.h"

enum { MOST = 1024 };

/* The steps in which a pool grows, and in which it hands out. */
static const uint64_t CHUNK = 32 << 20, GRAIN = 512;

static struct pool {
	CUmemoryPool handle; /* NULL: free, or destroyed and not yet empty */
	mutex lock;          /* over charged; held across the driver's calls on the pool */
	unsigned device;
	bool used, counted; /* counted: not of the host, and not another process's */
	uint64_t charged;
	uint64_t owed; /* of that, what was not granted, and could not be undone yet */
	uint64_t live, slop; /* addresses handed out, and what rounding added to them */
	uint64_t handed; /* their bytes, rounded */
	uint32_t doomed; /* destroyed; the entry is free once finish was here */
} pools[MOST];

static unsigned high;
static mutex lock;     /* over used, high and adding */
static uint32_t dirty; /* a synchronisation may make a pool smaller */
uint32_t pools_any;

static struct pool *find(CUmemoryPool handle)
{
	unsigned n = __atomic_load_n(&high, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++)
		if (__atomic_load_n(&pools[i].handle, __ATOMIC_ACQUIRE) == handle)
			return &pools[i];
	return NULL;
}

static struct pool *add(CUmemoryPool handle, unsigned device, bool counted)
{
	static uint32_t told;
	mutex_lock(&lock);
	struct pool *p = find(handle);
	for (unsigned i = 0; i < MOST && !p; i++) {
		if (pools[i].used)
			continue;
		p = &pools[i];
		/* The lock stays as it is: a late pool_freed may hold it. */
		mutex_lock(&p->lock);
		p->used = true;
		__atomic_store_n(&p->device, device, __ATOMIC_RELAXED);
		p->counted = counted;
		p->charged = p->owed = 0;
		__atomic_store_n(&p->slop, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&p->handed, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&p->live, 0, __ATOMIC_SEQ_CST); /* finish may look at it meanwhile */
		__atomic_store_n(&p->handle, handle, __ATOMIC_RELEASE);
		mutex_unlock(&p->lock);
		if (i >= high)
			__atomic_store_n(&high, i + 1, __ATOMIC_RELEASE);
	}
	mutex_unlock(&lock);
	if (p)
		__atomic_store_n(&pools_any, 1, __ATOMIC_RELAXED);
	else if (!__atomic_exchange_n(&told, 1, __ATOMIC_RELAXED))
		log_warn("more than %d memory pools: the others show as driver overhead", MOST);
	return p;
}

static uint64_t attribute(const struct pool *p, int which, uint64_t otherwise)
{
	uint64_t value = 0;
	return REAL(cuMemPoolGetAttribute, p->handle, which, &value) == CUDA_SUCCESS ? value : otherwise;
}

/* pool_sync_charge goes from what is charged to what is reserved. Under the pool's lock. */
static void pool_sync_charge(struct pool *p, uint64_t charged)
{
	uint64_t now = attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, charged);
	charge_adjust(p->device, RATION_DATA, charged, now);
	p->charged = now;
}

/* trim lets a pool go down to so much. It never waits: what the device may still be at
 * work on stays. */
static void trim(const struct pool *p, uint64_t keep)
{
	int mode = graph_relax();
	REAL(cuMemPoolTrimTo, p->handle, keep);
	graph_unrelax(mode);
}

/* redeem gives back what the pool owes, as far as it can be had by now. It owes nothing
 * where the job has room for it. */
static void redeem(struct pool *p)
{
	uint64_t granted = p->charged > p->owed ? p->charged - p->owed : 0;
	trim(p, granted);
	pool_sync_charge(p, p->charged);
	p->owed = p->charged > granted && charge_would_refuse(p->device, 0) ? p->charged - granted : 0;
}

static uint64_t chunks(uint64_t bytes) { return bytes > UINT64_MAX - CHUNK ? UINT64_MAX : (bytes + CHUNK - 1) / CHUNK * CHUNK; }

/* Release: pairs with pools_synchronised, which then sees what was freed. */
static void soil(void) { __atomic_store_n(&dirty, 1, __ATOMIC_RELEASE); }

/* expect sees to it that the next synchronisation looks again, where a pool has more
 * than it handed out, and than it is to keep. That takes no free since the last one: what
 * was freed before may have waited for another stream, or come while that one ended, and a
 * pool may have grown by more than it needed. Under the pool's lock. */
static void expect(const struct pool *p)
{
	if (!__atomic_load_n(&dirty, __ATOMIC_RELAXED) && p->charged > chunks(load_relaxed(&p->handed)) &&
	    p->charged > attribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0))
		soil();
}

static void look(struct pool *p)
{
	if (!p->counted || !p->handle)
		return;
	if (unlikely(p->owed))
		redeem(p);
	else
		pool_sync_charge(p, p->charged);
	expect(p);
}

static void each(unsigned device, bool wait, bool relieve)
{
	unsigned n = __atomic_load_n(&high, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++) {
		struct pool *p = &pools[i];
		if (!__atomic_load_n(&p->handle, __ATOMIC_ACQUIRE))
			continue;
		if (!wait && !mutex_try(&p->lock))
			continue;
		if (wait)
			mutex_lock(&p->lock);
		/* Now that it cannot become another's. */
		if (p->handle && p->counted && (device == RATION_DEVICES || p->device == device)) {
			if (relieve)
				trim(p, 0);
			look(p);
		}
		mutex_unlock(&p->lock);
	}
}

void pools_sync_charges(unsigned device)
{
	if (pools_used())
		each(device, true, false);
}

void pools_relieve(unsigned device, bool wait)
{
	each(device, wait, true);
	graph_relieve(device, wait);
}

/* finish ends a destroyed pool. The driver keeps its memory until nothing of it
 * lives, and the frees have come to pass: not before a synchronisation. */
static void finish(struct pool *p)
{
	/* Full order with pool_freed and cuMemPoolDestroy. */
	if (!__atomic_load_n(&p->doomed, __ATOMIC_SEQ_CST) || __atomic_load_n(&p->live, __ATOMIC_SEQ_CST))
		return;
	/* Again, under the lock: another thread may have ended it, and the entry may have
	 * become another pool's that was destroyed with something of it living. */
	mutex_lock(&p->lock);
	bool ends = p->doomed && !__atomic_load_n(&p->live, __ATOMIC_SEQ_CST);
	if (ends) {
		__atomic_store_n(&p->doomed, 0, __ATOMIC_SEQ_CST);
		charge_mark_absent(p->device, p->charged, false);
		charge_return(p->device, RATION_DATA, p->charged);
	}
	mutex_unlock(&p->lock);
	if (!ends)
		return;
	mutex_lock(&lock);
	p->used = false;
	mutex_unlock(&lock);
}

void pools_synchronised(unsigned device)
{
	if (!pools_used())
		return;
	if (device == RATION_DEVICES)
		__atomic_exchange_n(&dirty, 0, __ATOMIC_ACQUIRE);
	each(device, true, false);
	unsigned n = __atomic_load_n(&high, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++)
		if (device == RATION_DEVICES || __atomic_load_n(&pools[i].device, __ATOMIC_RELAXED) == device)
			finish(&pools[i]);
}

static uint64_t grains(uint64_t bytes) { return (bytes + GRAIN - 1) / GRAIN * GRAIN; }

void pool_forget(const struct alloc_record *r)
{
	struct pool *p = &pools[r->pool - 1];
	__atomic_fetch_sub(&p->slop, grains(r->bytes) - r->bytes, __ATOMIC_RELAXED);
	__atomic_fetch_sub(&p->handed, grains(r->bytes), __ATOMIC_RELAXED);
	__atomic_fetch_sub(&p->live, 1, __ATOMIC_SEQ_CST);
	soil();
}

static bool elsewhere(struct alloc_record *r, void *device)
{
	if (!r->pool || r->device != *(const unsigned *)device)
		return true;
	pool_forget(r);
	return false;
}

void pools_emptied(unsigned device)
{
	if (pools_used())
		alloc_table_sweep(&addresses, elsewhere, &device);
}

void pool_freed(const struct alloc_record *r)
{
	struct pool *p = &pools[r->pool - 1];
	pool_forget(r);
	mutex_lock(&p->lock);
	look(p);
	mutex_unlock(&p->lock);
}

static void look_at(CUmemoryPool handle)
{
	struct pool *p = handle ? find(handle) : NULL;
	if (!p)
		return;
	mutex_lock(&p->lock);
	look(p);
	mutex_unlock(&p->lock);
}

/* Allocating. */

struct request {
	enum ration_call call;
	CUdeviceptr *out;
	size_t bytes;
	CUmemoryPool pool;
	CUstream stream;
};

static int perform(const struct request *q)
{
	switch (q->call) {
	case CALL_cuMemAllocAsync: return REAL(cuMemAllocAsync, q->out, q->bytes, q->stream);
	case CALL_cuMemAllocAsync_ptsz: return REAL(cuMemAllocAsync_ptsz, q->out, q->bytes, q->stream);
	case CALL_cuMemAllocFromPoolAsync: return REAL(cuMemAllocFromPoolAsync, q->out, q->bytes, q->pool, q->stream);
	default: return REAL(cuMemAllocFromPoolAsync_ptsz, q->out, q->bytes, q->pool, q->stream);
	}
}

/* growth is what the pool must reserve for a request, if it can use all it has. What it
 * owes it must not use. */
static uint64_t growth(struct pool *p, uint64_t bytes)
{
	uint64_t need;
	if (unlikely(p->owed))
		redeem(p);
	if (unlikely(p->owed))
		return chunks(bytes);
	uint64_t taken = attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0) + load_relaxed(&p->slop);
	if (__builtin_add_overflow(taken, grains(bytes), &need))
		return UINT64_MAX;
	return need > p->charged ? chunks(need - p->charged) : 0;
}

/* done says whether the stream has nothing left to do. */
static bool done(const struct request *q, bool per_thread)
{
	int mode = graph_relax();
	int result = per_thread ? REAL(cuStreamQuery_ptsz, q->stream) : REAL(cuStreamQuery, q->stream);
	graph_unrelax(mode);
	return result == CUDA_SUCCESS;
}

/* undo gives back what the driver has just given. Nobody waits for the stream here, as
 * the driver would not have: its work may wait for what this thread does next. So the
 * memory may stay the pool's for now, which then owes it. */
static void undo(const struct request *q, struct pool *p)
{
	bool per_thread = q->call == CALL_cuMemAllocAsync_ptsz || q->call == CALL_cuMemAllocFromPoolAsync_ptsz;
	uint64_t granted = p->charged;
	int result = per_thread ? REAL(cuMemFreeAsync_ptsz, *q->out, q->stream) : REAL(cuMemFreeAsync, *q->out, q->stream);
	if (result != CUDA_SUCCESS)
		log_warn("an allocation beyond the limit could not be undone (%d): its pool stays larger", result);
	*q->out = 0;
	/* Where nothing is before it the free comes to pass at once, and has once it is seen. */
	for (unsigned tries = 0; tries < 100 && !done(q, per_thread); tries++)
		;
	trim(p, granted);
	pool_sync_charge(p, granted);
	p->owed = p->charged > granted ? p->charged - granted : 0;
	soil();
}

/* answer_for charges what the pool grew by beyond what was foreseen: what it had may be
 * in pieces, or wait for another stream. What does not fit is undone. */
static int answer_for(const struct request *q, struct pool *p)
{
	uint64_t now = attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, p->charged);
	/* Pieces that nobody can use go first. */
	if (unlikely(now > p->charged) && charge_would_refuse(p->device, now - p->charged)) {
		trim(p, 0);
		now = attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, now);
	}
	if (likely(now <= p->charged)) {
		charge_adjust(p->device, RATION_DATA, p->charged, now);
		p->charged = now;
		return CUDA_SUCCESS;
	}
	int result = charge_add(p->device, RATION_DATA, now - p->charged, true);
	if (result == CUDA_SUCCESS)
		p->charged = now;
	else
		undo(q, p);
	return result;
}

/* What the pool has was looked at when something of it was freed. If it gave back more
 * since, too little is foreseen here, and answered for afterwards. */
static int charge_and_perform(const struct request *q, struct pool *p)
{
	uint64_t more = growth(p, q->bytes);
	int result = more ? charge_add(p->device, RATION_DATA, more, true) : CUDA_SUCCESS;
	if (result != CUDA_SUCCESS)
		return result;
	p->charged += more;
	result = perform(q);
	if (result == CUDA_SUCCESS)
		return answer_for(q, p);
	pool_sync_charge(p, p->charged);
	return result;
}

/* keep remembers an address. */
static void keep(const struct request *q, struct pool *p, const struct alloc_target *at)
{
	__atomic_fetch_add(&p->slop, grains(q->bytes) - q->bytes, __ATOMIC_RELAXED);
	__atomic_fetch_add(&p->handed, grains(q->bytes), __ATOMIC_RELAXED);
	__atomic_fetch_add(&p->live, 1, __ATOMIC_SEQ_CST);
	struct alloc_record r = {.key = *q->out, .bytes = q->bytes, .device = (uint8_t)p->device, .context = at->context,
			   .pool = (uint16_t)(p - pools + 1)};
	context_keep(&addresses, &r, RATION_DATA);
}

static int allocate(const struct request *q, struct pool *p, const struct alloc_target *at)
{
	if (!p || !p->counted)
		return perform(q);
	mutex_lock(&p->lock);
	uint64_t before = p->charged;
	int result = charge_and_perform(q, p);
	if (result == CUDA_SUCCESS)
		keep(q, p, at);
	if (p->charged > before)
		expect(p);
	mutex_unlock(&p->lock);
	overhead_tick();
	return result;
}

static bool capturing(CUstream stream, bool per_thread)
{
	int status = 0;
	int result = per_thread ? REAL(cuStreamIsCapturing_ptsz, stream, &status) : REAL(cuStreamIsCapturing, stream, &status);
	return result == CUDA_SUCCESS && status != 0;
}

/* add_default is for a pool that was not made where we saw it: a device's own, which
 * programs ask for by name. NULL for all others: the host's, which cost the device
 * nothing, and what is no pool at all. */
static struct pool *add_default(CUmemoryPool handle)
{
	CUmemoryPool own = NULL;
	struct device *d;
	for (CUdevice ordinal = 0; REAL(cuDeviceGetDefaultMemPool, &own, ordinal) == CUDA_SUCCESS; ordinal++)
		if (own == handle)
			return device_of(ordinal, &d) == 1 ? add(handle, d->index, true) : NULL;
	return NULL;
}

/* The pool is that of the stream's device, wherever the caller is. The streams that need
 * no making are the current context's. */
static void follow(CUstream stream, struct alloc_target *at)
{
	CUcontext c = NULL;
	struct alloc_target there;
	if ((uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD && REAL(cuStreamGetCtx, stream, &c) == CUDA_SUCCESS && c && context_target_of(c, &there))
		*at = there;
}

/* Async is the body of the four calls. */
static int async(struct request q, bool per_thread)
{
	struct alloc_target at;
	int here = context_target(&at);
	if (here < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (here == 0 || !q.out || !q.bytes)
		return perform(&q);
	if (unlikely(graph_captures()) && capturing(q.stream, per_thread)) {
		graph_takes_memory();
		return perform(&q);
	}
	if (unlikely(devices_several()) && !q.pool)
		follow(q.stream, &at);
	CUmemoryPool handle = q.pool;
	if (!handle && REAL(cuDeviceGetMemPool, &handle, at.device->ordinal) != CUDA_SUCCESS)
		return perform(&q);
	struct pool *p = find(handle);
	if (!p && !q.pool)
		p = add(handle, at.device->index, true);
	else if (!p)
		p = add_default(handle);
	return allocate(&q, p, &at);
}

int cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream)
{
	ENTER(cuMemAllocAsync, out, bytes, stream);
	return async((struct request){CALL_cuMemAllocAsync, out, bytes, NULL, stream}, false);
}

int cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream stream)
{
	ENTER(cuMemAllocAsync_ptsz, out, bytes, stream);
	return async((struct request){CALL_cuMemAllocAsync_ptsz, out, bytes, NULL, stream}, true);
}

int cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	ENTER(cuMemAllocFromPoolAsync, out, bytes, pool, stream);
	return async((struct request){CALL_cuMemAllocFromPoolAsync, out, bytes, pool, stream}, false);
}

int cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	ENTER(cuMemAllocFromPoolAsync_ptsz, out, bytes, pool, stream);
	return async((struct request){CALL_cuMemAllocFromPoolAsync_ptsz, out, bytes, pool, stream}, true);
}

/* The pools themselves. */

int cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
	ENTER(cuMemPoolCreate, out, props);
	struct device *d = NULL;
	bool on_device = props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
	if (on_device && device_of(props->location.id, &d) < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	int result = REAL(cuMemPoolCreate, out, props);
	if (result == CUDA_SUCCESS)
		add(*out, d ? d->index : 0, on_device && d);
	return result;
}

int cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type, unsigned long long flags)
{
	LEAVE_ALONE(cuMemPoolImportFromShareableHandle, out, handle, type, flags);
	int result = REAL(cuMemPoolImportFromShareableHandle, out, handle, type, flags);
	if (result == CUDA_SUCCESS)
		add(*out, 0, false);
	return result;
}

int cuMemPoolDestroy(CUmemoryPool handle)
{
	LEAVE_ALONE(cuMemPoolDestroy, handle);
	struct pool *p = handle ? find(handle) : NULL;
	if (!p)
		return REAL(cuMemPoolDestroy, handle);
	mutex_lock(&p->lock);
	/* Nobody can ask how much is left afterwards, so it goes down to that now. */
	if (p->counted) {
		trim(p, 0);
		look(p);
	}
	/* Out of sight first: the handle may be another's as soon as it is free. */
	__atomic_store_n(&p->handle, NULL, __ATOMIC_RELEASE);
	int result = REAL(cuMemPoolDestroy, handle);
	if (result != CUDA_SUCCESS) {
		__atomic_store_n(&p->handle, handle, __ATOMIC_RELEASE);
	} else {
		/* It may become less, and nobody would say so. */
		charge_mark_absent(p->device, p->charged, true);
		__atomic_store_n(&p->doomed, 1, __ATOMIC_SEQ_CST);
	}
	bool empty = !p->charged;
	mutex_unlock(&p->lock);
	soil();
	if (empty)
		finish(p);
	return result;
}

int cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	LEAVE_ALONE(cuMemPoolTrimTo, pool, keep);
	int result = REAL(cuMemPoolTrimTo, pool, keep);
	look_at(pool);
	return result;
}

int cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	LEAVE_ALONE(cuMemPoolSetAttribute, pool, attribute, value);
	int result = REAL(cuMemPoolSetAttribute, pool, attribute, value);
	soil(); /* a lower threshold counts at the next synchronisation */
	look_at(pool);
	return result;
}

/* Synchronising: when pools give memory back. And the driver's figure is read here as
 * well as beside allocations, when it is time to: a program that has all it needs in
 * its first second only computes from then on. A look at the coarse clock is a few
 * nanoseconds, where waiting for a device is microseconds. */

#define SYNCHRONISE(symbol, ...)                                                                                       \
	do {                                                                                                           \
		int result_ = REAL(symbol, __VA_ARGS__);                                                               \
		if (unlikely(__atomic_load_n(&dirty, __ATOMIC_RELAXED)) && result_ == CUDA_SUCCESS &&                  \
		    attach_state() == ATTACH_ON)                                                                           \
			pools_synchronised(RATION_DEVICES);                                                            \
		overhead_synchronised();                                                                                       \
		return result_;                                                                                        \
	} while (0)

int cuCtxSynchronize(void) { SYNCHRONISE(cuCtxSynchronize); }
int cuCtxSynchronize_v2(CUcontext c) { SYNCHRONISE(cuCtxSynchronize_v2, c); }
int cuStreamSynchronize(CUstream s) { SYNCHRONISE(cuStreamSynchronize, s); }
int cuStreamSynchronize_ptsz(CUstream s) { SYNCHRONISE(cuStreamSynchronize_ptsz, s); }
int cuEventSynchronize(CUevent e) { SYNCHRONISE(cuEventSynchronize, e); }
