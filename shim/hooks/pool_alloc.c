/* Allocating from pools: the four calls, and how they are charged. */
#include "capture.h"
#include "charge.h"
#include "charge_wait.h"
#include "full.h"
#include "hooks/context_table.h"
#include "hooks/graph_capture.h"
#include "hooks/pool.h"
#include "log.h"
#include "overhead.h"
#include "region/atomics.h"

/* How often we ask for the current pool while other threads destroy it. */
enum { POOL_TRIES = 8 };

/* The largest request that is charged by its size, in bytes. No device has more, and sums of
 * larger ones could overflow: see pool_refuse_huge. */
static const uint64_t POOL_MOST = UINT64_C(1) << 48;

/* A call that allocates from a pool. */
struct pool_request {
	enum ration_call call;
	CUdeviceptr *out;
	size_t bytes;
	CUmemoryPool pool; /* NULL: the device's current pool */
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

/* pool_stream_idle reports whether all work of the stream has finished. */
static bool pool_stream_idle(const struct pool_request *q)
{
	int mode = capture_relax();
	int result = pool_per_thread(q) ? REAL(cuStreamQuery_ptsz, q->stream) : REAL(cuStreamQuery, q->stream);
	capture_restore(mode);
	return result == CUDA_SUCCESS;
}

/* pool_undo frees memory that the driver has just allocated. It does not wait for the stream,
 * whose work may depend on something that this thread does next. So the pool may keep the
 * memory for now, as ungranted bytes. */
static void pool_undo(const struct pool_request *q, struct pool *p, uint64_t found)
{
	uint64_t left = reserve_undoing(&p->reserve, found);
	int result = pool_per_thread(q) ? REAL(cuMemFreeAsync_ptsz, *q->out, q->stream) : REAL(cuMemFreeAsync, *q->out, q->stream);
	if (result != CUDA_SUCCESS)
		log_warn("an allocation beyond the limit could not be undone (%d): its pool stays larger", result);
	*q->out = 0;
	/* On an idle stream the free takes effect at once. */
	for (unsigned tries = 0; tries < 100 && !pool_stream_idle(q); tries++)
		;
	pool_trim(p, left);
	reserve_undone(&p->reserve, found, left);
	pool_expect_shrink(p);
}

/* pool_charge_found charges the bytes by which the pool grew more than expected: its free
 * memory may be in pieces, or wait for another stream. If they do not fit, the allocation is
 * undone. It returns CUDA_SUCCESS, or the error that the call must return. */
static int pool_charge_found(const struct pool_request *q, struct pool *p, uint64_t found)
{
	__atomic_store_n(&p->in_pieces, 1, __ATOMIC_RELAXED);
	/* Release pieces that are too small to be used first. */
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

/* pool_grow charges the bytes that the pool must reserve for a request, if it can use all the
 * memory that it has and that was granted. It returns CUDA_SUCCESS, or the error that the call
 * must return. If the stream is invalid, it leaves the error to the driver.
 *
 * If the whole request would exceed the limit, the driver is asked how much memory is in use,
 * which may be more than this process was handed out. And a pool that has grown although it had
 * room is trimmed once, so that memory in pieces does not look usable; if the whole request
 * fits then, all of it is charged. If it does not fit it is not refused here: memory that was
 * freed on the same stream may serve it, and a trim does not release that before the device has
 * reached the free. */
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
	if ((least || !reserve_has_room(r)) && charge_would_refuse(pool_device(p), whole) &&
	    !capture_stream_valid(q->stream, pool_per_thread(q)))
		return CUDA_SUCCESS;
	return reserve_grow(r, own, beyond, least, growth);
}

/* pool_charge_and_call charges the bytes by which the pool will grow, and calls the driver. It
 * returns the result of the hooked call. */
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
		full_log(pool_device(p), q->bytes, result);
		return result;
	}
	uint64_t found = reserve_grown(r, growth);
	return unlikely(found) ? pool_charge_found(q, p, found) : CUDA_SUCCESS;
}

/* pool_keep stores the record of the address that was allocated. */
static void pool_keep(const struct pool_request *q, struct pool *p, const struct alloc_target *t)
{
	pool_keep_address(&(struct alloc_record){.key = *q->out,
						 .bytes = q->bytes,
						 .device = (uint8_t)pool_device(p),
						 .flags = p->managed ? RECORD_MANAGED_POOL : 0,
						 .context = t->context,
						 .pool = pool_number(p)});
}

