/* The calls on memory pools and stream-ordered allocation. */
#include <string.h>

#include "capture.h"
#include "pool.h"
#include "space.h"

static CUresult poolcall_pool_get(CUmemoryPool handle, const char *call, struct pool **out)
{
	TRY(driver_ready());
	*out = handle_want(handle, HANDLE_POOL, call);
	return *out == NULL || (*out)->doomed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult poolcall_alloc(struct pool *p, CUdeviceptr *out, uint64_t bytes)
{
	struct block b = {.kind = BLOCK_POOL, .size = bytes, .device = p->device, .owner = p};
	bool ok, on_device = p->props.location.type == CU_MEM_LOCATION_TYPE_DEVICE;

	TRY(current_context(&b.context));
	TRY(pool_take(p, bytes));
	if (p->managed) /* on its device from the start, where it has one, as on an H200 */
		ok = host_new_managed(bytes, CU_MEM_ATTACH_GLOBAL, p, on_device ? (int)p->device : -1, out) == CUDA_SUCCESS;
	else if ((ok = space_take(&b, false)))
		*out = b.address;
	if (!ok)
		pool_give(p, bytes);
	return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult poolcall_alloc_from(CUdeviceptr *out, size_t bytes, CUmemoryPool handle, CUstream s)
{
	struct context *c;
	struct pool *p;

	TRY(current_context(&c));
	TRY(stream_check(s));
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = 0;
	if (bytes == 0)
		return CUDA_SUCCESS;
	TRY(poolcall_pool_get(handle, "cuMemAllocFromPoolAsync", &p));
	if (captures()) {
		bool taken;
		TRY(capture_alloc(s, p->ordinal, bytes, out, &taken));
		if (taken)
			return CUDA_SUCCESS;
	}
	return poolcall_alloc(p, out, bytes);
}

static CUresult poolcall_alloc_async(CUdeviceptr *out, size_t bytes, CUstream s)
{
	struct context *c;
	TRY(current_context(&c));
	return poolcall_alloc_from(out, bytes, pool_current(stream_device(s, c->device)), s);
}

static CUresult poolcall_free_async(CUdeviceptr p, CUstream s)
{
	struct host_range h;
	struct context *c;
	struct block b;

	TRY(current_context(&c));
	TRY(stream_check(s));
	if (p == 0)
		return CUDA_SUCCESS;
	if (captures()) {
		bool taken;
		TRY(capture_free(s, p, &taken));
		if (taken)
			return CUDA_SUCCESS;
	}
	if (host_find((uintptr_t)p, &h) && h.pool != NULL && host_free_managed((uintptr_t)p))
		return CUDA_SUCCESS;
	switch (space_remove(p, 1u << BLOCK_POOL | 1u << BLOCK_POOL_IMPORT | 1u << BLOCK_DATA, &b)) {
	case SPACE_OK: break;
	case SPACE_OTHER:
		if (b.kind == BLOCK_GRAPH)
			return graph_freed(b.owner); /* the address stays the graph's */
						     /* fall through */
	default: report_error("cuMemFreeAsync: 0x%llx is not an allocation", p); return CUDA_ERROR_INVALID_VALUE;
	case SPACE_FREED: report_error("cuMemFreeAsync: 0x%llx was freed before", p); return CUDA_ERROR_INVALID_VALUE;
	}
	if (b.kind == BLOCK_POOL)
		pool_give(b.owner, b.size);
	else if (b.kind == BLOCK_DATA) /* the driver takes these too */
		memory_return(&b);
	return CUDA_SUCCESS;
}

API cuMemAllocAsync(CUdeviceptr *out, size_t n, CUstream s) { ENTRY(cuMemAllocAsync, poolcall_alloc_async(out, n, s)); }
API cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t n, CUstream s) { ENTRY(cuMemAllocAsync, poolcall_alloc_async(out, n, per_thread(s))); }

API cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t n, CUmemoryPool p, CUstream s)
{
	ENTRY(cuMemAllocFromPoolAsync, poolcall_alloc_from(out, n, p, s));
}

API cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t n, CUmemoryPool p, CUstream s)
{
	ENTRY(cuMemAllocFromPoolAsync, poolcall_alloc_from(out, n, p, per_thread(s)));
}

API cuMemFreeAsync(CUdeviceptr p, CUstream s) { ENTRY(cuMemFreeAsync, poolcall_free_async(p, s)); }
API cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream s) { ENTRY(cuMemFreeAsync, poolcall_free_async(p, per_thread(s))); }

