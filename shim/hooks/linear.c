/* Linear memory: cuMemAlloc and its variants, and every call that frees an address. */
#include "cannot.h"
#include "capture.h"
#include "charge.h"
#include "full.h"
#include "hooks/context_table.h"
#include "hooks/graph.h"
#include "hooks/graph_capture.h"
#include "hooks/lane.h"
#include "hooks/lane_alloc.h"
#include "hooks/managed.h"
#include "hooks/pool.h"
#include "overhead.h"

/* An allocation between its charge and the driver's answer. */
struct linear_alloc {
	struct alloc_target target; /* device is NULL if nothing is charged */
	uint64_t bytes;             /* bytes charged */
	uint16_t flags;             /* flags of its record */
};

/* linear_begin charges for an allocation. It returns CUDA_SUCCESS, or the error that the call
 * must return. If the arguments are not valid, or the context has failed, nothing is charged
 * and the program gets the driver's error, even if the request exceeds the limit. */
static int linear_begin(struct linear_alloc *a, bool valid, uint64_t bytes, uint16_t flags)
{
	a->target.device = NULL;
	int refused = likely(valid) ? context_enter(&a->target) : init_enter();
	if (unlikely(refused || !a->target.device))
		return refused;
	a->flags = flags;
	a->bytes = flags & RECORD_MANAGED ? bytes : device_rounded(a->target.device, bytes);
	if (unlikely(charge_would_refuse(a->target.device->index, a->bytes)) && context_failed()) {
		a->target.device = NULL;
		return CUDA_SUCCESS;
	}
	refused = charge_request(a->target.device->index, RATION_DATA, a->bytes);
	if (unlikely(refused))
		a->target.device = NULL;
	return refused;
}

/* linear_end records the charge if the driver allocated, and otherwise returns it. It returns
 * result. */
static int linear_end(const struct linear_alloc *a, int result, CUdeviceptr address)
{
	const struct alloc_target *t = &a->target;
	if (unlikely(!t->device))
		return result;
	if (unlikely(result != CUDA_SUCCESS)) {
		charge_return(t->device->index, RATION_DATA, a->bytes);
		full_log(t->device->index, a->bytes, result);
		return result;
	}
	pool_keep_address(&(struct alloc_record){
		.key = address, .bytes = a->bytes, .device = (uint8_t)t->device->index, .context = t->context, .flags = a->flags});
	charge_arrived(t->device->index, a->bytes);
	overhead_tick();
	return result;
}

int cuMemAlloc(CUdeviceptr_v1 *out, unsigned bytes)
{
	struct linear_alloc a;
	int result = REAL_UNLESS(linear_begin(&a, out && bytes, bytes, 0), cuMemAlloc, out, bytes);
	return linear_end(&a, result, result ? 0 : *out);
}

int cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
	struct linear_alloc a;
	int result = linear_begin(&a, out && bytes, bytes, 0);
	if (likely(result == CUDA_SUCCESS)) {
		if (unlikely(lane_alloc(&a.target, a.bytes, out)))
			a.flags |= RECORD_LANE;
		else
			result = REAL(cuMemAlloc_v2, out, bytes);
	}
	return linear_end(&a, result, result ? 0 : *out);
}

static bool linear_attaches(const CUdeviceptr *out, size_t bytes, unsigned flags)
{
	return out && bytes && (flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST);
}

int cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags)
{
	struct linear_alloc a;
	int denied = init_enter();
	bool begun = !denied && cannot_begin(RATION_CANNOT_MANAGED);
	int result = REAL_UNLESS(linear_begin(&a, linear_attaches(out, bytes, flags), bytes, RECORD_MANAGED), cuMemAllocManaged, out, bytes,
				 flags);
	linear_end(&a, result, result ? 0 : *out);
	if (begun)
		cannot_end(RATION_CANNOT_MANAGED, 1); /* its record counts from now on */
	return result;
}

/* linear_pitched_size estimates the size of a pitched allocation. The driver chooses the
 * pitch; so far it has rounded the width up to 512 bytes. */
static uint64_t linear_pitched_size(uint64_t width, uint64_t height)
{
	uint64_t bytes;
	if (width > UINT64_MAX - 511 || __builtin_mul_overflow((width + 511) / 512 * 512, height, &bytes))
		return UINT64_MAX;
	return bytes;
}

static bool linear_pitched(const void *pitch, uint64_t width, uint64_t height, unsigned element)
{
	return pitch && width && height && (element == 4 || element == 8 || element == 16);
}

