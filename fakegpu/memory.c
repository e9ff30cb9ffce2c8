/* Linear device memory: cuMemAlloc, cuMemFree and what asks about them. */
#include "capture.h"
#include "driver.h"
#include "space.h"

enum { PITCH = 512 };

/* Blocks that end by cuMemFree. */
enum {
	FREED_HERE = 1 << BLOCK_DATA | 1 << BLOCK_POOL | 1 << BLOCK_POOL_IMPORT | 1 << BLOCK_EXTERNAL,
};

static CUresult memory_alloc(CUdeviceptr *out, uint64_t bytes, bool low)
{
	struct context *c;
	struct block b;

	TRY(current_context(&c));
	TRY(capture_unsafe());
	if (out == NULL || bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	*out = 0;
	if (bytes > machine_capacity(c->device_index))
		return CUDA_ERROR_OUT_OF_MEMORY;
	b = (struct block){.kind = BLOCK_DATA, .size = bytes, .charged = physical_size(bytes), .device = c->device_index, .context = c};
	if (!machine_charge(b.device, KIND_DATA, b.charged))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!space_take(&b, low)) {
		machine_return(b.device, KIND_DATA, b.charged);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = b.address;
	return CUDA_SUCCESS;
}

static CUresult memory_alloc_pitch(CUdeviceptr *out, size_t *pitch, uint64_t width, uint64_t height, unsigned element, bool low)
{
	if (pitch == NULL || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	if (width > UINT64_MAX / 2 / height - PITCH)
		return CUDA_ERROR_OUT_OF_MEMORY;
	TRY(memory_alloc(out, round_up(width, PITCH) * height, low));
	*pitch = round_up(width, PITCH);
	return CUDA_SUCCESS;
}

static CUresult memory_bad_free(CUdeviceptr p, enum space_result why)
{
	static const char *const text[] = {
		[SPACE_UNKNOWN] = "was never allocated",
		[SPACE_INSIDE] = "lies inside an allocation",
		[SPACE_FREED] = "was freed before",
		[SPACE_OTHER] = "is not for cuMemFree",
	};
	report_error("cuMemFree: 0x%llx %s", p, text[why]);
	return CUDA_ERROR_INVALID_VALUE;
}

/* A free waits for the device. */
static void memory_wait(void)
{
	struct context *c;
	if (current_context(&c) == CUDA_SUCCESS)
		work_wait_all(&c->work);
}

/* The owner of a block of data is the number of its record (share.h), plus one, once a dma-buf or an
 * IPC handle of it was made. */
void memory_share(struct block *b)
{
	int number = b->kind != BLOCK_DATA || b->owner != NULL ? -1 : machine_share(b->device, b->charged);
	if (number >= 0)
		b->owner = (void *)((uintptr_t)number + 1);
}

void memory_return(const struct block *b)
{
	if (b->owner != NULL)
		machine_share_drop((unsigned)(uintptr_t)b->owner - 1, true);
	else
		machine_return(b->device, KIND_DATA, b->charged);
}

/* A dma-buf keeps all of the allocation, however small its range is. */
static CUresult memory_dma_buf(void *out, CUdeviceptr p, uint64_t size, int type, unsigned long long flags)
{
	enum { HOST_PAGE = 4096 };
	struct context *c;
	struct block b;
	int fd = -1;

	TRY(current_context(&c));
	if (out == NULL || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags > CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE ||
	    size == 0 || p % HOST_PAGE != 0 || size % HOST_PAGE != 0 || !space_find(p, &b) || b.address + b.size - p < size)
		return CUDA_ERROR_INVALID_VALUE;
	if (b.kind == BLOCK_RESERVATION)
		return vmm_dma_buf(out, p, size);
	if (b.kind != BLOCK_DATA)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (space_change(p, memory_share, &b) && b.owner != NULL)
		fd = machine_share_export((unsigned)(uintptr_t)b.owner - 1, true);
	if (fd < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

static CUresult memory_release(CUdeviceptr p)
{
	struct block b;
	enum space_result r;

	TRY(driver_ready());
	if (p == 0)
		return CUDA_SUCCESS;
	if (__builtin_expect(work_timed, 0))
		memory_wait();
	r = space_remove(p, FREED_HERE, &b);
	if (r == SPACE_UNKNOWN && host_free_managed((uintptr_t)p))
		return CUDA_SUCCESS;
	if (r == SPACE_OTHER && b.kind == BLOCK_GRAPH)
		return graph_freed(b.owner); /* the address stays the graph's */
	if (r != SPACE_OK)
		return memory_bad_free(p, r);
	if (b.kind == BLOCK_DATA) {
		memory_return(&b);
	} else if (b.kind == BLOCK_POOL) {
		pool_give(b.owner, b.size);
		pools_bury(); /* it waits for the device, as an H200 shows */
	}
	return CUDA_SUCCESS;
}

static CUresult memory_get_info(uint64_t *free_bytes, uint64_t *total)
{
	struct context *c;
	uint64_t used;

	TRY(current_context(&c));
	*total = machine_capacity(c->device_index);
	used = machine_used(c->device_index);
	*free_bytes = used < *total ? *total - used : 0;
	return CUDA_SUCCESS;
}

static CUresult memory_address_range(CUdeviceptr *base, uint64_t *size, CUdeviceptr p)
{
	struct context *c;
	struct host_range h;
	struct block b;

	TRY(current_context(&c));
	if (space_find(p, &b)) {
		*base = b.address;
		*size = b.size;
	} else if (host_find((uintptr_t)p, &h)) {
		*base = h.base;
		*size = h.size;
	} else {
		return CUDA_ERROR_NOT_FOUND;
	}
	return CUDA_SUCCESS;
}

API cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) { ENTRY(cuMemAlloc, memory_alloc(out, bytes, false)); }
API cuMemFree_v2(CUdeviceptr p) { ENTRY(cuMemFree, memory_release(p)); }

API cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
	ENTRY(cuMemAllocPitch, memory_alloc_pitch(out, pitch, width, height, element, false));
}

static CUresult memory_get_info_sizes(size_t *free_bytes, size_t *total)
{
	uint64_t f, t;
	TRY(memory_get_info(&f, &t));
	if (free_bytes != NULL)
		*free_bytes = f;
	if (total != NULL)
		*total = t;
	return CUDA_SUCCESS;
}

API cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { ENTRY(cuMemGetInfo, memory_get_info_sizes(free_bytes, total)); }

API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	CUdeviceptr b;
	uint64_t n;
	TRY(memory_address_range(&b, &n, p));
	if (base != NULL)
		*base = b;
	if (size != NULL)
		*size = n;
	return CUDA_SUCCESS;
}

API cuMemGetHandleForAddressRange(void *out, CUdeviceptr p, size_t size, int type, unsigned long long flags)
{
	ENTRY(cuMemGetHandleForAddressRange, memory_dma_buf(out, p, size, type, flags));
}

/* The un-suffixed calls speak 32 bits; their addresses come from below 4 GiB. */

static CUresult memory_alloc_v1(CUdeviceptr_v1 *out, unsigned bytes)
{
	CUdeviceptr p;
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(memory_alloc(&p, bytes, true));
	*out = (CUdeviceptr_v1)p;
	return CUDA_SUCCESS;
}

static CUresult memory_alloc_pitch_v1(CUdeviceptr_v1 *out, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
	CUdeviceptr p;
	size_t n;
	if (out == NULL || pitch == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(memory_alloc_pitch(&p, &n, width, height, element, true));
	*out = (CUdeviceptr_v1)p;
	*pitch = (unsigned)n;
	return CUDA_SUCCESS;
}

static unsigned memory_clamp(uint64_t n) { return n > UINT32_MAX ? UINT32_MAX : (unsigned)n; }

static CUresult memory_get_info_v1(unsigned *free_bytes, unsigned *total)
{
	uint64_t f, t;
	TRY(memory_get_info(&f, &t));
	if (free_bytes != NULL)
		*free_bytes = memory_clamp(f);
	if (total != NULL)
		*total = memory_clamp(t);
	return CUDA_SUCCESS;
}

API cuMemAlloc(CUdeviceptr_v1 *out, unsigned bytes) { ENTRY(cuMemAlloc, memory_alloc_v1(out, bytes)); }
API cuMemFree(CUdeviceptr_v1 p) { ENTRY(cuMemFree, memory_release(p)); }
API cuMemGetInfo(unsigned *free_bytes, unsigned *total) { ENTRY(cuMemGetInfo, memory_get_info_v1(free_bytes, total)); }

API cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
	ENTRY(cuMemAllocPitch, memory_alloc_pitch_v1(out, pitch, width, height, element));
}

API cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned *size, CUdeviceptr_v1 p)
{
	CUdeviceptr b;
	uint64_t n;
	TRY(memory_address_range(&b, &n, p));
	if (base != NULL)
		*base = (CUdeviceptr_v1)b;
	if (size != NULL)
		*size = memory_clamp(n);
	return CUDA_SUCCESS;
}
