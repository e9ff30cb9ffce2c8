#include "hooks/ipc.h"

#include "alloc_table.h"
#include "cannot.h"
#include "hooks.h"
#include "region/abi.h"

static struct alloc_table ipc_exported; /* by the address at which the memory begins */
static uint32_t ipc_any;                /* 1: this process has exported memory; atomic */

static bool ipc_again(struct alloc_record *r, void *arg)
{
	(void)r, (void)arg;
	return true;
}

int cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr at)
{
	CUdeviceptr base = at;
	size_t size;
	bool begun = cannot_begin(RATION_CANNOT_EXPORTED), added = false;
	int result = cannot_made(RATION_CANNOT_EXPORTED, begun, REAL(cuIpcGetMemHandle, out, at));
	if (!begun || result != CUDA_SUCCESS)
		return result;
	/* Before the program has the handle, no thread frees the memory. */
	if (REAL(cuMemGetAddressRange_v2, &base, &size, at) != CUDA_SUCCESS)
		base = at;
	__atomic_store_n(&ipc_any, 1, __ATOMIC_RELEASE);
	if (alloc_table_add(&ipc_exported, &(struct alloc_record){.key = base}, ipc_again, NULL, &added) && !added)
		cannot_end(RATION_CANNOT_EXPORTED, 1); /* it is counted already */
	return result;
}

bool ipc_free_begin(CUdeviceptr at)
{
	struct alloc_record r;
	return unlikely(__atomic_load_n(&ipc_any, __ATOMIC_ACQUIRE)) && alloc_table_take(&ipc_exported, at, &r);
}

void ipc_free_end(CUdeviceptr at, bool freed)
{
	if (freed)
		cannot_end(RATION_CANNOT_EXPORTED, 1);
	else
		alloc_table_put(&ipc_exported, &(struct alloc_record){.key = at});
}

int cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
	bool begun = cannot_begin(RATION_CANNOT_IMPORTED);
	return cannot_made(RATION_CANNOT_IMPORTED, begun, REAL(cuIpcOpenMemHandle, out, handle, flags));
}

int cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
	bool begun = cannot_begin(RATION_CANNOT_IMPORTED);
	return cannot_made(RATION_CANNOT_IMPORTED, begun, REAL(cuIpcOpenMemHandle_v2, out, handle, flags));
}

int cuIpcCloseMemHandle(CUdeviceptr at)
{
	int result = REAL(cuIpcCloseMemHandle, at);
	if (result == CUDA_SUCCESS)
		cannot_end(RATION_CANNOT_IMPORTED, 1);
	return result;
}

int cuIpcGetEventHandle(CUipcEventHandle *out, CUevent event)
{
	bool begun = cannot_begin(RATION_CANNOT_EXPORTED);
	return cannot_made(RATION_CANNOT_EXPORTED, begun, REAL(cuIpcGetEventHandle, out, event));
}

int cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle)
{
	bool begun = cannot_begin(RATION_CANNOT_IMPORTED);
	return cannot_made(RATION_CANNOT_IMPORTED, begun, REAL(cuIpcOpenEventHandle, out, handle));
}
