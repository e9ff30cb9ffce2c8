/* Host memory that the device can access: pinned, registered and managed. It is real memory, so
 * that programs can read and write it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

/* Sorted by base; ranges do not overlap. */
static struct host_range *host_ranges;
static size_t host_count, host_room;
static pthread_rwlock_t host_lock = PTHREAD_RWLOCK_INITIALIZER;

/* Returns the index of the first range that ends above the address. The caller holds host_lock. */
static size_t host_first_above(uintptr_t address)
{
	size_t low = 0, high = host_count;
	while (low < high) {
		size_t mid = (low + high) / 2;
		if (host_ranges[mid].base + host_ranges[mid].size > address)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

bool host_find(uintptr_t address, struct host_range *out)
{
	bool found;
	size_t i;
	pthread_rwlock_rdlock(&host_lock);
	i = host_first_above(address);
	found = i < host_count && host_ranges[i].base <= address;
	if (found)
		*out = host_ranges[i];
	pthread_rwlock_unlock(&host_lock);
	return found;
}

static CUresult host_add(const struct host_range *r)
{
	CUresult result = CUDA_SUCCESS;
	size_t i;

	pthread_rwlock_wrlock(&host_lock);
	i = host_first_above(r->base);
	if (i < host_count && host_ranges[i].base < r->base + r->size) {
		result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	} else if (host_count == host_room) {
		size_t more = host_room == 0 ? 64 : host_room * 2;
		struct host_range *grown = realloc(host_ranges, more * sizeof *grown);
		if (grown == NULL) {
			result = CUDA_ERROR_OUT_OF_MEMORY;
		} else {
			host_ranges = grown;
			host_room = more;
		}
	}
	if (result == CUDA_SUCCESS) {
		memmove(&host_ranges[i + 1], &host_ranges[i], (host_count - i) * sizeof *host_ranges);
		host_ranges[i] = *r;
		host_count++;
	}
	pthread_rwlock_unlock(&host_lock);
	return result;
}

bool host_has_managed(void)
{
	bool found = false;
	pthread_rwlock_rdlock(&host_lock);
	for (size_t i = 0; i < host_count && !found; i++)
		found = host_ranges[i].kind == HOST_MANAGED;
	pthread_rwlock_unlock(&host_lock);
	return found;
}

static bool host_take_out(uintptr_t base, enum host_kind kind, struct host_range *out)
{
	bool found;
	size_t i;
	pthread_rwlock_wrlock(&host_lock);
	i = host_first_above(base);
	found = i < host_count && host_ranges[i].base == base && host_ranges[i].kind == kind;
	if (found) {
		*out = host_ranges[i];
		memmove(&host_ranges[i], &host_ranges[i + 1], (host_count - i - 1) * sizeof *host_ranges);
		host_count--;
	}
	pthread_rwlock_unlock(&host_lock);
	return found;
}

static CUresult host_map_range(struct host_range *r)
{
	void *p;

	TRY(current_context(&r->context));
	if (r->size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	p = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r->base = (uintptr_t)p;
	if (host_add(r) != CUDA_SUCCESS) {
		munmap(p, r->size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

static CUresult host_alloc_pinned(size_t bytes, unsigned flags, void **out)
{
	struct host_range r = {.size = bytes, .kind = HOST_PINNED, .flags = flags};
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	TRY(host_map_range(&r));
	*out = (void *)r.base;
	return CUDA_SUCCESS;
}

/* Moves managed memory to a device (by index), or to the host (-1). It uses device memory from the
 * moment it is moved to the device until it is moved away or freed. It moves only as a whole. If it
 * does not fit, it stays on the host, as on a real oversubscribed device. */
static void host_move(struct host_range *r, int device)
{
	uint64_t size = physical_size(r->size);
	if (r->resident > 0 && (int)r->device != device) {
		machine_return(r->device, KIND_DATA, r->resident);
		r->resident = 0;
	}
	if (device >= 0 && r->resident == 0 && machine_charge((unsigned)device, KIND_DATA, size)) {
		r->resident = size;
		r->device = (unsigned)device;
	}
}

CUresult host_new_managed(uint64_t bytes, unsigned flags, struct pool *pool, int device, CUdeviceptr *out)
{
	struct host_range r = {.size = bytes, .kind = HOST_MANAGED, .flags = flags, .pool = pool};
	host_move(&r, device);
	CUresult result = host_map_range(&r);
	if (result != CUDA_SUCCESS)
		host_move(&r, -1);
	else
		*out = (CUdeviceptr)r.base;
	return result;
}

static CUresult host_alloc_managed(CUdeviceptr *out, size_t bytes, unsigned flags)
{
	if (out == NULL || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	return host_new_managed(bytes, flags, NULL, -1, out);
}

bool host_free_managed(uintptr_t base)
{
	struct host_range r;
	if (!host_take_out(base, HOST_MANAGED, &r))
		return false;
	host_move(&r, -1);
	munmap((void *)r.base, r.size);
	if (r.pool != NULL)
		pool_give(r.pool, r.size);
	return true;
}

void host_end_managed(const struct context *context, bool last)
{
	uintptr_t base;
	do {
		base = 0;
		pthread_rwlock_rdlock(&host_lock);
		for (size_t i = 0; i < host_count && base == 0; i++)
			if (host_ranges[i].kind == HOST_MANAGED && host_ranges[i].context == context &&
			    (host_ranges[i].pool == NULL || last))
				base = host_ranges[i].base;
		pthread_rwlock_unlock(&host_lock);
	} while (base != 0 && host_free_managed(base));
}

static CUresult host_free_host(void *p)
{
	struct host_range r;
	TRY(driver_ready());
	if (p == NULL)
		return CUDA_SUCCESS;
	if (!host_take_out((uintptr_t)p, HOST_PINNED, &r)) {
		report_error("cuMemFreeHost: %p is not a pinned allocation", p);
		return CUDA_ERROR_INVALID_VALUE;
	}
	munmap(p, r.size);
	return CUDA_SUCCESS;
}

static CUresult host_register(void *p, size_t bytes, unsigned flags)
{
	struct host_range r = {.base = (uintptr_t)p, .size = bytes, .kind = HOST_REGISTERED, .flags = flags};
	TRY(current_context(&r.context));
	if (p == NULL || bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	return host_add(&r);
}

static CUresult host_unregister(void *p)
{
	struct host_range r;
	TRY(driver_ready());
	if (host_take_out((uintptr_t)p, HOST_REGISTERED, &r))
		return CUDA_SUCCESS;
	report_error("cuMemHostUnregister: %p is not registered", p);
	return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

API cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) { ENTRY(cuMemAllocManaged, host_alloc_managed(out, bytes, flags)); }

API cuMemAllocHost_v2(void **out, size_t bytes) { ENTRY(cuMemAllocHost, host_alloc_pinned(bytes, 0, out)); }
API cuMemAllocHost(void **out, unsigned bytes) { ENTRY(cuMemAllocHost, host_alloc_pinned(bytes, 0, out)); }

API cuMemHostAlloc(void **out, size_t bytes, unsigned flags) { ENTRY(cuMemHostAlloc, host_alloc_pinned(bytes, flags, out)); }

API cuMemFreeHost(void *p) { ENTRY(cuMemFreeHost, host_free_host(p)); }

API cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) { ENTRY(cuMemHostRegister, host_register(p, bytes, flags)); }

API cuMemHostRegister(void *p, size_t bytes, unsigned flags) { ENTRY(cuMemHostRegister, host_register(p, bytes, flags)); }

API cuMemHostUnregister(void *p) { ENTRY(cuMemHostUnregister, host_unregister(p)); }

API cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned flags)
{
	struct host_range r;
	struct context *c;
	TRY(current_context(&c));
	if (out == NULL || flags != 0 || !host_find((uintptr_t)p, &r))
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUdeviceptr)(uintptr_t)p;
	return CUDA_SUCCESS;
}

/* Host memory has addresses that do not fit into 32 bits. */
API cuMemHostGetDevicePointer(CUdeviceptr_v1 *out, void *p, unsigned flags)
{
	CUdeviceptr d;
	TRY(cuMemHostGetDevicePointer_v2(&d, p, flags));
	if (out == NULL || d > UINT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUdeviceptr_v1)d;
	return CUDA_SUCCESS;
}

API cuMemHostGetFlags(unsigned *flags, void *p)
{
	struct host_range r;
	TRY(driver_ready());
	if (flags == NULL || !host_find((uintptr_t)p, &r))
		return CUDA_ERROR_INVALID_VALUE;
	*flags = r.flags;
	return CUDA_SUCCESS;
}

/* Prefetches to a device (by index), or to the host (-1). */
static CUresult host_prefetch(CUdeviceptr p, size_t bytes, int device)
{
	struct context *c;
	size_t i;

	TRY(current_context(&c));
	if (bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&host_lock);
	i = host_first_above((uintptr_t)p);
	if (i == host_count || host_ranges[i].base > p || host_ranges[i].kind != HOST_MANAGED ||
	    host_ranges[i].base + host_ranges[i].size - p < bytes) {
		pthread_rwlock_unlock(&host_lock);
		return CUDA_ERROR_INVALID_VALUE;
	}
	host_move(&host_ranges[i], device);
	pthread_rwlock_unlock(&host_lock);
	return CUDA_SUCCESS;
}

static CUresult host_prefetch_v1(CUdeviceptr p, size_t bytes, CUdevice device, CUstream s)
{
	TRY(stream_check(s));
	if (device == CU_DEVICE_CPU)
		return host_prefetch(p, bytes, -1);
	TRY(device_check(device));
	return host_prefetch(p, bytes, (int)device_index(device));
}

static CUresult host_prefetch_v2(CUdeviceptr p, size_t bytes, CUmemLocation where, CUstream s)
{
	return host_prefetch_v1(p, bytes, where.type == CU_MEM_LOCATION_TYPE_DEVICE ? where.id : CU_DEVICE_CPU, s);
}

API cuMemPrefetchAsync(CUdeviceptr p, size_t bytes, CUdevice device, CUstream s)
{
	ENTRY(cuMemPrefetchAsync, host_prefetch_v1(p, bytes, device, s));
}

API cuMemPrefetchAsync_ptsz(CUdeviceptr p, size_t bytes, CUdevice device, CUstream s)
{
	ENTRY(cuMemPrefetchAsync, host_prefetch_v1(p, bytes, device, per_thread(s)));
}

API cuMemPrefetchAsync_v2(CUdeviceptr p, size_t bytes, CUmemLocation where, unsigned flags, CUstream s)
{
	(void)flags;
	ENTRY(cuMemPrefetchAsync, host_prefetch_v2(p, bytes, where, s));
}

API cuMemPrefetchAsync_v2_ptsz(CUdeviceptr p, size_t bytes, CUmemLocation where, unsigned flags, CUstream s)
{
	(void)flags;
	ENTRY(cuMemPrefetchAsync, host_prefetch_v2(p, bytes, where, per_thread(s)));
}

API cuMemAdvise(CUdeviceptr p, size_t bytes, int advice, CUdevice device)
{
	struct host_range r;
	(void)bytes, (void)advice, (void)device;
	TRY(driver_ready());
	return host_find((uintptr_t)p, &r) && r.kind == HOST_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemAdvise_v2(CUdeviceptr p, size_t bytes, int advice, CUmemLocation where) { return cuMemAdvise(p, bytes, advice, where.id); }
