/* The settings of a context: limits, caches, peers. Kept, never acted upon. */
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

static bool limit_known(int limit) { return limit >= 0 && limit < CU_LIMIT_COUNT && limit != 3; }

API cuCtxGetLimit(size_t *value, CUlimit limit)
{
    struct context *c;
    TRY(current_context(&c));
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!limit_known((int)limit))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = load_relaxed(&c->limit[limit]);
    return CUDA_SUCCESS;
}

API cuCtxSetLimit(CUlimit limit, size_t value)
{
    struct context *c;
    TRY(current_context(&c));
    if (!limit_known((int)limit))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    store_relaxed(&c->limit[limit], value);
    return CUDA_SUCCESS;
}

static CUresult get_zero(int *value)
{
    struct context *c;
    TRY(current_context(&c));
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *value = 0;
    return CUDA_SUCCESS;
}

static CUresult need_context(void)
{
    struct context *c;
    return current_context(&c);
}

API cuCtxGetCacheConfig(int *config) { return get_zero(config); }
API cuCtxSetCacheConfig(int config) { (void)config; return need_context(); }
API cuCtxGetSharedMemConfig(int *config) { return get_zero(config); }
API cuCtxSetSharedMemConfig(int config) { (void)config; return need_context(); }
API cuCtxResetPersistingL2Cache(void) { return need_context(); }

API cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    TRY(need_context());
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
    TRY(need_context());
    return context_check(peer);
}
