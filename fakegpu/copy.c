/* Copies and fills. Device memory is not there, so these check their pointers and
 * move only what is real: host, pinned and managed memory, and memory that the program
 * has mapped (vmm.c). A copy out of other device memory delivers zeroes. */
#include <string.h>

#include "capture.h"
#include "driver.h"
#include "knobs.h"
#include "space.h"

/* One end of a copy: `real` is NULL where the bytes are on the device. */
struct end {
	void *real;
};

static CUresult copy_device_end(CUdeviceptr p, uint64_t n, struct end *out)
{
	struct host_range h;
	struct block b;

	out->real = NULL;
	if (space_find(p, &b)) {
		if (n > b.size - (p - b.address))
			return CUDA_ERROR_INVALID_VALUE;
		return b.kind == BLOCK_RESERVATION ? vmm_contents(p, n, &out->real) : CUDA_SUCCESS;
	}
	if (!host_find((uintptr_t)p, &h) || n > h.size - ((uintptr_t)p - h.base))
		return CUDA_ERROR_INVALID_VALUE;
	out->real = (void *)(uintptr_t)p;
	return CUDA_SUCCESS;
}

/* An address of either side, as cuMemcpy takes: what is not known is plain host memory. */
static CUresult copy_any_end(CUdeviceptr p, uint64_t n, struct end *out)
{
	struct block b;
	if (space_find(p, &b))
		return copy_device_end(p, n, out);
	out->real = (void *)(uintptr_t)p;
	return p == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* `taken`: the stream is captured, which is all there is to do. */
static CUresult copy_ready(CUstream s, bool *taken)
{
	struct context *c;
	*taken = false;
	TRY(current_context(&c));
	TRY(stream_check(s));
	return captures() ? capture_other(s, taken) : CUDA_SUCCESS;
}

#define COPY_READY(s)                         \
	do {                                  \
		bool taken;                   \
		TRY(copy_ready((s), &taken)); \
		if (taken)                    \
			return CUDA_SUCCESS;  \
	} while (0)

/* Copies that are not asynchronous come after all that is in their stream. */
static void copy_wait(CUstream s)
{
	struct context *c;
	if (__builtin_expect(work_timed, 0) && current_context(&c) == CUDA_SUCCESS && stream_check(s) == CUDA_SUCCESS)
		stream_finish(c, s);
}

static CUresult copy_synchronous(CUresult result, CUstream s)
{
	copy_wait(s);
	return result;
}

/* Where copies take time (FAKEGPU_COPY), so long does this one; its bytes are there at once. */
static void copy_take_time(uint64_t n, CUstream s)
{
	if (__builtin_expect(work_timed, 0) && knobs()->copy > 0)
		stream_submit_beside(s, n * 1000 / knobs()->copy);
}

static CUresult copy_move(struct end to, struct end from, uint64_t n, CUstream s)
{
	if (to.real != NULL && from.real != NULL)
		memmove(to.real, from.real, n);
	else if (to.real != NULL)
		memset(to.real, 0, n);
	copy_take_time(n, s);
	return CUDA_SUCCESS;
}

static CUresult copy_any(CUdeviceptr to, CUdeviceptr from, uint64_t n, CUstream s)
{
	struct end a, b;
	COPY_READY(s);
	if (n == 0)
		return CUDA_SUCCESS;
	TRY(copy_any_end(to, n, &a));
	TRY(copy_any_end(from, n, &b));
	return copy_move(a, b, n, s);
}

static CUresult copy_in(CUdeviceptr to, const void *from, uint64_t n, CUstream s)
{
	struct end a;
	COPY_READY(s);
	if (n == 0)
		return CUDA_SUCCESS;
	TRY(copy_device_end(to, n, &a));
	return from == NULL ? CUDA_ERROR_INVALID_VALUE : copy_move(a, (struct end){(void *)(uintptr_t)from}, n, s);
}

static CUresult copy_out(void *to, CUdeviceptr from, uint64_t n, CUstream s)
{
	struct end b;
	COPY_READY(s);
	if (n == 0)
		return CUDA_SUCCESS;
	TRY(copy_device_end(from, n, &b));
	return to == NULL ? CUDA_ERROR_INVALID_VALUE : copy_move((struct end){to}, b, n, s);
}

static CUresult copy_across(CUdeviceptr to, CUdeviceptr from, uint64_t n, CUstream s)
{
	struct end a, b;
	COPY_READY(s);
	if (n == 0)
		return CUDA_SUCCESS;
	TRY(copy_device_end(to, n, &a));
	TRY(copy_device_end(from, n, &b));
	return copy_move(a, b, n, s);
}

/* Every copy comes as the 32-bit call, today's, and the two that mean the thread's
 * own default stream. */
#define COPY(name, call, to_v1, from_v1, to_v2, from_v2)                                                                                   \
	API name(to_v1 to, from_v1 from, unsigned n) { ENTRY(name, copy_synchronous((copy_wait(NULL), call(to, from, n, NULL)), NULL)); }  \
	API name##_v2(to_v2 to, from_v2 from, size_t n)                                                                                    \
	{                                                                                                                                  \
		ENTRY(name, copy_synchronous((copy_wait(NULL), call(to, from, n, NULL)), NULL));                                           \
	}                                                                                                                                  \
	API name##_v2_ptds(to_v2 to, from_v2 from, size_t n)                                                                               \
	{                                                                                                                                  \
		ENTRY(name,                                                                                                                \
		      copy_synchronous((copy_wait(CU_STREAM_PER_THREAD), call(to, from, n, CU_STREAM_PER_THREAD)), CU_STREAM_PER_THREAD)); \
	}                                                                                                                                  \
	API name##Async(to_v1 to, from_v1 from, unsigned n, CUstream s) { ENTRY(name##Async, call(to, from, n, s)); }                      \
	API name##Async_v2(to_v2 to, from_v2 from, size_t n, CUstream s) { ENTRY(name##Async, call(to, from, n, s)); }                     \
	API name##Async_v2_ptsz(to_v2 to, from_v2 from, size_t n, CUstream s) { ENTRY(name##Async, call(to, from, n, per_thread(s))); }

COPY(cuMemcpyHtoD, copy_in, CUdeviceptr_v1, const void *, CUdeviceptr, const void *)
COPY(cuMemcpyDtoH, copy_out, void *, CUdeviceptr_v1, void *, CUdeviceptr)
COPY(cuMemcpyDtoD, copy_across, CUdeviceptr_v1, CUdeviceptr_v1, CUdeviceptr, CUdeviceptr)

API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n)
{
	ENTRY(cuMemcpy, copy_synchronous((copy_wait(NULL), copy_any(to, from, n, NULL)), NULL));
}
API cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t n)
{
	ENTRY(cuMemcpy,
	      copy_synchronous((copy_wait(CU_STREAM_PER_THREAD), copy_any(to, from, n, CU_STREAM_PER_THREAD)), CU_STREAM_PER_THREAD));
}

