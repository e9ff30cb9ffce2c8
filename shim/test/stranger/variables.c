/* Static variables of a library, which come when the first of them is asked for: more than
 * there is room for is refused, and what is there is counted at once. */
#include "stranger.h"

#define CONTEXT (100 * MIB)

/* 381 MiB, under a limit of 300 MiB; and managed ones, which come when they are moved. */
static const char large[] = PTX(".visible .global .align 4 .b8 big[400000000];\n.visible .global .align 4 .u32 small;\n");
static const char managed[] = PTX(".visible .global .attribute(.managed) .align 4 .b8 shared[400000000];\n");

static CUlibrary load(const char *image)
{
	CUlibrary l;
	start();
	OK(cuLibraryLoadData(&l, image, NULL, NULL, 0, NULL, NULL, 0));
	BALANCED(0);
	return l;
}

static void refused(void)
{
	CUlibrary l = load(large);
	CUdeviceptr p = 0;
	size_t size;
	EQ(cuLibraryGetGlobal(&p, &size, l, "small"), CUDA_ERROR_OUT_OF_MEMORY);
	BALANCED(0);
	OK(cuLibraryUnload(l));
	BALANCED(0);
	EQ(in_use(0), CONTEXT);
}

static void granted(void)
{
	CUlibrary l = load(PTX(BIG_100M));
	CUdeviceptr p = 0;
	size_t size;
	OK(cuLibraryGetGlobal(&p, &size, l, "big"));
	SAME();
	OK(cuLibraryGetGlobal(&p, &size, l, "big")); /* it is there already */
	SAME();
	OK(cuLibraryUnload(l));
	SAME();
}

/* A call that does not find its variable loads the library all the same. */
static void not_found(void)
{
	CUlibrary l = load(PTX(BIG_100M));
	CUdeviceptr p = 0;
	size_t size;
	EQ(cuLibraryGetGlobal(&p, &size, l, "none"), CUDA_ERROR_NOT_FOUND);
	CHECK(held(RATION_MODULE) > 0);
	SAME();
	OK(cuLibraryUnload(l));
	SAME();
}

/* Managed variables count from when they are asked for, once, and wherever they are sent. */
static void managed_fits(void)
{
	CUlibrary l = load(PTX(".visible .global .attribute(.managed) .align 4 .b8 shared[104857600];\n"));
	CUdeviceptr p = 0, q = 0;
	CUcontext c;
	size_t size;
	OK(cuLibraryGetManaged(&p, &size, l, "shared"));
	EQ(size, 100 * MIB);
	OK(cuLibraryGetManaged(&q, NULL, l, "shared"));
	EQ(q, p);
	EQ(region_used(region_here(), 0), CONTEXT + 100 * MIB);
	OK(cuMemPrefetchAsync(p, size, 0, NULL));
	BALANCED(0);
	OK(cuDevicePrimaryCtxRetain(&c, 1));
	OK(cuMemPrefetchAsync(p + MIB, MIB, 1, NULL));
	BALANCED(1);
	EQ(region_used(region_here(), 0), CONTEXT + 100 * MIB);
	OK(cuLibraryUnload(l));
	BALANCED(0);
	BALANCED(1);
}

static void moved(void)
{
	CUlibrary l = load(managed);
	CUdeviceptr p = 0;
	size_t size;
	if (cuLibraryGetManaged(&p, &size, l, "shared") == CUDA_SUCCESS)
		(void)!cuMemPrefetchAsync(p, size, 0, NULL);
	WITHIN_LIMIT(0);
	CHECK(region_used(region_here(), 0) >= in_use(0));
	OK(cuLibraryUnload(l));
	BALANCED(0);
}

RUN_PARTS(true, {"refused", refused}, {"granted", granted}, {"not found", not_found}, {"managed fits", managed_fits}, {"moved", moved})