/* linear_correct changes the charge from the estimated size to the real one. */
static void linear_correct(struct linear_alloc *a, uint64_t bytes)
{
	if (!a->target.device)
		return;
	uint64_t real = device_rounded(a->target.device, bytes);
	charge_correct(a->target.device->index, RATION_DATA, a->bytes, real);
	a->bytes = real;
}

int cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
	struct linear_alloc a;
	int result =
		REAL_UNLESS(linear_begin(&a, out && linear_pitched(pitch, width, height, element), linear_pitched_size(width, height), 0),
			    cuMemAllocPitch, out, pitch, width, height, element);
	if (result == CUDA_SUCCESS)
		linear_correct(&a, (uint64_t)*pitch * height);
	return linear_end(&a, result, result ? 0 : *out);
}

int cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
	struct linear_alloc a;
	int result =
		REAL_UNLESS(linear_begin(&a, out && linear_pitched(pitch, width, height, element), linear_pitched_size(width, height), 0),
			    cuMemAllocPitch_v2, out, pitch, width, height, element);
	if (result == CUDA_SUCCESS)
		linear_correct(&a, (uint64_t)*pitch * height);
	return linear_end(&a, result, result ? 0 : *out);
}

/* linear_free_begin removes the record of an address and returns it. An address without a
 * record may have been allocated by a graph. */
static struct alloc_record linear_free_begin(CUdeviceptr at)
{
	struct alloc_record r = context_free_begin(&context_addresses, at);
	if (unlikely(!r.key))
		graph_frees();
	return r;
}

/* linear_freed completes a free after the driver's call, and returns result. The address may
 * come from a pool, since programs may use cuMemFree and cuMemFreeAsync for either. since
 * points to pools_stamp before the call; NULL if the call does not wait for the device. */
static int linear_freed(const struct alloc_record *r, int result, const uint64_t *since)
{
	if (unlikely(!r->key))
		graph_frees();
	if (likely(context_free_end(&context_addresses, r, result == CUDA_SUCCESS))) {
		if (r->pool && since)
			pool_freed(r, *since);
		else if (r->pool)
			pool_freed_async(r);
		else
			context_return(r);
		if (unlikely(r->flags & RECORD_SENT))
			managed_freed(r);
	}
	return result;
}

int cuMemFree(CUdeviceptr_v1 at)
{
	struct alloc_record r = linear_free_begin(at);
	uint64_t since = pools_stamp();
	return linear_freed(&r, REAL(cuMemFree, at), &since);
}

/* linear_free_lane frees memory that the library has mapped. */
static int linear_free_lane(struct alloc_record *r)
{
	uint64_t since = pools_stamp();
	int result = lane_free(r);
	if (likely(!(r->flags & RECORD_FREED)))
		return linear_freed(r, result, &since);
	lane_keep_freed(r);
	return result;
}

int cuMemFree_v2(CUdeviceptr at)
{
	struct alloc_record r = linear_free_begin(at);
	uint64_t since = pools_stamp();
	if (unlikely(r.flags & RECORD_LANE))
		return linear_free_lane(&r);
	return linear_freed(&r, REAL(cuMemFree_v2, at), &since);
}

static int linear_call_free_async(CUdeviceptr at, CUstream stream, bool per_thread)
{
	return per_thread ? REAL(cuMemFreeAsync_ptsz, at, stream) : REAL(cuMemFreeAsync, at, stream);
}

/* linear_free_async is the body of the two calls. On a captured stream the call adds a node to a
 * graph, and frees nothing yet: it takes only addresses that a graph has allocated. */
static int linear_free_async(CUdeviceptr at, CUstream stream, bool per_thread)
{
	struct graph_capture capture;
	if (unlikely(capture_seen()) && attach_on() && graph_capture_of(stream, per_thread, &capture)) {
		int result = linear_call_free_async(at, stream, per_thread);
		if (result == CUDA_SUCCESS)
			graph_capture_freed(&capture, at);
		return result;
	}
	struct alloc_record r = linear_free_begin(at);
	if (unlikely(r.flags & RECORD_LANE))
		return linear_free_lane(&r);
	return linear_freed(&r, linear_call_free_async(at, stream, per_thread), NULL);
}

int cuMemFreeAsync(CUdeviceptr at, CUstream stream) { return linear_free_async(at, stream, false); }
int cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream stream) { return linear_free_async(at, stream, true); }