/* pool_refuse_huge handles a request above POOL_MOST: it is refused if the job has a limit, and
 * otherwise passed to the driver. */
static int pool_refuse_huge(const struct pool_request *q, const struct pool *p)
{
	int refused = charge_add(pool_device(p), RATION_DATA, UINT64_MAX);
	if (refused)
		return refused;
	charge_return(pool_device(p), RATION_DATA, UINT64_MAX);
	return pool_call_driver(q);
}

/* pool_promise begins a request: the pool is not destroyed until the request has ended. It
 * returns false if the pool is being destroyed, or its entry belongs to another pool by now. */
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

/* pool_request_from allocates from a pool that is counted, after pool_promise. It returns the
 * result of the hooked call. */
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
		pool_expect_shrink(p);
	return result;
}

/* pool_allocate allocates from the pool that the request names, with the result of the hooked
 * call in *result. It returns false, and has done nothing, if the pool is being destroyed. */
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

/* pool_add_default adds a pool that no hooked call made: a device's own pool, for which
 * programs can ask. It returns NULL for others: pools of the host, which take no device memory,
 * and handles that are no pool. */
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

/* pool_follow_stream sets the target to the stream's context: the pool is that of the stream's
 * device, whichever context is current. The predefined streams belong to the current context. */
static void pool_follow_stream(CUstream stream, struct alloc_target *t)
{
	CUcontext c = NULL;
	struct alloc_target there;
	if ((uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD && REAL(cuStreamGetCtx, stream, &c) == CUDA_SUCCESS && c &&
	    context_target_of(c, &there))
		*t = there;
}

/* pool_alloc_named allocates from a pool that the program names. If the program is destroying
 * that pool, the driver reports the error. */
static int pool_alloc_named(const struct pool_request *q, const struct alloc_target *t)
{
	int result;
	struct pool *p = pool_find(q->pool);
	if (!p)
		p = pool_add_default(q->pool);
	return p && p->counted && pool_allocate(q, p, t, &result) ? result : pool_call_driver(q);
}

/* pool_alloc_current allocates from the device's current pool. It asks the driver which pool is
 * current, and then allocates from that pool by name: another thread may change the current
 * pool between the charge and the driver's call. A pool that is being destroyed is not current
 * any more (cuMemPoolDestroy), so the next try finds another one. */
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

/* pool_alloc_captured allocates on a captured stream. Nothing is charged: the graph takes the memory
 * when it is launched. */
static int pool_alloc_captured(const struct pool_request *q, const struct graph_capture *c, struct alloc_target *t)
{
	int result = pool_call_driver(q);
	if (result != CUDA_SUCCESS)
		return result;
	struct pool *p = q->pool ? pool_find(q->pool) : NULL;
	if (q->pool && !p)
		p = pool_add_default(q->pool);
	if (!q->pool && devices_several())
		pool_follow_stream(q->stream, t);
	unsigned device = t->device->index;
	if (q->pool)
		device = p && p->counted && !p->managed ? pool_device(p) : RATION_DEVICES;
	graph_capture_allocated(c, device, *q->out, q->bytes);
	return result;
}

/* pool_alloc_async is the body of the four allocating calls. */
static int pool_alloc_async(struct pool_request q)
{
	struct alloc_target t;
	int denied = context_enter(&t);
	if (denied)
		return denied;
	bool named = q.call == CALL_cuMemAllocFromPoolAsync || q.call == CALL_cuMemAllocFromPoolAsync_ptsz;
	if (!t.device || !q.out || !q.bytes || (named && !q.pool))
		return pool_call_driver(&q);
	struct graph_capture capture;
	if (unlikely(capture_seen()) && graph_capture_of(q.stream, pool_per_thread(&q), &capture))
		return pool_alloc_captured(&q, &capture, &t);
	if (!q.pool && unlikely(devices_several()))
		pool_follow_stream(q.stream, &t);
	return charge_waiting(q.pool ? pool_alloc_named(&q, &t) : pool_alloc_current(&q, &t));
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
