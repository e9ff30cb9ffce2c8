/* A module with a large variable, which is allocated when the module is loaded. */
#include "allocpaths.h"

#define BYTES 67108864
#define TEXT(number) TEXT_OF(number)
#define TEXT_OF(number) #number

static const char ptx[] = ".version 6.4\n"
			  ".target sm_50\n"
			  ".address_size 64\n"
			  ".visible .global .align 16 .b8 large[" TEXT(BYTES) "];\n";

static CUmodule module_load(void)
{
	CUmodule loaded;
	CUdeviceptr at;
	size_t bytes;
	CUresult result = cuModuleLoadData(&loaded, ptx);
	if (result == CUDA_ERROR_JIT_COMPILER_NOT_FOUND)
		skip("cuModuleLoadData: the driver's compiler is not installed (%d)", result);
	driver_can(result, "cuModuleLoadData");
	MUST(cuModuleGetGlobal_v2, &at, &bytes, loaded, "large");
	if (bytes != BYTES)
		fail("cuModuleGetGlobal_v2: %zu bytes of %d", bytes, BYTES);
	driver_use(at, bytes);
	return loaded;
}

static void module_play(void)
{
	CUmodule loaded;
	step("empty data=0 module=0");
	loaded = module_load();
	step("held data=0 module=%d", BYTES);
	MUST(cuModuleUnload, loaded);
	step("freed data=0 module=0");
	loaded = module_load();
	step("again data=0 module=%d", BYTES);
	MUST(cuModuleUnload, loaded);
}

const struct allocpath module = {.name = "module", .play = module_play};
