/* Modules, libraries, streams, events and launches. */
#include "check.h"

static const char ptx[] = "//\n.version 7.0\n.target sm_80\n.address_size 64\n"
			  ".global .align 4 .u32 table[1000000];\n.visible .entry kernel()\n{ ret; }\n";

static void modules(void)
{
	uint64_t before = mine(), bytes = 0;
	CUdeviceptr p, q;
	CUfunction f, g;
	CUmodule m;
	size_t size;
	int mode;
	EQ(cuModuleLoadData(&m, "garbage, not PTX"), CUDA_ERROR_INVALID_IMAGE);
	EQ(cuModuleLoad(&m, "/nonexistent"), CUDA_ERROR_FILE_NOT_FOUND);
	OK(cuModuleLoadData(&m, ptx));
	EQ(mine() - before, 4 * MIB);
	EQ(fakegpu_truth_kind(0, FAKEGPU_MODULE, &bytes, NULL), 0);
	EQ(bytes, 4 * MIB);
	EQ(cuModuleGetFunction(&f, m, "other"), CUDA_ERROR_NOT_FOUND);
	EQ(cuModuleGetFunction(&f, m, "kern"), CUDA_ERROR_NOT_FOUND);
	OK(cuModuleGetFunction(&f, m, "kernel"));
	OK(cuModuleGetFunction(&g, m, "kernel"));
	CHECK(f == g);
	OK(cuModuleGetGlobal_v2(&p, &size, m, "table"));
	OK(cuModuleGetGlobal_v2(&q, &size, m, "table"));
	CHECK(p == q);
	EQ(size, 4000000);
	EQ(cuModuleGetGlobal_v2(&p, &size, m, "none"), CUDA_ERROR_NOT_FOUND);
	EQ(cuMemFree_v2(q), CUDA_ERROR_INVALID_VALUE);
	OK(cuModuleUnload(m));
	EQ(mine(), before);
	EQ(cuModuleUnload(m), CUDA_ERROR_INVALID_HANDLE);
	OK(cuModuleGetLoadingMode(&mode));
	EQ(mode, 2);
}

static void libraries(void)
{
	uint64_t before = mine();
	CUlibrary l;
	CUkernel k;
	CUfunction f;
	CUmodule m;
	unsigned long launches = fakegpu_launches();
	OK(cuLibraryLoadData(&l, ptx, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&k, l, "kernel"));
	EQ(mine(), before); /* nothing until a context uses it */
	OK(cuLaunchKernel((CUfunction)k, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
	EQ(mine() - before, 4 * MIB);
	OK(cuKernelGetFunction(&f, k));
	OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
	OK(cuLibraryGetModule(&m, l));
	EQ(mine() - before, 4 * MIB);
	EQ(cuLaunchKernel(f, 0, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	EQ(cuLaunchKernel(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
	EQ(fakegpu_launches() - launches, 2);
	EQ(cuModuleUnload(m), CUDA_ERROR_INVALID_HANDLE); /* the library's */
	OK(cuLibraryUnload(l));
	EQ(mine(), before);
	EQ(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
}

/* Variables come with the module, whichever of them is asked for; managed ones do not
 * take memory before they are moved. */
static void variables(void)
{
	static const char two[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
				  ".visible .global .align 4 .b8 first[3000000];\n.visible .global .align 4 .b8 second[3000000];\n"
				  ".visible .global .attribute(.managed) .align 4 .b8 shared[3000000];\n.visible .entry k() { ret; }\n";
	uint64_t before = mine();
	CUdeviceptr p, q;
	CUlibrary l, again;
	size_t size;
	OK(cuLibraryLoadData(&l, two, NULL, NULL, 0, NULL, NULL, 0));
	EQ(cuLibraryGetManaged(&p, &size, l, "first"), CUDA_ERROR_NOT_FOUND);
	OK(cuLibraryGetManaged(&p, &size, l, "shared"));
	OK(cuLibraryGetManaged(&q, NULL, l, "shared"));
	EQ(p, q);
	EQ(size, 3000000);
	EQ(mine(), before);
	OK(cuMemPrefetchAsync(p, size, 0, NULL));
	EQ(mine() - before, 3000320);
	OK(cuMemPrefetchAsync(p, size, CU_DEVICE_CPU, NULL));
	EQ(cuLibraryGetGlobal(&p, &size, l, "shared"), CUDA_ERROR_NOT_FOUND);
	OK(cuLibraryGetGlobal(&p, &size, l, "second"));
	EQ(size, 3000000);
	EQ(mine() - before, 6 * MIB);
	OK(cuMemPrefetchAsync(q, size, 0, NULL));
	OK(cuLibraryUnload(l)); /* all of them go with it */
	EQ(mine(), before);
	OK(cuLibraryLoadData(&again, two, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(again == l); /* handles are used again at once */
	OK(cuLibraryUnload(again));
}

/* The heap comes with the first launch of a kernel that allocates, and stays. */
static void heap(void)
{
	static const char text[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
				   ".extern .func (.param .b64 r) malloc(.param .b64 n);\n.visible .entry k() { ret; }\n";
	uint64_t before = mine();
	CUcontext c;
	CUmodule m;
	CUfunction f;
	OK(cuCtxCreate_v2(&c, 0, 0));
	uint64_t made = mine();
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB));
	OK(cuModuleLoadData(&m, text));
	OK(cuModuleGetFunction(&f, m, "k"));
	EQ(mine() - made, 2 * MIB);
	OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	EQ(mine() - made, 66 * MIB);
	EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 128 * MIB), CUDA_ERROR_INVALID_VALUE);
	OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	EQ(mine() - made, 66 * MIB);
	OK(cuCtxDestroy_v2(c));
	EQ(mine(), before);
}

static void count(void *arg) { ++*(int *)arg; }

static void streams(void)
{
	CUstream s;
	CUevent a, b;
	float ms = -1;
	int calls = 0;
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamQuery(s));
	OK(cuStreamSynchronize(s));
	OK(cuLaunchHostFunc(s, count, &calls));
	EQ(calls, 1);
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	EQ(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_INVALID_HANDLE);
	OK(cuEventRecord(a, s));
	OK(cuEventRecord(b, NULL));
	OK(cuEventElapsedTime(&ms, a, b));
	CHECK(ms >= 0);
	OK(cuEventDestroy_v2(a));
	OK(cuEventDestroy_v2(b));
	OK(cuStreamDestroy_v2(s));
	EQ(cuStreamDestroy_v2(s), CUDA_ERROR_INVALID_HANDLE);
	EQ(cuStreamSynchronize(s), CUDA_ERROR_INVALID_HANDLE);
	EQ(cuStreamDestroy_v2(NULL), CUDA_ERROR_INVALID_HANDLE);
	EQ(cuStreamDestroy_v2(CU_STREAM_PER_THREAD), CUDA_ERROR_INVALID_HANDLE);
}

int main(void)
{
	start();
	modules();
	libraries();
	variables();
	heap();
	streams();
	return FINISH();
}
