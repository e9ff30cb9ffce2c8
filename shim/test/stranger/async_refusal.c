/* A process of which the driver has more than was asked for, and whose pool grows beyond the
 * limit because what it has cannot be used yet: what is refused is counted once while the
 * pool has it, and no longer when it does not. */
#include "../../elf.h"
#include "../later.h"
#include "stranger.h"

enum { MOST = 64, PIECE = 40 * MIB, HIDDEN = 16 * MIB };

/* Takes memory of which the library knows nothing, as the driver does for code. */
static void take_hidden(void)
{
	struct elf_object driver;
	CUdeviceptr p;
	CHECK(elf_named("libcuda.so.1", &driver));
	CUresult (*take)(CUdeviceptr *, size_t) = (CUresult(*)(CUdeviceptr *, size_t))elf_symbol(&driver, "cuMemAlloc_v2");
	OK(take(&p, HIDDEN));
	later();
	OK(cuCtxSynchronize());
	EQ(held(RATION_OVERHEAD), HIDDEN);
	BALANCED(0);
}

/* All of the job's memory but 8 MiB: pieces of 40 MiB in a pool, and the rest. */
static int fill(CUdeviceptr *p, CUdeviceptr *rest)
{
	int n = 0;
	while (n < MOST && cuMemAllocAsync(&p[n], PIECE, NULL) == CUDA_SUCCESS)
		n++;
	uint64_t room = limit_of(0) - region_used(region_here(), 0);
	OK(cuMemAlloc_v2(rest, room - 8 * MIB));
	BALANCED(0);
	WITHIN_LIMIT(0);
	return n;
}

int main(void)
{
	CUmemoryPool pool;
	CUdeviceptr p[MOST], q, rest;
	uint64_t threshold = 1ull << 40;
	start(); /* 100 MiB of 1 GiB */
	take_hidden();
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	int n = fill(p, &rest);
	/* What is freed has its size again, but nothing that is larger before the device has come to
	 * it. So the pool grows, by a chunk. */
	for (int i = 0; i < 3; i++) {
		OK(cuMemFreeAsync(p[--n], NULL));
		EQ(cuMemAllocAsync(&q, PIECE + 8 * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
		BALANCED(0);
		EQ(held(RATION_OVERHEAD), HIDDEN);
		OK(cuCtxSynchronize());
		BALANCED(0);
		WITHIN_LIMIT(0);
		EQ(held(RATION_OVERHEAD), HIDDEN);
		OK(cuMemAllocAsync(&p[n++], PIECE, NULL));
		BALANCED(0);
	}
	while (n > 0)
		OK(cuMemFreeAsync(p[--n], NULL));
	OK(cuCtxSynchronize());
	OK(cuMemPoolTrimTo(pool, 0));
	OK(cuMemFree_v2(rest));
	BALANCED(0);
	EQ(held(RATION_DATA), 0);
	return FINISH();
}
