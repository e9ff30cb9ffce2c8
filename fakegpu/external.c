/* External memory: allocated by another API, and charged there. */
#include <unistd.h>

#include "array.h"
#include "space.h"

struct external {
	struct handle handle;
	uint64_t size;
};

static CUresult external_import(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	struct external *e;
	struct context *c;

	TRY(current_context(&c));
	if (out == NULL || desc == NULL || desc->size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (desc->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD && desc->handle.fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	e = handle_new(sizeof *e, HANDLE_EXTERNAL, NULL);
	if (e == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->size = desc->size;
	/* A descriptor that was imported is the driver's. */
	if (desc->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
		close(desc->handle.fd);
	*out = e;
	return CUDA_SUCCESS;
}

static CUresult external_mapped_buffer(CUdeviceptr *out, CUexternalMemory handle, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc)
{
	struct block b = {.kind = BLOCK_EXTERNAL};
	struct external *e;

	TRY(current_context(&b.context));
	e = handle_want(handle, HANDLE_EXTERNAL, "cuExternalMemoryGetMappedBuffer");
	if (e == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (out == NULL || desc == NULL || desc->size == 0 || desc->offset > e->size || desc->size > e->size - desc->offset)
		return CUDA_ERROR_INVALID_VALUE;
	b.size = desc->size;
	b.device = b.context->device_index;
	b.owner = e;
	if (!space_take(&b, false))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = b.address;
	return CUDA_SUCCESS;
}

static CUresult external_mapped_mipmap(CUmipmappedArray *out, CUexternalMemory handle,
				       const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc)
{
	TRY(driver_ready());
	if (handle_want(handle, HANDLE_EXTERNAL, "cuExternalMemoryGetMappedMipmappedArray") == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	return desc == NULL ? CUDA_ERROR_INVALID_VALUE : mipmap_new(out, &desc->arrayDesc, desc->numLevels, false);
}

static CUresult external_destroy(CUexternalMemory handle)
{
	struct external *e;
	TRY(driver_ready());
	e = handle_want(handle, HANDLE_EXTERNAL, "cuDestroyExternalMemory");
	if (e == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	handle_drop(e);
	return CUDA_SUCCESS;
}

API cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	ENTRY(cuImportExternalMemory, external_import(out, desc));
}

API cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory e, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc)
{
	ENTRY(cuExternalMemoryGetMappedBuffer, external_mapped_buffer(out, e, desc));
}

API cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *out, CUexternalMemory e,
					    const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc)
{
	ENTRY(cuExternalMemoryGetMappedMipmappedArray, external_mapped_mipmap(out, e, desc));
}

API cuDestroyExternalMemory(CUexternalMemory e) { ENTRY(cuDestroyExternalMemory, external_destroy(e)); }
