/* A library with a variable that the job has no room for: it is refused before the driver has
 * loaded it, as often as it is asked for, and granted once there is room. */
#include "stranger.h"

static const char large[] = PTX(".visible .global .align 4 .b8 a[100000000];\n"
				".visible .global .align 8 .u64 b[2];\n");
static const char unseen[] = PTX(".global .align 4 .b8 hidden[100000000];\n");

/* How much the driver has, and the job. */
#define HAS(bytes)                    \
	do {                          \
		EQ(in_use(0), bytes); \
		SAME();               \
	} while (0)

static void refused(void)
{
	CUlibrary library;
	CUfunction function;
	CUkernel kernel;
	CUdeviceptr at;
	CUmodule m;
	size_t bytes = 0;
	start();
	OK(cuCtxSynchronize());
	uint64_t before = in_use(0);
	set_limit(0, before + 90 * MIB);
	OK(cuLibraryLoadData(&library, large, NULL, NULL, 0, NULL, NULL, 0));
	for (int i = 0; i < 2; i++) {
		EQ(cuLibraryGetGlobal(&at, &bytes, library, "a"), CUDA_ERROR_OUT_OF_MEMORY);
		EQ(bytes, 0);
		EQ(cuLibraryGetModule(&m, library), CUDA_ERROR_OUT_OF_MEMORY);
		HAS(before);
	}
	OK(cuLibraryGetKernel(&kernel, library, "k"));
	EQ(cuKernelGetFunction(&function, kernel), CUDA_ERROR_OUT_OF_MEMORY);
	HAS(before);
	set_limit(0, before + 100 * MIB);
	OK(cuLibraryGetGlobal(&at, &bytes, library, "b"));
	EQ(bytes, 16);
	CHECK(in_use(0) >= before + 100000000);
	BALANCED(0);
	/* It is there: what is at the limit now is not asked for again. */
	set_limit(0, in_use(0));
	OK(cuLibraryGetGlobal(&at, &bytes, library, "b"));
	OK(cuKernelGetFunction(&function, kernel));
	OK(cuLibraryUnload(library));
	HAS(before);
}

/* What no image tells is found when it is there: it stays loaded, and counts. */
static void unknown(void)
{
	CUlibrary library;
	CUmodule m;
	start();
	OK(cuCtxSynchronize());
	uint64_t before = in_use(0);
	set_limit(0, before + 90 * MIB);
	OK(cuLibraryLoadData(&library, unseen, NULL, NULL, 0, NULL, NULL, 0));
	EQ(cuLibraryGetModule(&m, library), CUDA_ERROR_OUT_OF_MEMORY);
	SAME();
	OK(cuLibraryUnload(library));
	HAS(before);
}

RUN_PARTS(true, {"refused", refused}, {"unknown", unknown})
