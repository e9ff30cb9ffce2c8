/* Linear memory: cuMemAlloc and its kin, and what frees an address, however it
 * came about. */
#include "charge.h"
#include "hooks/context.h"
#include "overhead.h"
#include "attach.h"
#include "hooks/pool.h"

/* keep remembers an address that was charged. */
static void keep(const struct alloc_target *at, CUdeviceptr address, uint64_t bytes, uint32_t flags)
{
	struct alloc_record r = {.key = address, .bytes = bytes, .device = (uint8_t)at->device->index, .context = at->context, .flags = flags};
	context_keep(&addresses, &r, RATION_DATA);
	overhead_tick();
}

/* ALLOCATE charges, asks the driver, and keeps or returns by its answer. */
#define ALLOCATE(flags, bytes, out, symbol, ...)                                                                       \
	do {                                                                                                           \
		struct alloc_target at_;                                                                                      \
		ENTER(symbol, __VA_ARGS__);                                                                            \
		HERE(&at_, symbol, __VA_ARGS__);                                                                       \
		uint64_t takes_ = (flags) & RECORD_MANAGED ? bytes : device_takes(at_.device, bytes);                  \
		int result_ = charge_add(at_.device->index, RATION_DATA, takes_, false);                           \
		if (unlikely(result_ != CUDA_SUCCESS))                                                                 \
			return result_;                                                                                \
		result_ = REAL(symbol, __VA_ARGS__);                                                                   \
		if (likely(result_ == CUDA_SUCCESS))                                                                   \
			keep(&at_, *(out), takes_, flags);                                                             \
		else                                                                                                   \
			charge_return(at_.device->index, RATION_DATA, takes_);                                        \
		return result_;                                                                                        \
	} while (0)

int cuMemAlloc(CUdeviceptr_v1 *out, unsigned bytes) { ALLOCATE(0, bytes, out, cuMemAlloc, out, bytes); }
int cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) { ALLOCATE(0, bytes, out, cuMemAlloc_v2, out, bytes); }

int cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags)
{
	ALLOCATE(RECORD_MANAGED, bytes, out, cuMemAllocManaged, out, bytes, flags);
}

/* The pitch is the driver's to choose; this is what it has been so far. */
static uint64_t likely_size(uint64_t width, uint64_t height)
{
	uint64_t bytes;
	if (width > UINT64_MAX - 511 || __builtin_mul_overflow((width + 511) / 512 * 512, height, &bytes))
		return UINT64_MAX;
	return bytes;
}

/* PITCHED charges the likely size first, and what it came to afterwards. */
#define PITCHED(symbol)                                                                                                \
	do {                                                                                                           \
		struct alloc_target at;                                                                                       \
		ENTER(symbol, out, pitch, width, height, element);                                                     \
		HERE(&at, symbol, out, pitch, width, height, element);                                                 \
		uint64_t guess = device_takes(at.device, likely_size(width, height));                                  \
		int result = charge_add(at.device->index, RATION_DATA, guess, false);                              \
		if (result != CUDA_SUCCESS)                                                                            \
			return result;                                                                                 \
		result = REAL(symbol, out, pitch, width, height, element);                                             \
		uint64_t real = result == CUDA_SUCCESS ? device_takes(at.device, (uint64_t)*pitch * height) : 0;       \
		charge_adjust(at.device->index, RATION_DATA, guess, real);                                            \
		if (result == CUDA_SUCCESS)                                                                            \
			keep(&at, *out, real, 0);                                                                      \
		return result;                                                                                         \
	} while (0)

int cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
	PITCHED(cuMemAllocPitch);
}

int cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
	PITCHED(cuMemAllocPitch_v2);
}

/* FREE takes the record before the driver is asked, since the address may be
 * another thread's as soon as it is free, and puts it back if the driver says no. */
#define FREE(symbol, ...)                                                                                              \
	do {                                                                                                           \
		struct alloc_record r;                                                                                       \
		LEAVE_ALONE(symbol, __VA_ARGS__);                                                                      \
		bool known = alloc_table_take(&addresses, at, &r);                                                         \
		int result = REAL(symbol, __VA_ARGS__);                                                                \
		if (unlikely(!known))                                                                                  \
			return result;                                                                                 \
		if (unlikely(result != CUDA_SUCCESS))                                                                  \
			alloc_table_put(&addresses, &r);                                                                   \
		else if (r.pool)                                                                                       \
			pool_freed(&r);                                                                                \
		else                                                                                                   \
			context_gone(&r, RATION_DATA);                                                                 \
		return result;                                                                                         \
	} while (0)

int cuMemFree(CUdeviceptr_v1 at) { FREE(cuMemFree, at); }
int cuMemFree_v2(CUdeviceptr at) { FREE(cuMemFree_v2, at); }
int cuMemFreeAsync(CUdeviceptr at, CUstream stream) { FREE(cuMemFreeAsync, at, stream); }
int cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream stream) { FREE(cuMemFreeAsync_ptsz, at, stream); }
