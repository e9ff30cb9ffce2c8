/* Modules and libraries. No call tells how much memory they take, so the driver's bytes for
 * this process are read before and after. Mostly they take nothing, as code is loaded at first
 * use: NVML is not started for that. */
#include "charge.h"
#include "hooks/context_table.h"
#include "hooks/departure.h"
#include "hooks/managed.h"
#include "image.h"
#include "overhead.h"
#include "region/atomics.h"

/* The least bytes that the variables of a library take, if its image tells; by the library's
 * handle. */
static struct alloc_table module_libraries;
static uint32_t module_any_library; /* 1: there is, or was, such a library; atomic */

/* A load between the reading before and the charge after. */
struct module_load {
	struct alloc_target target; /* device is NULL if nothing is measured */
	struct overhead_making making;
	struct overhead_turn turn;
};

/* module_begin takes the reading before a load. It returns CUDA_SUCCESS, or the error that the
 * call must return. Without a context nothing is measured, as nothing is loaded yet. */
static int module_begin(struct module_load *m, const void *image)
{
	int denied = context_enter(&m->target);
	if (m->target.device) {
		overhead_take_turn(&m->turn, m->target.device, image_variables(image));
		overhead_begin_load(&m->making, m->target.device, RATION_MODULE);
	}
	return denied;
}

/* module_keep stores the record of a module's charge; library is NULL for a module that belongs
 * to none. */
static void module_keep(const struct module_load *m, void *handle, uint64_t bytes, CUlibrary library)
{
	struct alloc_record r = {.key = (uintptr_t)handle,
				 .bytes = bytes,
				 .device = (uint8_t)m->target.device->index,
				 .context = m->target.context,
				 .other = (uintptr_t)library};
	r.flags = (m->making.free_only && bytes ? RECORD_UNSURE : 0) | (m->making.exact ? 0 : RECORD_UNCONFIRMED);
	context_keep(&context_modules, &r, RATION_MODULE);
	overhead_read_soon(); /* the driver loads the code at first use */
}

/* module_end completes a load: it charges the module, or unloads it if it does not fit. It
 * returns the result of the hooked call. */
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

/* module_end_lazy completes a call that loads the part of a library that it asks for; a call
 * may load even if it does not find the name. That part is unloaded only with the library. So
 * if it does not fit it is not undone: it is charged even above the limit, and the call returns
 * the error, as the driver does when it runs out of memory here. If the image tells in advance
 * that it will not fit, the driver is not called (module_refuse). */
static int module_end_lazy(struct module_load *m, int result, CUlibrary library)
{
	static uint64_t parts;
	uint64_t bytes;
	if (!m->target.device)
		return result;
	int refused = overhead_charge(&m->making, true, &bytes);
	/* Each part gets its own record, under a key that no handle has: a library is loaded in
	 * parts. */
	if (bytes)
		module_keep(m, (void *)(uintptr_t)(fetch_add(&parts, 2) + 1), bytes, library);
	overhead_end(&m->making);
	return result ? result : refused;
}

/* Sums up the charges of a library in a context, in bytes. */
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

/* module_refuse checks, before a library is loaded into a context, whether the bytes that it
 * takes at least would fit. It returns CUDA_SUCCESS, or the error that the call must return.
 * The charge itself is made after the load. */
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

/* module_begin_lazy is module_begin for the calls that load parts of a library. They are called
 * often, and mostly load nothing: then the free bytes of the device stay the same. */
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

/* Managed variables are managed memory: the whole variable is charged when a program first asks
 * for it. */
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
	/* Part of the charge may have belonged to overhead: if that memory is still there,
	 * charge it as overhead. */
	if (alloc_table_freed(&context_modules, &r, result == CUDA_SUCCESS) && r.flags & (RECORD_UNSURE | RECORD_UNCONFIRMED))
		overhead_refresh(device_at(r.device));
	return result;
}

/* Moves records from one owner to another: see context_unloading. */
struct module_sweep {
	uintptr_t from, to; /* to is 0 if the records are removed */
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

/* cuLibraryUnload returns the library's charges, for modules and for managed memory. Its
 * records change owner before the driver is asked: as soon as it is unloaded, its handle may
 * belong to another thread's library. */
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
	/* Memory that the library loaded without a hooked call was charged as overhead, and is
	 * gone now. */
	for (unsigned i = 0; i < RATION_DEVICES; i++)
		if (modules.departure.device[i].bytes)
			overhead_refresh(device_at(i));
	return result;
}
