/* Modules and libraries. No call tells what they take, so the driver's bytes for this
 * process are read before and after. Most often they take nothing, as code is loaded
 * where it is first used: NVML is not started for that. */
#include "charge.h"
#include "hooks/context_table.h"
#include "overhead.h"
#include "region/atomics.h"

/* A load, from the reading before to the charge after. */
struct module_load {
	struct alloc_target target; /* its device is NULL where nothing is measured */
	struct overhead_making making;
};

/* module_begin takes the reading: CUDA_SUCCESS, or what the call must return. Without a
 * context there is nothing to measure, and nothing is loaded yet. */
static int module_begin(struct module_load *m)
{
	int denied = context_enter(&m->target);
	if (m->target.device)
		overhead_begin_load(&m->making, m->target.device, RATION_MODULE);
	return denied;
}

/* module_keep records what a module was charged; library is NULL for one of its own. */
static void module_keep(const struct module_load *m, void *handle, uint64_t bytes, CUlibrary library)
{
	struct alloc_record r = {.key = (uintptr_t)handle, .bytes = bytes, .device = (uint8_t)m->target.device->index,
				 .context = m->target.context, .other = (uintptr_t)library};
	r.flags = (m->making.free_only && bytes ? RECORD_UNSURE : 0) | (m->making.exact ? 0 : RECORD_UNCONFIRMED);
	context_keep(&context_modules, &r, RATION_MODULE);
	overhead_read_soon(); /* the code itself comes when it is first used */
}

/* module_end completes a load. What the job has no room for is unloaded again. */
static int module_end(struct module_load *m, int result, void **out, bool library)
{
	uint64_t bytes;
	if (!m->target.device)
		return result;
	int refused = result == CUDA_SUCCESS ? overhead_charge(&m->making, &bytes) : CUDA_SUCCESS;
	if (refused) {
		library ? REAL(cuLibraryUnload, *out) : REAL(cuModuleUnload, *out);
		*out = NULL;
	} else if (result == CUDA_SUCCESS) {
		module_keep(m, *out, bytes, library ? *out : NULL);
	}
	overhead_end(&m->making);
	return refused ? refused : result;
}

int cuModuleLoad(CUmodule *out, const char *path)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin(&m), cuModuleLoad, out, path);
	return module_end(&m, result, (void **)out, false);
}

int cuModuleLoadData(CUmodule *out, const void *image)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin(&m), cuModuleLoadData, out, image);
	return module_end(&m, result, (void **)out, false);
}

int cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin(&m), cuModuleLoadFatBinary, out, image);
	return module_end(&m, result, (void **)out, false);
}

int cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin(&m), cuModuleLoadDataEx, out, image, count, options, values);
	return module_end(&m, result, (void **)out, false);
}

int cuLibraryLoadData(CUlibrary *out, const void *code, int *jit, void **jit_values, unsigned jit_count, int *options, void **values,
		      unsigned count)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin(&m), cuLibraryLoadData, out, code, jit, jit_values, jit_count, options, values, count);
	return module_end(&m, result, (void **)out, true);
}

int cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jit, void **jit_values, unsigned jit_count, int *options, void **values,
			  unsigned count)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin(&m), cuLibraryLoadFromFile, out, path, jit, jit_values, jit_count, options, values, count);
	return module_end(&m, result, (void **)out, true);
}

/* Calls that load what a library or module holds back until it is asked for. It is unloaded
 * only with the library, so where it does not fit it is not undone: it is charged by force,
 * and the call says so, as the driver does when it runs out of memory here. owner is the
 * library, or the module, that it goes with. */
static int module_end_lazy(struct module_load *m, int result, void *owner)
{
	uint64_t bytes = 0;
	if (!m->target.device)
		return result;
	int refused = result == CUDA_SUCCESS ? overhead_charge_forced(&m->making, &bytes) : CUDA_SUCCESS;
	overhead_end(&m->making);
	/* A record of its own, by a key that no handle has: what a library loads comes in parts. */
	static uint64_t parts;
	if (bytes)
		module_keep(m, (void *)(uintptr_t)(fetch_add(&parts, 2) + 1), bytes, owner);
	return refused ? refused : result;
}