API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { ENTRY(cuMemcpyAsync, copy_any(to, from, n, s)); }

API cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s)
{
	ENTRY(cuMemcpyAsync, copy_any(to, from, n, per_thread(s)));
}

static CUresult copy_peer(CUdeviceptr to, CUcontext tc, CUdeviceptr from, CUcontext fc, size_t n, CUstream s)
{
	TRY(context_check(tc));
	TRY(context_check(fc));
	return copy_across(to, from, n, s);
}

API cuMemcpyPeer(CUdeviceptr to, CUcontext tc, CUdeviceptr from, CUcontext fc, size_t n)
{
	ENTRY(cuMemcpyPeer, copy_synchronous((copy_wait(NULL), copy_peer(to, tc, from, fc, n, NULL)), NULL));
}

API cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext tc, CUdeviceptr from, CUcontext fc, size_t n)
{
	ENTRY(cuMemcpyPeer, copy_synchronous((copy_wait(CU_STREAM_PER_THREAD), copy_peer(to, tc, from, fc, n, CU_STREAM_PER_THREAD)),
					     CU_STREAM_PER_THREAD));
}

API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext tc, CUdeviceptr from, CUcontext fc, size_t n, CUstream s)
{
	ENTRY(cuMemcpyPeerAsync, copy_peer(to, tc, from, fc, n, s));
}

API cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext tc, CUdeviceptr from, CUcontext fc, size_t n, CUstream s)
{
	ENTRY(cuMemcpyPeerAsync, copy_peer(to, tc, from, fc, n, per_thread(s)));
}

/* Copies of two and three dimensions are accepted and move nothing. Where today's calls keep width, height and
 * depth, in words: */
enum { SHAPED_2D = 14, SHAPED_3D = 22 };

