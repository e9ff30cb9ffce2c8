/* The calls on modules and functions. */
#include <stdlib.h>

#include "module.h"

static CUresult modulecall_load_data(CUmodule *out, const void *image)
{
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	return module_new(out, image, NULL);
}

static CUresult modulecall_load_file(CUmodule *out, const char *path)
{
	struct context *c;
	char *data;
	CUresult r;

	TRY(current_context(&c));
	if (out == NULL || path == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	data = file_read(path);
	if (data == NULL)
		return CUDA_ERROR_FILE_NOT_FOUND;
	r = modulecall_load_data(out, data);
	free(data);
	return r;
}

static CUresult modulecall_module_get(CUmodule handle, const char *call, struct module **out)
{
	struct context *c;
	TRY(current_context(&c));
	*out = handle_want(handle, HANDLE_MODULE, call);
	return *out == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

static CUresult modulecall_unload(CUmodule handle)
{
	struct module *m;
	TRY(driver_ready());
	m = handle_want(handle, HANDLE_MODULE, "cuModuleUnload");
	if (m == NULL || m->library != NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	module_end(m);
	return CUDA_SUCCESS;
}

API cuModuleLoad(CUmodule *out, const char *path) { ENTRY(cuModuleLoad, modulecall_load_file(out, path)); }
API cuModuleLoadData(CUmodule *out, const void *image) { ENTRY(cuModuleLoadData, modulecall_load_data(out, image)); }

API cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values)
{
	(void)count, (void)options, (void)values;
	ENTRY(cuModuleLoadDataEx, modulecall_load_data(out, image));
}

API cuModuleLoadFatBinary(CUmodule *out, const void *image) { ENTRY(cuModuleLoadFatBinary, modulecall_load_data(out, image)); }
API cuModuleUnload(CUmodule m) { ENTRY(cuModuleUnload, modulecall_unload(m)); }

static CUresult modulecall_get_function(CUfunction *out, CUmodule handle, const char *name)
{
	struct module *m;
	TRY(modulecall_module_get(handle, "cuModuleGetFunction", &m));
	if (out == NULL || name == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	return module_function(m, name, out);
}

API cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name)
{
	ENTRY(cuModuleGetFunction, modulecall_get_function(out, m, name));
}

static CUresult modulecall_get_global(CUdeviceptr *p, uint64_t *size, CUmodule handle, const char *name)
{
	struct module *m;
	TRY(modulecall_module_get(handle, "cuModuleGetGlobal", &m));
	return name == NULL ? CUDA_ERROR_INVALID_VALUE : module_global(m, name, p, size);
}

API cuModuleGetGlobal_v2(CUdeviceptr *p, size_t *size, CUmodule m, const char *name)
{
	CUdeviceptr at;
	uint64_t n;
	TRY(modulecall_get_global(&at, &n, m, name));
	if (p != NULL)
		*p = at;
	if (size != NULL)
		*size = n;
	return CUDA_SUCCESS;
}

/* Variables lie above what 32 bits can name: their size is all a caller can have. */
API cuModuleGetGlobal(CUdeviceptr_v1 *p, unsigned *size, CUmodule m, const char *name)
{
	CUdeviceptr at;
	uint64_t n;
	TRY(modulecall_get_global(&at, &n, m, name));
	if (p != NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (size != NULL)
		*size = (unsigned)n;
	return CUDA_SUCCESS;
}

API cuModuleGetLoadingMode(int *mode)
{
	enum { LAZY = 2 };
	TRY(driver_ready());
	if (mode == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = LAZY;
	return CUDA_SUCCESS;
}

static CUresult modulecall_function_get(CUfunction handle, const char *call, struct function **out)
{
	TRY(driver_ready());
	*out = handle_want(handle, HANDLE_FUNCTION, call);
	return *out == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

enum { MAX_THREADS_PER_BLOCK = 0, NUM_REGS = 4, PTX_VERSION = 5, BINARY_VERSION = 6 };

API cuFuncGetAttribute(int *value, int attribute, CUfunction handle)
{
	struct function *f;
	TRY(modulecall_function_get(handle, "cuFuncGetAttribute", &f));
	if (value == NULL || attribute < 0)
		return CUDA_ERROR_INVALID_VALUE;
	*value = attribute == MAX_THREADS_PER_BLOCK                        ? 1024
		 : attribute == NUM_REGS                                   ? 16
		 : attribute == PTX_VERSION || attribute == BINARY_VERSION ? machine_shape()->model->major * 10
									   : 0;
	return CUDA_SUCCESS;
}

API cuFuncSetAttribute(CUfunction handle, int attribute, int value)
{
	struct function *f;
	(void)attribute, (void)value;
	return modulecall_function_get(handle, "cuFuncSetAttribute", &f);
}

API cuFuncSetCacheConfig(CUfunction handle, int config)
{
	struct function *f;
	(void)config;
	return modulecall_function_get(handle, "cuFuncSetCacheConfig", &f);
}

API cuFuncGetModule(CUmodule *out, CUfunction handle)
{
	struct function *f;
	TRY(modulecall_function_get(handle, "cuFuncGetModule", &f));
	if (out == NULL || f->module == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = f->module;
	return CUDA_SUCCESS;
}

API cuFuncGetName(const char **name, CUfunction handle)
{
	struct function *f;
	TRY(modulecall_function_get(handle, "cuFuncGetName", &f));
	if (name == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*name = f->name;
	return CUDA_SUCCESS;
}
