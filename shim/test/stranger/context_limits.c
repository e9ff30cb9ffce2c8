/* The stack and the heap that a context is told to have are requests like any other: they
 * are charged, and refused where there is no room. */
#include "stranger.h"

static const char allocates[] = PTX(".extern .func (.param .b64 r) malloc(.param .b64 n);\n");

/* For so many bytes: on this machine, of every thread that can be resident. */
static size_t stack_of(uint64_t bytes)
{
	CUdevResource all;
	OK(cuDeviceGetDevResource(0, &all, 1));
	return 1024 + bytes / 2048 / all.sm.smCount;
}

static void stack(void)
{
	start(); /* 100 MiB of 500 */
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, stack_of(200 * MIB)));
	BALANCED(0);
	CHECK(in_use(0) > 290 * MIB);
	EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, stack_of(600 * MIB)), CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(0);
	BALANCED(0);
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
	BALANCED(0);
	EQ(in_use(0), 100 * MIB);
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, stack_of(200 * MIB)));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	EQ(in_use(0), 0);
	BALANCED(0);
}

/* It is taken when the first kernel that allocates is launched: too late to refuse it. */
static void heap(void)
{
	CUmodule m;
	CUfunction f;
	CUdeviceptr p;
	start();
	EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 300 * MIB));
	OK(cuModuleLoadData(&m, allocates));
	EQ(cuMemAlloc_v2(&p, 300 * MIB), CUDA_ERROR_OUT_OF_MEMORY); /* there is no room for both */
	OK(cuModuleGetFunction(&f, m, "k"));
	OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	WITHIN_LIMIT(0);
	BALANCED(0);
	EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 350 * MIB), CUDA_ERROR_INVALID_VALUE); /* it is there */
	BALANCED(0);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	BALANCED(0);
}

/* Only the difference is charged, and a lower one given back. */
static void heap_changes(void)
{
	CUcontext c;
	start();
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 300 * MIB));
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 390 * MIB + 1));
	EQ(held(RATION_CONTEXT), 490 * MIB + RATION_UNIT);
	EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 401 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(held(RATION_CONTEXT), 490 * MIB + RATION_UNIT);
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 100 * MIB));
	EQ(held(RATION_CONTEXT), 200 * MIB);
	OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 600 * MIB)); /* the host's */
	OK(cuCtxCreate_v2(&c, 0, 0));                            /* measured beside what has not come yet */
	EQ(held(RATION_CONTEXT), 300 * MIB);
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 150 * MIB));
	EQ(held(RATION_CONTEXT), 450 * MIB);
	OK(cuCtxDestroy_v2(c));
	EQ(held(RATION_CONTEXT), 200 * MIB);
	OK(cuDevicePrimaryCtxReset_v2(0));
	SAME();
}

RUN_PARTS(true, {"stack", stack}, {"heap", heap}, {"heap changes", heap_changes})