/* module_begin_lazy is module_begin for them. They are often called, and most often load
 * nothing: that shows in the room that the device has left. */
static int module_begin_lazy(struct module_load *m)
{
	int denied = context_enter(&m->target);
	if (m->target.device)
		overhead_begin_lazy(&m->making, m->target.device, RATION_MODULE);
	return denied;
}

int cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin_lazy(&m), cuLibraryGetModule, out, library);
	return module_end_lazy(&m, result, library);
}

int cuLibraryGetGlobal(CUdeviceptr *out, size_t *bytes, CUlibrary library, const char *name)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin_lazy(&m), cuLibraryGetGlobal, out, bytes, library, name);
	return module_end_lazy(&m, result, library);
}

int cuLibraryGetManaged(CUdeviceptr *out, size_t *bytes, CUlibrary library, const char *name)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin_lazy(&m), cuLibraryGetManaged, out, bytes, library, name);
	return module_end_lazy(&m, result, library);
}

int cuKernelGetFunction(CUfunction *out, CUkernel kernel)
{
	struct module_load m;
	CUlibrary library = NULL;
	int result = REAL_UNLESS(module_begin_lazy(&m), cuKernelGetFunction, out, kernel);
	if (result == CUDA_SUCCESS && REAL(cuKernelGetLibrary, &library, kernel) != CUDA_SUCCESS)
		library = NULL;
	return module_end_lazy(&m, result, library);
}

/* module_leaving makes a record's bytes what is still charged for it, before it goes. */
static void module_leaving(struct alloc_record *r)
{
	struct device *d = r->key ? device_at(r->device) : NULL;
	if (d && r->flags & RECORD_UNCONFIRMED)
		r->bytes = overhead_drop_unconfirmed(d, RATION_MODULE, r->bytes);
	if (r->key)
		charge_leaving(r->device, r->bytes);
}

int cuModuleUnload(CUmodule module)
{
	struct alloc_record r = context_take(&context_modules, (uintptr_t)module);
	module_leaving(&r);
	int result = REAL(cuModuleUnload, module);
	if (alloc_table_freed(&context_modules, &r, result == CUDA_SUCCESS)) {
		charge_return(r.device, RATION_MODULE, r.bytes);
		if (r.flags & RECORD_UNSURE && device_at(r.device))
			overhead_refresh(device_at(r.device));
	} else if (r.key) {
		charge_arrived(r.device, r.bytes);
	}
	return result;
}

/* What a library was charged, taken out while the driver is asked to unload it. */
struct module_sweep {
	CUlibrary library;
	uint64_t bytes[RATION_DEVICES];
};

static bool module_of_other_library(struct alloc_record *r, void *arg)
{
	struct module_sweep *s = arg;
	if (r->other != (uintptr_t)s->library)
		return true;
	module_leaving(r);
	s->bytes[r->device] += r->bytes;
	return false;
}

/* cuLibraryUnload returns what the library was charged. What it loaded lazily was
 * overhead, and is no longer. */
int cuLibraryUnload(CUlibrary library)
{
	struct module_sweep s = {.library = library};
	if (!library || !attach_on())
		return REAL(cuLibraryUnload, library);
	alloc_table_sweep(&context_modules, module_of_other_library, &s);
	int result = REAL(cuLibraryUnload, library);
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		if (!s.bytes[i])
			continue;
		if (result == CUDA_SUCCESS) {
			charge_return(i, RATION_MODULE, s.bytes[i]);
			overhead_refresh(device_at(i));
		} else {
			charge_arrived(i, s.bytes[i]);
			alloc_table_put(&context_modules, &(struct alloc_record){.key = (uintptr_t)library, .bytes = s.bytes[i], .device = (uint8_t)i, .other = (uintptr_t)library});
		}
	}
	return result;
}
