/* Making and destroying pools, and changing their settings. */
#include "cannot.h"
#include "hooks/init.h"
#include "hooks/pool.h"
#include "log.h"

int cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
	struct device *d = NULL;
	bool on_device = props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
	int denied = on_device ? init_enter_device(props->location.id, &d) : init_enter();
	int result = REAL_UNLESS(denied, cuMemPoolCreate, out, props);
	if (result != CUDA_SUCCESS || !attach_on())
		return result;
	/* Managed memory may move to a device at any time, wherever the pool is. */
	bool managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED && (d || !on_device);
	enum pool_kind kind = managed ? POOL_MANAGED : d ? POOL_PINNED : POOL_UNCOUNTED;
	if (pool_add(*out, d ? d->index : RATION_DEVICES, kind, true) || kind == POOL_UNCOUNTED)
		return result;
	/* A pool without an entry could not be counted, so refuse it. */
	static uint32_t logged;
	if (!__atomic_exchange_n(&logged, 1, __ATOMIC_RELAXED))
		log_error("more than %d memory pools at a time cannot be counted: refusing another", POOL_MADE_MAX);
	REAL(cuMemPoolDestroy, *out);
	*out = NULL;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

int cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type, unsigned long long flags)
{
	bool begun = cannot_begin(RATION_CANNOT_IMPORTED);
	int result = cannot_made(RATION_CANNOT_IMPORTED, begun, REAL(cuMemPoolImportFromShareableHandle, out, handle, type, flags));
	if (result == CUDA_SUCCESS && attach_on())
		pool_add(*out, RATION_DEVICES, POOL_UNCOUNTED, true);
	return result;
}

int cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type, unsigned long long flags)
{
	bool begun = cannot_begin(RATION_CANNOT_EXPORTED);
	return cannot_made(RATION_CANNOT_EXPORTED, begun, REAL(cuMemPoolExportToShareableHandle, out, pool, type, flags));
}

/* pool_is_default reports whether a pool is a device's own, which programs cannot destroy. */
static bool pool_is_default(const struct pool *p, CUmemoryPool handle)
{
	CUmemoryPool own = NULL;
	struct device *d = pool_device(p) < RATION_DEVICES ? device_at(pool_device(p)) : NULL;
	if (!d)
		return pool_is_managed_default(handle, (CUmemLocation){0, 0});
	return p->managed ? pool_is_managed_default(handle, (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, d->ordinal})
			  : REAL(cuDeviceGetDefaultMemPool, &own, d->ordinal) == CUDA_SUCCESS && own == handle;
}

static mutex pool_current_lock; /* LOCK_POOL_CURRENT: held during each change of a device's current pool */

/* pool_replace_current changes a device's current pool from `from` to `to`. It returns false,
 * and changes nothing, if another pool was current. */
static bool pool_replace_current(const struct device *d, CUmemoryPool from, CUmemoryPool to)
{
	CUmemoryPool now = NULL;
	mutex_lock(&pool_current_lock, LOCK_POOL_CURRENT);
	bool was = REAL(cuDeviceGetMemPool, &now, d->ordinal) == CUDA_SUCCESS && now == from &&
		   REAL(cuDeviceSetMemPool, d->ordinal, to) == CUDA_SUCCESS;
	mutex_unlock(&pool_current_lock);
	return was;
}

int cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	if (!attach_on())
		return REAL(cuDeviceSetMemPool, device, pool);
	mutex_lock(&pool_current_lock, LOCK_POOL_CURRENT);
	int result = REAL(cuDeviceSetMemPool, device, pool);
	mutex_unlock(&pool_current_lock);
	return result;
}

int cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
	if (!attach_on())
		return REAL(cuMemSetMemPool, location, type, pool);
	mutex_lock(&pool_current_lock, LOCK_POOL_CURRENT);
	int result = REAL(cuMemSetMemPool, location, type, pool);
	mutex_unlock(&pool_current_lock);
	return result;
}

/* pool_call_destroy asks the driver to destroy a pool that no other thread can find meanwhile.
 * If it is a device's current pool, the device's own pool becomes current first, as the driver
 * would do: from then on a thread that names no pool finds that one. It returns the driver's
 * result. */
static int pool_call_destroy(struct pool *p, CUmemoryPool handle)
{
	CUmemoryPool own = NULL;
	struct device *d = p->counted && !p->managed ? device_at(pool_device(p)) : NULL;
	bool current = d && REAL(cuDeviceGetDefaultMemPool, &own, d->ordinal) == CUDA_SUCCESS && pool_replace_current(d, handle, own);
	pool_hide(p);
	int result = REAL(cuMemPoolDestroy, handle);
	pool_hidden(p, result == CUDA_SUCCESS ? NULL : handle);
	if (result != CUDA_SUCCESS && current)
		pool_replace_current(d, own, handle);
	return result;
}

int cuMemPoolDestroy(CUmemoryPool handle)
{
	struct pool *p = handle && attach_on() ? pool_find(handle) : NULL;
	/* A pool that the driver will not destroy must not be hidden: other threads allocate
	 * from it. */
	if (!p || pool_is_default(p, handle))
		return REAL(cuMemPoolDestroy, handle);
	/* Afterwards the reserved bytes cannot be asked for, so set the charge to them now. */
	pool_look(p, true);
	int result = pool_call_destroy(p, handle);
	if (result != CUDA_SUCCESS) {
		pool_look(p, false);
		return result;
	}
	pool_destroyed(p);
	return result;
}

int cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	int result = REAL(cuMemPoolTrimTo, pool, keep);
	struct pool *p = pool && attach_on() ? pool_find(pool) : NULL;
	if (p)
		pool_look(p, false);
	return result;
}

int cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	int result = REAL(cuMemPoolSetAttribute, pool, attribute, value);
	struct pool *p = pool && attach_on() ? pool_find(pool) : NULL;
	if (p) {
		pool_expect_shrink(p); /* a lower threshold takes effect at the next synchronisation */
		pool_look(p, false);
	}
	return result;
}
