/* Memory of other processes: IPC handles, and pools that were exported. */
#include <string.h>

#include "pool.h"
#include "space.h"
#include "ticket.h"

void ipc_drop(const struct block *b) { machine_share_drop((unsigned)(uintptr_t)b->owner - 1, false); }

static CUresult ipc_get_handle(CUipcMemHandle *out, CUdeviceptr p)
{
	struct context *c;
	struct ticket t;
	struct block b;

	TRY(current_context(&c));
	if (out == NULL || !space_find(p, &b) || b.kind != BLOCK_DATA)
		return CUDA_ERROR_INVALID_VALUE;
	if (!space_change(p, memory_share, &b) || b.owner == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	t = ticket_new(TICKET_IPC, b.device, b.address, b.size);
	t.serial = machine_share_serial((unsigned)(uintptr_t)b.owner - 1);
	memset(out, 0, sizeof *out);
	memcpy(out, &t, sizeof t);
	return CUDA_SUCCESS;
}

static CUresult ipc_open_handle(CUdeviceptr *out, const CUipcMemHandle *handle, unsigned flags)
{
	struct block b = {.kind = BLOCK_IPC};
	struct ticket t;
	CUdevice ordinal;

	TRY(current_context(&b.context));
	if (out == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&t, handle, sizeof t);
	if (!ticket_good(&t, TICKET_IPC, &ordinal) || t.identity == machine_identity())
		return CUDA_ERROR_INVALID_VALUE;
	int number = machine_share_open(t.serial);
	if (number < 0)
		return CUDA_ERROR_INVALID_VALUE;
	b.device = t.device;
	b.size = t.size;
	b.owner = (void *)((uintptr_t)number + 1);
	if (!space_take(&b, false)) {
		ipc_drop(&b);
		return CUDA_ERROR_MAP_FAILED;
	}
	*out = b.address;
	return CUDA_SUCCESS;
}

static CUresult ipc_close_handle(CUdeviceptr p)
{
	struct block b;
	TRY(driver_ready());
	if (space_remove(p, 1u << BLOCK_IPC, &b) == SPACE_OK) {
		ipc_drop(&b);
		return CUDA_SUCCESS;
	}
	report_error("cuIpcCloseMemHandle: 0x%llx is not an open handle", p);
	return CUDA_ERROR_INVALID_VALUE;
}

API cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr p) { ENTRY(cuIpcGetMemHandle, ipc_get_handle(out, p)); }

API cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
	ENTRY(cuIpcOpenMemHandle, ipc_open_handle(out, &handle, flags));
}

API cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
	ENTRY(cuIpcOpenMemHandle, ipc_open_handle(out, &handle, flags));
}

API cuIpcCloseMemHandle(CUdeviceptr p) { ENTRY(cuIpcCloseMemHandle, ipc_close_handle(p)); }

static CUresult ipc_export_pool(void *out, CUmemoryPool handle, int type)
{
	struct pool *p;
	struct ticket t;
	int fd;

	TRY(driver_ready());
	p = handle_want(handle, HANDLE_POOL, "cuMemPoolExportToShareableHandle");
	if (p == NULL || out == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || (p->props.handleTypes & type) == 0)
		return CUDA_ERROR_INVALID_VALUE;
	t = ticket_new(TICKET_POOL, p->device, 0, 0);
	fd = ticket_to_fd(&t);
	if (fd < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

static CUresult ipc_import_pool(CUmemoryPool *out, void *os_handle, int type)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = type};
	struct ticket t;
	struct pool *p;

	TRY(driver_ready());
	props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	if (out == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !ticket_from_fd((int)(intptr_t)os_handle, &t) ||
	    !ticket_good(&t, TICKET_POOL, &props.location.id))
		return CUDA_ERROR_INVALID_VALUE;
	p = pool_new(props.location.id, &props);
	if (p == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	p->imported = true;
	*out = p;
	return CUDA_SUCCESS;
}

API cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type, unsigned long long flags)
{
	(void)flags;
	ENTRY(cuMemPoolExportToShareableHandle, ipc_export_pool(out, pool, type));
}

API cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type, unsigned long long flags)
{
	(void)flags;
	ENTRY(cuMemPoolImportFromShareableHandle, ipc_import_pool(out, handle, type));
}

API cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr p)
{
	struct ticket t;
	struct block b;
	TRY(driver_ready());
	if (out == NULL || !space_find(p, &b) || b.kind != BLOCK_POOL)
		return CUDA_ERROR_INVALID_VALUE;
	t = ticket_new(TICKET_POOL_POINTER, b.device, b.address, b.size);
	memset(out, 0, sizeof *out);
	memcpy(out, &t, sizeof t);
	return CUDA_SUCCESS;
}

static CUresult ipc_import_pointer(CUdeviceptr *out, CUmemoryPool handle, const CUmemPoolPtrExportData *data)
{
	struct block b = {.kind = BLOCK_POOL_IMPORT};
	struct pool *p;
	struct ticket t;
	CUdevice ordinal;

	TRY(current_context(&b.context));
	p = handle_want(handle, HANDLE_POOL, "cuMemPoolImportPointer");
	if (out == NULL || data == NULL || p == NULL || !p->imported)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&t, data, sizeof t);
	if (!ticket_good(&t, TICKET_POOL_POINTER, &ordinal))
		return CUDA_ERROR_INVALID_VALUE;
	b.device = t.device;
	b.size = t.size;
	if (!space_take(&b, false))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = b.address;
	return CUDA_SUCCESS;
}

API cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	ENTRY(cuMemPoolImportPointer, ipc_import_pointer(out, pool, data));
}
