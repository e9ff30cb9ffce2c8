#include "graphpool.h"

#include <pthread.h>

#include "driver.h"

static const uint64_t GRAPHPOOL_CHUNK = 32 * MIB;

static struct {
	uint64_t reserved, reserved_high, used, used_high;
	uint64_t held; /* bytes of the allocations that outlive their launch, each in whole units of the ledger */
} graphpools[MAX_DEVICES];

static pthread_mutex_t graphpool_lock = PTHREAD_MUTEX_INITIALIZER;

static void graphpool_raise(uint64_t *high, uint64_t to)
{
	if (*high < to)
		*high = to;
}

bool graph_pool_reserve(unsigned device, uint64_t bytes)
{
	uint64_t need;
	bool ok;

	pthread_mutex_lock(&graphpool_lock);
	need = round_up(graphpools[device].held + bytes, GRAPHPOOL_CHUNK);
	ok = need <= graphpools[device].reserved || machine_charge(device, KIND_DATA, need - graphpools[device].reserved);
	if (ok) {
		graphpool_raise(&graphpools[device].reserved, need);
		graphpool_raise(&graphpools[device].reserved_high, graphpools[device].reserved);
		graphpools[device].used = graphpools[device].reserved; /* the driver calls all of it used, from launch to trim */
		graphpool_raise(&graphpools[device].used_high, graphpools[device].used);
	}
	pthread_mutex_unlock(&graphpool_lock);
	return ok;
}

void graph_pool_hold(unsigned device, uint64_t bytes)
{
	pthread_mutex_lock(&graphpool_lock);
	graphpools[device].held += round_up(bytes, LEDGER_UNIT);
	pthread_mutex_unlock(&graphpool_lock);
}

void graph_pool_let_go(unsigned device, uint64_t bytes)
{
	pthread_mutex_lock(&graphpool_lock);
	graphpools[device].held -= round_up(bytes, LEDGER_UNIT);
	pthread_mutex_unlock(&graphpool_lock);
}

void graphs_drop(unsigned device)
{
	uint64_t keep;

	pthread_mutex_lock(&graphpool_lock);
	keep = round_up(graphpools[device].held, GRAPHPOOL_CHUNK);
	if (graphpools[device].reserved > keep) {
		machine_return(device, KIND_DATA, graphpools[device].reserved - keep);
		graphpools[device].reserved = keep;
	}
	graphpools[device].used = graphpools[device].reserved;
	pthread_mutex_unlock(&graphpool_lock);
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
	pthread_mutex_lock(&graphpool_lock);
	switch (a) {
	case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = graphpools[d].used; break;
	case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *(uint64_t *)value = graphpools[d].used_high; break;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = graphpools[d].reserved; break;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *(uint64_t *)value = graphpools[d].reserved_high; break;
	default: r = CUDA_ERROR_INVALID_VALUE; break;
	}
	pthread_mutex_unlock(&graphpool_lock);
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
	pthread_mutex_lock(&graphpool_lock);
	if (a == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
		graphpools[d].used_high = graphpools[d].used;
	else if (a == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		graphpools[d].reserved_high = graphpools[d].reserved;
	else
		r = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&graphpool_lock);
	return r;
}
