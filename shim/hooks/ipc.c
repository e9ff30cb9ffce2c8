#include "hooks/ipc.h"

#include "attach.h"
#include "cannot.h"
#include "charge.h"
#include "hooks.h"
#include "hooks/context_table.h"
#include "import.h"
#include "nvml.h"
#include "overhead.h"
#include "region/abi.h"

static bool ipc_export(struct alloc_record *r, void *first)
{
	*(bool *)first = !(r->flags & (RECORD_EXPORTED | RECORD_IPC));
	r->flags |= RECORD_IPC;
	return true;
}

/* ipc_exported marks the memory at an address as exported, before the program has the handle: until then no
 * other process can open it. It returns false if there is no record of the memory. */
static bool ipc_exported(CUdeviceptr at)
{
	struct alloc_record r;
	CUdeviceptr base;
	size_t size;
	bool first = false;
	if (!attach_on() || REAL(cuMemGetAddressRange_v2, &base, &size, at) != CUDA_SUCCESS ||
	    !alloc_table_change(&context_addresses, base, ipc_export, &first, &r))
		return false;
	if (first) {
		nvml_start(); /* now: overhead_lend may be called with the lock of a primary context held */
		charge_export(r.device, r.bytes);
	}
	charge_handle(r.device);
	return true;
}

int cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr at)
{
	bool begun = cannot_begin(RATION_CANNOT_EXPORTED);
	int result = REAL(cuIpcGetMemHandle, out, at);
	/* Memory with a record counts for itself. */
	bool counted = result != CUDA_SUCCESS || ipc_exported(at);
	if (begun)
		cannot_end(RATION_CANNOT_EXPORTED, counted);
	return result;
}

void ipc_import_ended(void)
{
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		struct device *d = device_at(i);
		if (d && charge_held(i, RATION_OVERHEAD))
			overhead_refresh(d);
	}
	import_end();
}

/* Around the driver's call that opens a handle. */
static bool ipc_open_begin(void)
{
	bool on = attach_on();
	if (on)
		import_begin(-1);
	return on;
}

static int ipc_opened(bool on, int result)
{
	if (on && result != CUDA_SUCCESS)
		import_end();
	overhead_tick();      /* earlier imports may count for this process, which perhaps makes no other call */
	overhead_read_soon(); /* the driver counts it as the importer's when its maker frees it, or ends */
	return result;
}

int cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
	bool on = ipc_open_begin(), begun = cannot_begin(RATION_CANNOT_IMPORTED);
	return ipc_opened(on, cannot_made(RATION_CANNOT_IMPORTED, begun, REAL(cuIpcOpenMemHandle, out, handle, flags)));
}

int cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
	bool on = ipc_open_begin(), begun = cannot_begin(RATION_CANNOT_IMPORTED);
	return ipc_opened(on, cannot_made(RATION_CANNOT_IMPORTED, begun, REAL(cuIpcOpenMemHandle_v2, out, handle, flags)));
}

int cuIpcCloseMemHandle(CUdeviceptr at)
{
	int result = REAL(cuIpcCloseMemHandle, at);
	if (result != CUDA_SUCCESS)
		return result;
	if (attach_on())
		ipc_import_ended();
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
