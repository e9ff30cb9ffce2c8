/* Modules and libraries. No call tells what they take, so the driver's bytes for this
 * process are read before and after. Most often they take nothing, as code is loaded
 * where it is first used: NVML is not started for that. */
#include "charge.h"
#include "hooks/context_table.h"
#include "hooks/departure.h"
#include "hooks/managed.h"
#include "image.h"
#include "overhead.h"
#include "region/atomics.h"

/* What the variables of a library take at least, where its image tells: by handle. */
static struct alloc_table module_libraries;
static uint32_t module_any_library; /* there is, or was, one; atomic */

/* A load, from the reading before to the charge after. */
struct module_load {
	struct alloc_target target; /* its device is NULL where nothing is measured */
	struct overhead_making making;
	struct overhead_turn turn;
};

/* module_begin takes the reading: CUDA_SUCCESS, or what the call must return. Without a
 * context there is nothing to measure, and nothing is loaded yet. */
static int module_begin(struct module_load *m, const void *image)
{
	int denied = context_enter(&m->target);
	if (m->target.device) {
		overhead_take_turn(&m->turn, m->target.device, image_variables(image));
		overhead_begin_load(&m->making, m->target.device, RATION_MODULE);
	}
	return denied;
}

/* module_keep records what a module was charged; library is NULL for one of its own. */
static void module_keep(const struct module_load *m, void *handle, uint64_t bytes, CUlibrary library)
{
	struct alloc_record r = {.key = (uintptr_t)handle,
				 .bytes = bytes,
				 .device = (uint8_t)m->target.device->index,
				 .context = m->target.context,
				 .other = (uintptr_t)library};
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
	int refused = result == CUDA_SUCCESS ? overhead_charge(&m->making, false, &bytes) : CUDA_SUCCESS;
	if (refused) {
		library ? REAL(cuLibraryUnload, *out) : REAL(cuModuleUnload, *out);
		*out = NULL;
	} else if (result == CUDA_SUCCESS) {
		module_keep(m, *out, bytes, library ? *out : NULL);
	}
	overhead_end(&m->making);
	overhead_leave_turn(&m->turn);
	return refused ? refused : result;
}

int cuModuleLoad(CUmodule *out, const char *path)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin(&m, NULL), cuModuleLoad, out, path);
	return module_end(&m, result, (void **)out, false);
}

int cuModuleLoadData(CUmodule *out, const void *image)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin(&m, image), cuModuleLoadData, out, image);
	return module_end(&m, result, (void **)out, false);
}

int cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin(&m, image), cuModuleLoadFatBinary, out, image);
	return module_end(&m, result, (void **)out, false);
}

int cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin(&m, image), cuModuleLoadDataEx, out, image, count, options, values);
	return module_end(&m, result, (void **)out, false);
}

int cuLibraryLoadData(CUlibrary *out, const void *code, int *jit, void **jit_values, unsigned jit_count, int *options, void **values,
		      unsigned count)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin(&m, code), cuLibraryLoadData, out, code, jit, jit_values, jit_count, options, values, count);
	result = module_end(&m, result, (void **)out, true);
	uint64_t bytes = result == CUDA_SUCCESS && attach_on() ? image_variables(code) : 0;
	if (bytes) {
		__atomic_store_n(&module_any_library, 1, __ATOMIC_RELAXED);
		alloc_table_put(&module_libraries, &(struct alloc_record){.key = (uintptr_t)*out, .bytes = bytes});
	}
	return result;
}

int cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jit, void **jit_values, unsigned jit_count, int *options, void **values,
			  unsigned count)
{
	struct module_load m;
	int result =
		REAL_UNLESS(module_begin(&m, NULL), cuLibraryLoadFromFile, out, path, jit, jit_values, jit_count, options, values, count);
	return module_end(&m, result, (void **)out, true);
}

/* Calls that load what a library holds back until it is asked for, also where they do not
 * find what they look for. It is unloaded only with the library, so where it does not fit it
 * is not undone: it is charged by force, and the call says so, as the driver does when it
 * runs out of memory here. Where the image tells that it will not fit, the driver is not asked. */
static int module_end_lazy(struct module_load *m, int result, CUlibrary library)
{
	static uint64_t parts;
	uint64_t bytes;
	if (!m->target.device)
		return result;
	int refused = overhead_charge(&m->making, true, &bytes);
	/* A record of its own, by a key that no handle has: what a library loads comes in parts. */
	if (bytes)
		module_keep(m, (void *)(uintptr_t)(fetch_add(&parts, 2) + 1), bytes, library);
	overhead_end(&m->making);
	return result ? result : refused;
}

/* A library in a context. */
struct module_place {
	uintptr_t library;
	uint32_t context;
	uint64_t charged;
};

static bool module_look_for(struct alloc_record *r, void *arg)
{
	struct module_place *p = arg;
	if (r->other == p->library && r->context == p->context)
		p->charged += r->bytes;
	return true;
}

/* module_refuse asks the job for what a library takes at least, where it is not loaded yet: CUDA_SUCCESS, or what the call must
 * return. What the load really takes is charged after it. */
