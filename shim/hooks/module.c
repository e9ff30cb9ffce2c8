/* Modules and libraries: no call tells what they take, so the driver's figure is
 * read before and after. Most often they take nothing, as code is loaded where it is
 * first used: NVML is not started for that. */
#include "charge.h"
#include "hooks/context.h"
#include "overhead.h"
#include "attach.h"

/* What it was charged may be in part what the driver took by itself before. */
#define RECORD_UNSURE 1u

static void keep(const struct alloc_target *at, void *handle, const struct overhead_reading *before, uint64_t bytes, CUlibrary library)
{
	struct alloc_record r = {.key = (uintptr_t)handle, .bytes = bytes, .device = (uint8_t)at->device->index, .context = at->context,
			   .flags = before->blind && bytes ? RECORD_UNSURE : 0, .other = (uintptr_t)library};
	context_keep(&modules, &r, RATION_MODULE);
	overhead_read_soon(); /* the code itself comes when it is first used */
}

/* LOAD loads in the current context, and unloads by undo where the job has no room
 * for it. Without a context there is nothing to measure, and nothing is loaded yet. */
#define LOAD(undo, of, symbol, ...)                                                                                    \
	do {                                                                                                           \
		struct alloc_target at;                                                                                       \
		uint64_t bytes;                                                                                        \
		ENTER(symbol, __VA_ARGS__);                                                                            \
		HERE(&at, symbol, __VA_ARGS__);                                                                        \
		struct overhead_reading before = overhead_begin_load(at.device);                                                     \
		int result = REAL(symbol, __VA_ARGS__);                                                                \
		if (result != CUDA_SUCCESS)                                                                            \
			return result;                                                                                 \
		result = overhead_charge(&before, RATION_MODULE, &bytes);                                                 \
		if (result == CUDA_SUCCESS) {                                                                          \
			keep(&at, *out, &before, bytes, of);                                                           \
			return result;                                                                                 \
		}                                                                                                      \
		undo;                                                                                                  \
		*out = NULL;                                                                                           \
		overhead_refresh(at.device);                                                                              \
		return result;                                                                                         \
	} while (0)

#define UNLOAD_MODULE REAL(cuModuleUnload, *out)
#define UNLOAD_LIBRARY REAL(cuLibraryUnload, *out)

int cuModuleLoad(CUmodule *out, const char *path) { LOAD(UNLOAD_MODULE, NULL, cuModuleLoad, out, path); }
int cuModuleLoadData(CUmodule *out, const void *image) { LOAD(UNLOAD_MODULE, NULL, cuModuleLoadData, out, image); }
int cuModuleLoadFatBinary(CUmodule *out, const void *image) { LOAD(UNLOAD_MODULE, NULL, cuModuleLoadFatBinary, out, image); }

int cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values)
{
	LOAD(UNLOAD_MODULE, NULL, cuModuleLoadDataEx, out, image, count, options, values);
}

int cuLibraryLoadData(CUlibrary *out, const void *code, int *jit, void **jit_values, unsigned jit_count, int *options, void **values,
		      unsigned count)
{
	LOAD(UNLOAD_LIBRARY, *out, cuLibraryLoadData, out, code, jit, jit_values, jit_count, options, values, count);
}

int cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jit, void **jit_values, unsigned jit_count, int *options, void **values,
			  unsigned count)
{
	LOAD(UNLOAD_LIBRARY, *out, cuLibraryLoadFromFile, out, path, jit, jit_values, jit_count, options, values, count);
}

static bool same(struct alloc_record *r, void *arg)
{
	(void)r, (void)arg;
	return true;
}

/* A library's module in this context: loaded by the first who asks for it, and
 * unloaded only with the library, so that there is no undoing it. */
int cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
	struct alloc_target at;
	struct alloc_record r;
	uint64_t bytes = 0;
	ENTER(cuLibraryGetModule, out, library);
	HERE(&at, cuLibraryGetModule, out, library);
	struct overhead_reading before = overhead_begin_load(at.device);
	int result = REAL(cuLibraryGetModule, out, library);
	if (result != CUDA_SUCCESS || alloc_table_change(&modules, (uintptr_t)*out, same, NULL, &r))
		return result;
	if (overhead_charge(&before, RATION_MODULE, &bytes) == CUDA_SUCCESS)
		keep(&at, *out, &before, bytes, library);
	else
		overhead_refresh(at.device); /* it exists: overhead */
	return result;
}

int cuModuleUnload(CUmodule module)
{
	struct alloc_record r;
	LEAVE_ALONE(cuModuleUnload, module);
	bool known = alloc_table_take(&modules, (uintptr_t)module, &r);
	int result = REAL(cuModuleUnload, module);
	if (known && result != CUDA_SUCCESS)
		alloc_table_put(&modules, &r);
	else if (known)
		charge_return(r.device, RATION_MODULE, r.bytes);
	if (known && result == CUDA_SUCCESS && r.flags & RECORD_UNSURE && device_at(r.device))
		overhead_refresh(device_at(r.device));
	return result;
}

struct library {
	CUlibrary handle;
	struct device *device;
};

static bool others(struct alloc_record *r, void *arg)
{
	struct library *l = arg;
	if (r->other != (uintptr_t)l->handle)
		return true;
	charge_return(r->device, RATION_MODULE, r->bytes);
	l->device = device_at(r->device);
	return false;
}

/* What it loaded lazily was overhead, and is no longer. */
int cuLibraryUnload(CUlibrary library)
{
	struct library l = {library, NULL};
	LEAVE_ALONE(cuLibraryUnload, library);
	int result = REAL(cuLibraryUnload, library);
	if (result != CUDA_SUCCESS || !library)
		return result;
	alloc_table_sweep(&modules, others, &l);
	if (l.device)
		overhead_refresh(l.device);
	return result;
}