static CUresult poolcall_create(CUmemoryPool *out, const CUmemPoolProps *props)
{
	TRY(driver_ready());
	if (out == NULL || props == NULL ||
	    (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED && props->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED))
		return CUDA_ERROR_INVALID_VALUE;
	/* Managed memory need not have a location (CUDA 13 calls the type NONE). */
	if (props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED && props->location.type == CU_MEM_LOCATION_TYPE_INVALID) {
		*out = pool_new(0, props);
		return *out == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	}
	if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED; /* pools of host memory take nothing from a device */
	TRY(device_check(props->location.id));
	*out = pool_new(props->location.id, props);
	return *out == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult poolcall_destroy(CUmemoryPool handle)
{
	struct pool *p;
	TRY(poolcall_pool_get(handle, "cuMemPoolDestroy", &p));
	return pool_destroy(p);
}

static CUresult poolcall_trim(CUmemoryPool handle, size_t keep)
{
	struct pool *p;
	TRY(poolcall_pool_get(handle, "cuMemPoolTrimTo", &p));
	TRY(capture_unsafe());
	pool_trim(p, keep);
	return CUDA_SUCCESS;
}

API cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) { ENTRY(cuMemPoolCreate, poolcall_create(out, props)); }
API cuMemPoolDestroy(CUmemoryPool p) { ENTRY(cuMemPoolDestroy, poolcall_destroy(p)); }
API cuMemPoolTrimTo(CUmemoryPool p, size_t keep) { ENTRY(cuMemPoolTrimTo, poolcall_trim(p, keep)); }

/* The word behind a 64-bit attribute, or NULL. */
static uint64_t *poolcall_word(struct pool *p, CUmemPool_attribute a)
{
	switch (a) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return &p->threshold;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return &p->reserved;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return &p->reserved_high;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return &p->used;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return &p->used_high;
	default: return NULL;
	}
}

static bool poolcall_is_reuse(CUmemPool_attribute a)
{
	return a >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES && a <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

API cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute a, void *value)
{
	struct pool *p;
	CUresult r = CUDA_SUCCESS;

	TRY(poolcall_pool_get(handle, "cuMemPoolGetAttribute", &p));
	TRY(capture_unsafe());
	if (value == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&p->lock);
	if (poolcall_is_reuse(a))
		*(int *)value = p->reuse[a - 1];
	else if (poolcall_word(p, a) != NULL)
		*(uint64_t *)value = *poolcall_word(p, a);
	else
		r = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&p->lock);
	fault_inside("poolAnswer");
	return r;
}

API cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute a, void *value)
{
	struct pool *p;
	CUresult r = CUDA_SUCCESS;

	TRY(poolcall_pool_get(handle, "cuMemPoolSetAttribute", &p));
	if (value == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&p->lock);
	if (poolcall_is_reuse(a))
		p->reuse[a - 1] = *(int *)value;
	else if (a == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		store_relaxed(&p->threshold, *(uint64_t *)value);
	else if (a == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && *(uint64_t *)value == 0)
		p->reserved_high = p->reserved;
	else if (a == CU_MEMPOOL_ATTR_USED_MEM_HIGH && *(uint64_t *)value == 0)
		p->used_high = p->used;
	else
		r = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&p->lock);
	return r;
}

API cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count)
{
	struct pool *p;
	TRY(poolcall_pool_get(handle, "cuMemPoolSetAccess", &p));
	return map == NULL && count > 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuMemPoolGetAccess(int *flags, CUmemoryPool handle, CUmemLocation *where)
{
	struct pool *p;
	TRY(poolcall_pool_get(handle, "cuMemPoolGetAccess", &p));
	if (flags == NULL || where == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = where->id == p->ordinal ? CU_MEM_ACCESS_READWRITE : CU_MEM_ACCESS_NONE;
	return CUDA_SUCCESS;
}

static CUresult poolcall_return(CUmemoryPool *out, struct pool *p)
{
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = p;
	return p == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

API cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device)
{
	TRY(device_check(device));
	return poolcall_return(out, pool_default(device, false));
}

static CUresult poolcall_get_current(CUmemoryPool *out, CUdevice device)
{
	TRY(device_check(device));
	return poolcall_return(out, pool_current(device));
}

API cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) { ENTRY(cuDeviceGetMemPool, poolcall_get_current(out, device)); }

static CUresult poolcall_set_current(CUdevice device, CUmemoryPool handle)
{
	struct pool *p;
	TRY(device_check(device));
	TRY(poolcall_pool_get(handle, "cuDeviceSetMemPool", &p));
	if (p->ordinal != device || p->imported)
		return CUDA_ERROR_INVALID_VALUE;
	pool_set_current(device, p);
	return CUDA_SUCCESS;
}

API cuDeviceSetMemPool(CUdevice device, CUmemoryPool p) { ENTRY(cuDeviceSetMemPool, poolcall_set_current(device, p)); }

/* CUDA 13 asks by location; only devices have pools here. */
static CUresult poolcall_location_check(const CUmemLocation *where, int type)
{
	TRY(driver_ready());
	if (where == NULL || type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (where->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	return device_check(where->id);
}

API cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *where, int type)
{
	bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
	TRY(poolcall_location_check(where, managed ? CU_MEM_ALLOCATION_TYPE_PINNED : type));
	return poolcall_return(out, pool_default(where->id, managed));
}

API cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *where, int type)
{
	TRY(poolcall_location_check(where, type));
	return poolcall_return(out, pool_current(where->id));
}

API cuMemSetMemPool(CUmemLocation *where, int type, CUmemoryPool p)
{
	TRY(poolcall_location_check(where, type));
	return cuDeviceSetMemPool(where->id, p);
}
