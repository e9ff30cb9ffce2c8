/* Modules and libraries. No call tells what they take, so the driver's bytes for this
 * process are read before and after. Most often they take nothing, as code is loaded
 * where it is first used: NVML is not started for that. */
#include "charge.h"
#include "hooks/context_table.h"
#include "overhead.h"

/* A load, from the reading before to the charge after. */
struct module_load {
	struct alloc_target target; /* its device is NULL where nothing is measured */
	struct overhead_reading before;
};

/* module_begin takes the reading: CUDA_SUCCESS, or what the call must return. Without a
 * context there is nothing to measure, and nothing is loaded yet. */
static int module_begin(struct module_load *m)
{
	int denied = context_enter(&m->target);
	if (m->target.device)
		m->before = overhead_read_before_load(m->target.device);
	return denied;
}

/* module_keep records what a module was charged; library is NULL for one of its own. */
static void module_keep(const struct module_load *m, void *handle, uint64_t bytes, CUlibrary library)
{
	struct alloc_record r = {.key = (uintptr_t)handle, .bytes = bytes, .device = (uint8_t)m->target.device->index,
				 .context = m->target.context, .flags = m->before.free_only && bytes ? RECORD_UNSURE : 0,
				 .other = (uintptr_t)library};
	context_keep(&context_modules, &r, RATION_MODULE);
	overhead_read_soon(); /* the code itself comes when it is first used */
}

/* module_charge charges what was loaded. It returns true where the call must return
 * *result after it has unloaded it again: the job has no room for it. */
static bool module_charge(const struct module_load *m, int *result, void *handle, CUlibrary library)
{
	uint64_t bytes;
	if (*result != CUDA_SUCCESS || !m->target.device)
		return false;
	*result = overhead_charge_growth(&m->before, RATION_MODULE, &bytes);
	if (*result == CUDA_SUCCESS)
		module_keep(m, handle, bytes, library);
	return *result != CUDA_SUCCESS;
}

static int module_end(const struct module_load *m, int result, CUmodule *out)
{
	if (module_charge(m, &result, out ? *out : NULL, NULL)) {
		REAL(cuModuleUnload, *out);
		*out = NULL;
		overhead_refresh(m->target.device);
	}
	return result;
}

static int module_end_library(const struct module_load *m, int result, CUlibrary *out)
{
	if (module_charge(m, &result, out ? *out : NULL, out ? *out : NULL)) {
		REAL(cuLibraryUnload, *out);
		*out = NULL;
		overhead_refresh(m->target.device);
	}
	return result;
}

int cuModuleLoad(CUmodule *out, const char *path)
{
	struct module_load m;
	return module_end(&m, REAL_UNLESS(module_begin(&m), cuModuleLoad, out, path), out);
}

int cuModuleLoadData(CUmodule *out, const void *image)
{
	struct module_load m;
	return module_end(&m, REAL_UNLESS(module_begin(&m), cuModuleLoadData, out, image), out);
}

int cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
	struct module_load m;
	return module_end(&m, REAL_UNLESS(module_begin(&m), cuModuleLoadFatBinary, out, image), out);
}

int cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values)
{
	struct module_load m;
	return module_end(&m, REAL_UNLESS(module_begin(&m), cuModuleLoadDataEx, out, image, count, options, values), out);
}

int cuLibraryLoadData(CUlibrary *out, const void *code, int *jit, void **jit_values, unsigned jit_count, int *options, void **values,
		      unsigned count)
{
	struct module_load m;
	return module_end_library(&m, REAL_UNLESS(module_begin(&m), cuLibraryLoadData, out, code, jit, jit_values, jit_count, options, values, count), out);
}

int cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jit, void **jit_values, unsigned jit_count, int *options, void **values,
			  unsigned count)
{
	struct module_load m;
	return module_end_library(&m, REAL_UNLESS(module_begin(&m), cuLibraryLoadFromFile, out, path, jit, jit_values, jit_count, options, values, count), out);
}

/* cuLibraryGetModule loads a library's module into the current context the first time.
 * It is unloaded only with the library, so where it does not fit it is not undone: it
 * exists, and is overhead. */
int cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
	struct module_load m;
	struct alloc_record r;
	int result = REAL_UNLESS(module_begin(&m), cuLibraryGetModule, out, library), charged = result;
	if (result != CUDA_SUCCESS || alloc_table_get(&context_modules, (uintptr_t)*out, &r))
		return result;
	if (module_charge(&m, &charged, *out, library))
		overhead_refresh(m.target.device);
	return result;
}

int cuModuleUnload(CUmodule module)
{
	struct alloc_record r = context_take(&context_modules, (uintptr_t)module);
	int result = REAL(cuModuleUnload, module);
	if (alloc_table_freed(&context_modules, &r, result == CUDA_SUCCESS)) {
		charge_return(r.device, RATION_MODULE, r.bytes);
		if (r.flags & RECORD_UNSURE && device_at(r.device))
			overhead_refresh(device_at(r.device));
	}
	return result;
}

struct module_sweep {
	CUlibrary library;
	struct device *device; /* of a module that was found */
};

static bool module_of_other_library(struct alloc_record *r, void *arg)
{
	struct module_sweep *s = arg;
	if (r->other != (uintptr_t)s->library)
		return true;
	charge_return(r->device, RATION_MODULE, r->bytes);
	s->device = device_at(r->device);
	return false;
}

/* cuLibraryUnload returns what the library was charged. What it loaded lazily was
 * overhead, and is no longer. */
int cuLibraryUnload(CUlibrary library)
{
	struct module_sweep s = {library, NULL};
	int result = REAL(cuLibraryUnload, library);
	if (result != CUDA_SUCCESS || !library || !attach_on())
		return result;
	alloc_table_sweep(&context_modules, module_of_other_library, &s);
	if (s.device)
		overhead_refresh(s.device);
	return result;
}
