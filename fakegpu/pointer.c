/* What the driver knows about a pointer. */
#include "driver.h"
#include "space.h"

struct known {
	struct context *context;
	CUdevice device;
	bool on_device, managed, ipc;
	CUdeviceptr base;
	uint64_t size, id;
	struct pool *pool;
};

static CUdevice pointer_ordinal_of(unsigned index)
{
	for (unsigned i = 0; i < visible_devices(); i++)
		if (device_index((CUdevice)i) == index)
			return (CUdevice)i;
	return CU_DEVICE_INVALID;
}

static bool pointer_find(CUdeviceptr p, struct known *out)
{
	struct host_range h;
	struct block b;

	if (space_find(p, &b)) {
		*out = (struct known){.context = b.context,
				      .device = pointer_ordinal_of(b.device),
				      .on_device = true,
				      .ipc = b.kind != BLOCK_RESERVATION && b.kind != BLOCK_POOL,
				      .base = b.address,
				      .size = b.size,
				      .id = b.id,
				      .pool = b.kind == BLOCK_POOL ? b.owner : NULL};
		return true;
	}
	if (!host_find((uintptr_t)p, &h))
		return false;
	*out = (struct known){.context = h.context,
			      .device = h.context->device,
			      .on_device = h.kind == HOST_MANAGED,
			      .managed = h.kind == HOST_MANAGED,
			      .base = h.base,
			      .size = h.size,
			      .id = h.base};
	return true;
}

static CUresult pointer_answer(void *out, CUpointer_attribute a, CUdeviceptr p, const struct known *k)
{
	switch (a) {
	case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)out = k->context; break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)out = k->on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST; break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)out = p; break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (k->on_device && !k->managed)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)out = (void *)(uintptr_t)p;
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)out = k->id; break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)out = k->managed; break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = k->device; break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(int *)out = k->ipc; break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)out = k->base; break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = k->size; break;
	case CU_POINTER_ATTRIBUTE_MAPPED: *(int *)out = 1; break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(int *)out = 0; break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(CUmemoryPool *)out = k->pool; break;
	default: return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

/* A pointer the driver does not know is an ordinary question, not a mistake. */
API cuPointerGetAttribute(void *out, CUpointer_attribute a, CUdeviceptr p)
{
	struct known k;
	TRY(driver_ready());
	if (out == NULL || !pointer_find(p, &k))
		return CUDA_ERROR_INVALID_VALUE;
	return pointer_answer(out, a, p, &k);
}

/* Unknown pointers are answered with zeroes here. */
API cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **out, CUdeviceptr p)
{
	struct known k;
	TRY(driver_ready());
	if (attributes == NULL || out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!pointer_find(p, &k)) {
		for (unsigned i = 0; i < count; i++)
			switch (attributes[i]) {
			case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out[i] = CU_DEVICE_INVALID; break;
			case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
			case CU_POINTER_ATTRIBUTE_IS_MANAGED:
			case CU_POINTER_ATTRIBUTE_MAPPED:
			case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
			case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(int *)out[i] = 0; break;
			default: *(uint64_t *)out[i] = 0; break;
			}
		return CUDA_SUCCESS;
	}
	for (unsigned i = 0; i < count; i++)
		if (pointer_answer(out[i], attributes[i], p, &k) != CUDA_SUCCESS)
			*(uint64_t *)out[i] = 0;
	return CUDA_SUCCESS;
}

API cuPointerSetAttribute(const void *value, CUpointer_attribute a, CUdeviceptr p)
{
	struct known k;
	TRY(driver_ready());
	return value == NULL || a != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !pointer_find(p, &k) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
