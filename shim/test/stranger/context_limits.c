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
    OK(cuDevicePrimaryCtxRelease_v2(0));
    BALANCED(0);
}

RUN_PARTS(true, {"stack", stack}, {"heap", heap})