static CUresult copy_shaped(const void *desc, unsigned size_at, CUstream s)
{
	const uint64_t *words = desc;
	COPY_READY(s);
	if (desc == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (size_at != 0 && knobs()->copy > 0)
		copy_take_time(words[size_at] * words[size_at + 1] * (size_at == SHAPED_3D ? words[size_at + 2] : 1), s);
	return CUDA_SUCCESS;
}

#define SHAPED_CALL(call, size_at, s) ENTRY(call, copy_synchronous((copy_wait(s), copy_shaped(d, size_at, s)), s))
#define SHAPED(name, size_at)                                              \
	API name(const void *d) { SHAPED_CALL(name, 0, NULL); }            \
	API name##_v2(const void *d) { SHAPED_CALL(name, size_at, NULL); } \
	API name##_v2_ptds(const void *d) { SHAPED_CALL(name, size_at, CU_STREAM_PER_THREAD); }

#define SHAPED_ASYNC(name, size_at)                                                           \
	API name(const void *d, CUstream s) { ENTRY(name, copy_shaped(d, 0, s)); }            \
	API name##_v2(const void *d, CUstream s) { ENTRY(name, copy_shaped(d, size_at, s)); } \
	API name##_v2_ptsz(const void *d, CUstream s) { ENTRY(name, copy_shaped(d, size_at, per_thread(s))); }

SHAPED(cuMemcpy2D, SHAPED_2D)
SHAPED(cuMemcpy2DUnaligned, SHAPED_2D)
SHAPED(cuMemcpy3D, SHAPED_3D)
SHAPED_ASYNC(cuMemcpy2DAsync, SHAPED_2D)
SHAPED_ASYNC(cuMemcpy3DAsync, SHAPED_3D)

/* Fills `width` elements on each of `height` lines. */
static CUresult copy_fill(CUdeviceptr p, uint64_t pitch, unsigned value, unsigned element, uint64_t width, uint64_t height, CUstream s)
{
	struct end e;

	COPY_READY(s);
	if (width == 0 || height == 0)
		return CUDA_SUCCESS;
	if (p % element != 0 || (height > 1 && pitch < width * element))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(copy_device_end(p, (height - 1) * pitch + width * element, &e));
	for (uint64_t y = 0; e.real != NULL && y < height; y++) {
		char *line = (char *)e.real + y * pitch;
		if (element == 1)
			memset(line, (int)value, width);
		for (uint64_t x = 0; element > 1 && x < width; x++) /* little-endian: the low bytes of the value */
			memcpy(line + x * element, &value, element);
	}
	return CUDA_SUCCESS;
}

#define FILL(bits, type)                                                                                                                \
	API cuMemsetD##bits(CUdeviceptr_v1 p, type v, unsigned n) { ENTRY(cuMemsetD##bits, copy_fill(p, 0, v, bits / 8, n, 1, NULL)); } \
	API cuMemsetD##bits##_v2(CUdeviceptr p, type v, size_t n) { ENTRY(cuMemsetD##bits, copy_fill(p, 0, v, bits / 8, n, 1, NULL)); } \
	API cuMemsetD##bits##_v2_ptds(CUdeviceptr p, type v, size_t n)                                                                  \
	{                                                                                                                               \
		ENTRY(cuMemsetD##bits, copy_fill(p, 0, v, bits / 8, n, 1, CU_STREAM_PER_THREAD));                                       \
	}                                                                                                                               \
	API cuMemsetD##bits##Async(CUdeviceptr p, type v, size_t n, CUstream s)                                                         \
	{                                                                                                                               \
		ENTRY(cuMemsetD##bits##Async, copy_fill(p, 0, v, bits / 8, n, 1, s));                                                   \
	}                                                                                                                               \
	API cuMemsetD##bits##Async_ptsz(CUdeviceptr p, type v, size_t n, CUstream s)                                                    \
	{                                                                                                                               \
		ENTRY(cuMemsetD##bits##Async, copy_fill(p, 0, v, bits / 8, n, 1, per_thread(s)));                                       \
	}                                                                                                                               \
	API cuMemsetD2D##bits(CUdeviceptr_v1 p, unsigned pitch, type v, unsigned w, unsigned h)                                         \
	{                                                                                                                               \
		ENTRY(cuMemsetD2D##bits, copy_fill(p, pitch, v, bits / 8, w, h, NULL));                                                 \
	}                                                                                                                               \
	API cuMemsetD2D##bits##_v2(CUdeviceptr p, size_t pitch, type v, size_t w, size_t h)                                             \
	{                                                                                                                               \
		ENTRY(cuMemsetD2D##bits, copy_fill(p, pitch, v, bits / 8, w, h, NULL));                                                 \
	}                                                                                                                               \
	API cuMemsetD2D##bits##_v2_ptds(CUdeviceptr p, size_t pitch, type v, size_t w, size_t h)                                        \
	{                                                                                                                               \
		ENTRY(cuMemsetD2D##bits, copy_fill(p, pitch, v, bits / 8, w, h, CU_STREAM_PER_THREAD));                                 \
	}                                                                                                                               \
	API cuMemsetD2D##bits##Async(CUdeviceptr p, size_t pitch, type v, size_t w, size_t h, CUstream s)                               \
	{                                                                                                                               \
		ENTRY(cuMemsetD2D##bits##Async, copy_fill(p, pitch, v, bits / 8, w, h, s));                                             \
	}                                                                                                                               \
	API cuMemsetD2D##bits##Async_ptsz(CUdeviceptr p, size_t pitch, type v, size_t w, size_t h, CUstream s)                          \
	{                                                                                                                               \
		ENTRY(cuMemsetD2D##bits##Async, copy_fill(p, pitch, v, bits / 8, w, h, per_thread(s)));                                 \
	}

FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)