static int module_refuse(const struct alloc_target *t, CUlibrary library)
{
	struct alloc_record known;
	if (!alloc_table_get(&module_libraries, (uintptr_t)library, &known) || !charge_would_refuse(t->device->index, known.bytes))
		return CUDA_SUCCESS;
	struct module_place p = {(uintptr_t)library, t->context, 0};
	alloc_table_sweep(&context_modules, module_look_for, &p);
	if (p.charged >= known.bytes || context_failed())
		return CUDA_SUCCESS;
	int refused = charge_add(t->device->index, RATION_MODULE, known.bytes);
	if (!refused)
		charge_return(t->device->index, RATION_MODULE, known.bytes);
	return refused;
}

/* module_begin_lazy is module_begin for them. They are often called, and most often load
 * nothing: that shows in the room that the device has left. */
static int module_begin_lazy(struct module_load *m, CUlibrary library)
{
	int denied = context_enter(&m->target);
	if (!denied && m->target.device && library && (denied = module_refuse(&m->target, library)) != CUDA_SUCCESS)
		m->target.device = NULL;
	if (m->target.device)
		overhead_begin_lazy(&m->making, m->target.device, RATION_MODULE);
	return denied;
}

int cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin_lazy(&m, library), cuLibraryGetModule, out, library);
	return module_end_lazy(&m, result, library);
}

int cuLibraryGetGlobal(CUdeviceptr *out, size_t *bytes, CUlibrary library, const char *name)
{
	struct module_load m;
	int result = REAL_UNLESS(module_begin_lazy(&m, library), cuLibraryGetGlobal, out, bytes, library, name);
	return module_end_lazy(&m, result, library);
}

/* Managed variables are managed memory: all of it counts from when it is asked for. */
int cuLibraryGetManaged(CUdeviceptr *out, size_t *bytes, CUlibrary library, const char *name)
{
	struct alloc_target t;
	CUdeviceptr at = 0;
	size_t size = 0;
	int result = REAL_UNLESS(context_enter(&t), cuLibraryGetManaged, &at, &size, library, name);
	if (result == CUDA_SUCCESS && t.device)
		result = managed_add_variable(at, size, &t, library);
	if (result == CUDA_SUCCESS && out)
		*out = at;
	if (result == CUDA_SUCCESS && bytes)
		*bytes = size;
	return result;
}

int cuKernelGetFunction(CUfunction *out, CUkernel kernel)
{
	struct module_load m;
	CUlibrary library = NULL;
	bool asked = __atomic_load_n(&module_any_library, __ATOMIC_RELAXED);
	if (asked && (!kernel || REAL(cuKernelGetLibrary, &library, kernel) != CUDA_SUCCESS))
		library = NULL;
	int result = REAL_UNLESS(module_begin_lazy(&m, library), cuKernelGetFunction, out, kernel);
	if (result == CUDA_SUCCESS && !asked && REAL(cuKernelGetLibrary, &library, kernel) != CUDA_SUCCESS)
		library = NULL;
	return module_end_lazy(&m, result, library);
}

int cuModuleUnload(CUmodule module)
{
	struct departure p = {.kind = RATION_MODULE};
	struct alloc_record r = context_take(&context_modules, (uintptr_t)module);
	if (r.key)
		departure_add(&p, &r);
	departure_begin(&p);
	int result = REAL(cuModuleUnload, module);
	departure_end(&p, result == CUDA_SUCCESS);
	/* What may not have been its own is overhead, if it has not gone with it. */
	if (alloc_table_freed(&context_modules, &r, result == CUDA_SUCCESS) && r.flags & (RECORD_UNSURE | RECORD_UNCONFIRMED))
		overhead_refresh(device_at(r.device));
	return result;
}

/* Records that go from one owner to another: see context_unloading. */
struct module_sweep {
	uintptr_t from, to; /* to is 0 where they are removed */
	struct departure departure;
};

static bool module_change_owner(struct alloc_record *r, void *arg)
{
	struct module_sweep *s = arg;
	if (r->other != s->from)
		return true;
	departure_add(&s->departure, r);
	r->other = s->to;
	return s->to != 0;
}

/* cuLibraryUnload returns what the library was charged, for modules and for managed memory.
 * Its records change owner before the driver is asked, since its handle may be another
 * thread's library a moment later. */
int cuLibraryUnload(CUlibrary library)
{
	struct module_sweep modules = {.from = (uintptr_t)library, .to = (uintptr_t)&modules | 1, .departure.kind = RATION_MODULE};
	struct module_sweep managed = {.from = modules.from, .to = modules.to, .departure.kind = RATION_DATA};
	struct alloc_record known;
	if (!library || !attach_on())
		return REAL(cuLibraryUnload, library);
	alloc_table_take(&module_libraries, (uintptr_t)library, &known);
	alloc_table_sweep(&context_modules, module_change_owner, &modules);
	alloc_table_sweep(&context_managed, module_change_owner, &managed);
	departure_begin(&modules.departure);
	departure_begin(&managed.departure);
	int result = REAL(cuLibraryUnload, library);
	alloc_table_freed(&module_libraries, &known, result == CUDA_SUCCESS);
	struct module_sweep back = {.from = modules.to, .to = result == CUDA_SUCCESS ? 0 : modules.from};
	alloc_table_sweep(&context_modules, module_change_owner, &back);
	alloc_table_sweep(&context_managed, module_change_owner, &back);
	departure_end(&modules.departure, result == CUDA_SUCCESS);
	departure_end(&managed.departure, result == CUDA_SUCCESS);
	/* What it loaded behind our back was overhead, and is no longer. */
	for (unsigned i = 0; i < RATION_DEVICES; i++)
		if (modules.departure.device[i].bytes)
			overhead_refresh(device_at(i));
	return result;
}
