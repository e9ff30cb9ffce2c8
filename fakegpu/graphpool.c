#include "graphpool.h"

#include <pthread.h>

#include "driver.h"

static const uint64_t CHUNK = 32 * MIB;

static struct {
    uint64_t reserved, reserved_high, used, used_high;
    uint64_t held;
} pool[MAX_DEVICES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void raise(uint64_t *high, uint64_t to)
{
    if (*high < to)
        *high = to;
}

bool graph_pool_reserve(unsigned device, uint64_t bytes)
{
    uint64_t need;
    bool ok;

    pthread_mutex_lock(&lock);
    need = pool[device].held + round_up(bytes, CHUNK);
    ok = need <= pool[device].reserved || machine_charge(device, KIND_DATA, need - pool[device].reserved);
    if (ok) {
        raise(&pool[device].reserved, need);
        raise(&pool[device].reserved_high, pool[device].reserved);
        pool[device].used = pool[device].reserved; /* the driver calls all of it used, from launch to trim */
        raise(&pool[device].used_high, pool[device].used);
    }
    pthread_mutex_unlock(&lock);
    return ok;
}

void graph_pool_hold(unsigned device, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    pool[device].held += round_up(bytes, CHUNK);
    pthread_mutex_unlock(&lock);
}

void graph_pool_let_go(unsigned device, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    pool[device].held -= round_up(bytes, CHUNK);
    pthread_mutex_unlock(&lock);
}

void graphs_drop(unsigned device)
{
    pthread_mutex_lock(&lock);
    if (pool[device].reserved > pool[device].held) {
        machine_return(device, KIND_DATA, pool[device].reserved - pool[device].held);
        pool[device].reserved = pool[device].held;
    }
    pool[device].used = pool[device].reserved;
    pthread_mutex_unlock(&lock);
}

API cuDeviceGraphMemTrim(CUdevice device)
{
    TRY(device_check(device));
    graphs_drop(device_index(device));
    return CUDA_SUCCESS;
}

API cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute a, void *value)
{
    CUresult r = CUDA_SUCCESS;
    unsigned d;

    TRY(device_check(device));
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    d = device_index(device);
    pthread_mutex_lock(&lock);
    switch (a) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = pool[d].used; break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *(uint64_t *)value = pool[d].used_high; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = pool[d].reserved; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *(uint64_t *)value = pool[d].reserved_high; break;
    default: r = CUDA_ERROR_INVALID_VALUE; break;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

API cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute a, void *value)
{
    CUresult r = CUDA_SUCCESS;
    unsigned d;

    TRY(device_check(device));
    if (value == NULL || *(uint64_t *)value != 0)
        return CUDA_ERROR_INVALID_VALUE;
    d = device_index(device);
    pthread_mutex_lock(&lock);
    if (a == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        pool[d].used_high = pool[d].used;
    else if (a == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        pool[d].reserved_high = pool[d].reserved;
    else
        r = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return r;
}
