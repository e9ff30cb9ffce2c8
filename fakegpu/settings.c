/* The settings of a context: limits, caches, peers. Kept, and acted upon only where they
 * take memory: the stack and the heap of kernels. */
#include <pthread.h>

#include "driver.h"

API cuCtxGetFlags(unsigned *flags)
{
	struct context *c;
	TRY(current_context(&c));
	if (flags == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = c->flags;
	return CUDA_SUCCESS;
}

API cuCtxSetFlags(unsigned flags)
{
	struct context *c;
	TRY(current_context(&c));
	c->flags = flags;
	return CUDA_SUCCESS;
}

static bool setting_limit_known(int limit) { return limit >= 0 && limit < CU_LIMIT_COUNT && limit != 3; }

API cuCtxGetLimit(size_t *value, CUlimit limit)
{
	struct context *c;
	TRY(current_context(&c));
	if (value == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!setting_limit_known((int)limit))
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	*value = load_relaxed(&c->limit[limit]);
	return CUDA_SUCCESS;
}

static pthread_mutex_t setting_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the bytes that limits have taken */

/* Changes the bytes that a limit has taken from *taken to bytes. The caller holds setting_lock. */
static CUresult setting_take(const struct context *c, uint64_t *taken, uint64_t bytes)
{
	if (bytes > *taken && !machine_charge(c->device_index, KIND_CONTEXT, bytes - *taken))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (bytes < *taken)
		machine_return(c->device_index, KIND_CONTEXT, *taken - bytes);
	*taken = bytes;
	return CUDA_SUCCESS;
}

/* As measured on an H200: the stack is there for every thread that can be resident, but
 * for a first KiB that the context brings along, from when it is asked for. The heap is
 * taken when the first kernel that allocates is launched, and cannot be changed after
 * that. printf's buffer is the host's. */
static CUresult setting_set_limit(struct context *c, CUlimit limit, size_t value)
{
	enum { RESIDENT = 2048, FREE_STACK = 1024 };
	uint64_t stack = value > FREE_STACK ? value - FREE_STACK : 0;

	if (limit == CU_LIMIT_MALLOC_HEAP_SIZE && c->heap > 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (limit == CU_LIMIT_STACK_SIZE)
		TRY(setting_take(c, &c->stack, stack * RESIDENT * (unsigned)machine_shape()->model->sms));
	store_relaxed(&c->limit[limit], value);
	return CUDA_SUCCESS;
}

static CUresult setting_ask_limit(CUlimit limit, size_t value)
{
	struct context *c;
	CUresult r;
	TRY(current_context(&c));
	if (!setting_limit_known((int)limit))
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	pthread_mutex_lock(&setting_lock);
	r = setting_set_limit(c, limit, value);
	pthread_mutex_unlock(&setting_lock);
	return r;
}

API cuCtxSetLimit(CUlimit limit, size_t value) { ENTRY(cuCtxSetLimit, setting_ask_limit(limit, value)); }

CUresult context_heap(struct context *c)
{
	CUresult r;
	pthread_mutex_lock(&setting_lock);
	r = setting_take(c, &c->heap, c->limit[CU_LIMIT_MALLOC_HEAP_SIZE]);
	pthread_mutex_unlock(&setting_lock);
	return r;
}

static CUresult setting_get_zero(int *value)
{
	struct context *c;
	TRY(current_context(&c));
	if (value == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*value = 0;
	return CUDA_SUCCESS;
}

static CUresult setting_need_context(void)
{
	struct context *c;
	return current_context(&c);
}

API cuCtxGetCacheConfig(int *config) { return setting_get_zero(config); }
API cuCtxSetCacheConfig(int config)
{
	(void)config;
	return setting_need_context();
}
API cuCtxGetSharedMemConfig(int *config) { return setting_get_zero(config); }
API cuCtxSetSharedMemConfig(int config)
{
	(void)config;
	return setting_need_context();
}
API cuCtxResetPersistingL2Cache(void) { return setting_need_context(); }

API cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	TRY(setting_need_context());
	if (least != NULL)
		*least = 0;
	if (greatest != NULL)
		*greatest = -5;
	return CUDA_SUCCESS;
}

API cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	struct context *c;
	TRY(current_context(&c));
	TRY(context_check(peer));
	return flags != 0 ? CUDA_ERROR_INVALID_VALUE : peer == c ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

API cuCtxDisablePeerAccess(CUcontext peer)
{
	TRY(setting_need_context());
	return context_check(peer);
}
