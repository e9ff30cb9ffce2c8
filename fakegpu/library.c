/* Libraries: images that belong to no context until a context uses them. */
#include <stdlib.h>
#include <string.h>

#include "module.h"

struct library {
	struct handle handle;
	struct image image;
	void *data; /* ours, or the caller's where it must stay (a binary) */
	bool owned;
	struct function *kernels;
	struct module *modules; /* one per context that used it */
	struct global *managed; /* its managed variables, from when they are asked for */
};

static pthread_mutex_t library_lock = PTHREAD_MUTEX_INITIALIZER; /* over lists of managed variables */

static CUresult library_load(CUlibrary *out, const void *data, bool owned)
{
	struct library *l;
	struct image i;

	TRY(driver_ready());
	if (out == NULL || data == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	if (!image_read(data, &i))
		return CUDA_ERROR_INVALID_IMAGE;
	l = handle_new(sizeof *l, HANDLE_LIBRARY, NULL);
	if (l == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	l->owned = owned || i.is_text;
	l->data = !owned && i.is_text ? strdup(data) : (void *)data;
	if (l->data == NULL || !image_read(l->data, &l->image)) {
		handle_drop(l);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = l;
	return CUDA_SUCCESS;
}

static CUresult library_load_file(CUlibrary *out, const char *path)
{
	char *data;
	CUresult r;
	TRY(driver_ready());
	data = path == NULL ? NULL : file_read(path);
	if (data == NULL)
		return path == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_FILE_NOT_FOUND;
	r = library_load(out, data, true);
	if (r != CUDA_SUCCESS)
		free(data);
	return r;
}

API cuLibraryLoadData(CUlibrary *out, const void *code, int *jit, void **jit_values, unsigned jit_count, int *options, void **values,
		      unsigned count)
{
	(void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
	ENTRY(cuLibraryLoadData, library_load(out, code, false));
}

API cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jit, void **jit_values, unsigned jit_count, int *options, void **values,
			  unsigned count)
{
	(void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
	ENTRY(cuLibraryLoadFromFile, library_load_file(out, path));
}

static CUresult library_get(CUlibrary handle, const char *call, struct library **out)
{
	TRY(driver_ready());
	*out = handle_want(handle, HANDLE_LIBRARY, call);
	return *out == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

static CUresult library_unload(CUlibrary handle)
{
	struct library *l;
	TRY(library_get(handle, "cuLibraryUnload", &l));
	while (l->modules != NULL)
		module_end(l->modules); /* which takes itself off the list */
	for (struct global *g = l->managed, *next; g != NULL; g = next) {
		next = g->next;
		host_free_managed(g->address);
		free(g);
	}
	functions_drop(&l->kernels);
	if (l->owned)
		free(l->data);
	handle_drop(l);
	return CUDA_SUCCESS;
}

API cuLibraryUnload(CUlibrary l) { ENTRY(cuLibraryUnload, library_unload(l)); }

CUresult library_module(struct library *l, struct module **out) { return module_of_library(out, l->data, l, &l->modules); }

static CUresult library_get_module(CUmodule *out, CUlibrary handle)
{
	struct library *l;
	TRY(library_get(handle, "cuLibraryGetModule", &l));
	return out == NULL ? CUDA_ERROR_INVALID_VALUE : library_module(l, out);
}

API cuLibraryGetModule(CUmodule *out, CUlibrary l) { ENTRY(cuLibraryGetModule, library_get_module(out, l)); }

API cuLibraryGetKernel(CUkernel *out, CUlibrary handle, const char *name)
{
	struct library *l;
	TRY(library_get(handle, "cuLibraryGetKernel", &l));
	if (out == NULL || name == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!image_has_kernel(&l->image, name))
		return CUDA_ERROR_NOT_FOUND;
	*out = function_new(name, &l->kernels);
	if (*out == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*out)->library = l;
	return CUDA_SUCCESS;
}

static CUresult library_get_global(CUdeviceptr *p, size_t *size, CUlibrary handle, const char *name)
{
	struct library *l;
	struct module *m;
	CUdeviceptr at;
	uint64_t n;

	TRY(library_get(handle, "cuLibraryGetGlobal", &l));
	if (name == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(library_module(l, &m));
	TRY(module_global(m, name, &at, &n));
	if (p != NULL)
		*p = at;
	if (size != NULL)
		*size = n;
	return CUDA_SUCCESS;
}

API cuLibraryGetGlobal(CUdeviceptr *p, size_t *size, CUlibrary l, const char *name)
{
	ENTRY(cuLibraryGetGlobal, library_get_global(p, size, l, name));
}

/* On an H200 this loads nothing: managed variables are every context's. Under the lock. */
static CUresult library_managed_get(struct library *l, const char *name, struct global **out)
{
	struct global *g;
	uint64_t bytes = image_variable(&l->image, name, true);
	for (g = l->managed; g != NULL; g = g->next)
		if (strcmp(g->name, name) == 0) {
			*out = g;
			return CUDA_SUCCESS;
		}
	if (bytes == 0 || strlen(name) >= sizeof g->name)
		return CUDA_ERROR_NOT_FOUND;
	*out = g = calloc(1, sizeof *g);
	if (g == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = host_new_managed(bytes, CU_MEM_ATTACH_GLOBAL, NULL, -1, &g->address);
	if (r != CUDA_SUCCESS) {
		free(g);
		return r;
	}
	strcpy(g->name, name);
	g->size = bytes;
	g->next = l->managed;
	l->managed = g;
	return CUDA_SUCCESS;
}

static CUresult library_get_managed(CUdeviceptr *p, size_t *size, CUlibrary handle, const char *name)
{
	struct library *l;
	struct global *g = NULL;
	CUresult r;

	TRY(library_get(handle, "cuLibraryGetManaged", &l));
	if (name == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&library_lock);
	r = library_managed_get(l, name, &g);
	if (r == CUDA_SUCCESS && p != NULL)
		*p = g->address;
	if (r == CUDA_SUCCESS && size != NULL)
		*size = g->size;
	pthread_mutex_unlock(&library_lock);
	return r;
}

API cuLibraryGetManaged(CUdeviceptr *p, size_t *size, CUlibrary l, const char *name)
{
	ENTRY(cuLibraryGetManaged, library_get_managed(p, size, l, name));
}

static CUresult library_kernel_get(CUkernel handle, const char *call, struct function **out)
{
	TRY(driver_ready());
	*out = handle_want(handle, HANDLE_FUNCTION, call);
	return *out == NULL || (*out)->library == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

static CUresult library_kernel_function(CUfunction *out, CUkernel handle)
{
	struct function *k;
	struct module *m;
	TRY(library_kernel_get(handle, "cuKernelGetFunction", &k));
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(library_module(k->library, &m));
	return module_function(m, k->name, out);
}

API cuKernelGetFunction(CUfunction *out, CUkernel k) { ENTRY(cuKernelGetFunction, library_kernel_function(out, k)); }

API cuKernelGetLibrary(CUlibrary *out, CUkernel handle)
{
	struct function *k;
	TRY(library_kernel_get(handle, "cuKernelGetLibrary", &k));
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = k->library;
	return CUDA_SUCCESS;
}

API cuKernelGetName(const char **name, CUkernel handle)
{
	struct function *k;
	TRY(library_kernel_get(handle, "cuKernelGetName", &k));
	if (name == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*name = k->name;
	return CUDA_SUCCESS;
}

CUresult launchable(CUfunction handle, struct module **out)
{
	struct function *f = handle_want(handle, HANDLE_FUNCTION, "launch");
	if (f == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (f->library != NULL)
		return library_module(f->library, out);
	*out = f->module;
	return CUDA_SUCCESS;
}
