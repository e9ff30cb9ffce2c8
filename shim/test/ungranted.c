/* A pool that grew beyond the limit, and cannot give that back before the program has
 * waited for the device: what was not granted is not used, and is given back then. 1 GiB for
 * the job. */
#include "held.h"

#define GIB (1024 * MIB)

int main(void)
{
	enum { MOST = 64, PIECE = 48 * MIB };
	CUmemoryPool pool;
	CUdeviceptr p[MOST], q;
	uint64_t threshold = 1ull << 40;
	CUresult result = CUDA_SUCCESS;
	int n = 0;
	start();
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	/* Room in pieces, which only a trim would give back, so that each piece below makes it grow. */
	OK(cuMemAllocAsync(&q, 100 * MIB, NULL));
	OK(cuMemAllocAsync(&p[n++], MIB, NULL));
	OK(cuMemFreeAsync(q, NULL));
	OK(cuCtxSynchronize());
	while (n < MOST && result == CUDA_SUCCESS) {
		result = cuMemAllocAsync(&p[n], PIECE, NULL);
		n += result == CUDA_SUCCESS;
		SAME();
	}
	EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
	/* What was undone is still the pool's, and would be given out again. */
	for (int i = 0; i < 3; i++)
		EQ(cuMemAllocAsync(&q, PIECE, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(cuMemAlloc_v2(&q, GIB), CUDA_ERROR_OUT_OF_MEMORY);
	SAME();
	OK(cuCtxSynchronize());
	SAME();
	CHECK(everybody() <= GIB);
	EQ(cuMemAllocAsync(&q, PIECE, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFreeAsync(p[--n], NULL));
	OK(cuCtxSynchronize());
	OK(cuMemAllocAsync(&p[n++], PIECE, NULL));
	SAME();
	CHECK(everybody() <= GIB);
	while (n > 0)
		OK(cuMemFreeAsync(p[--n], NULL));
	OK(cuCtxSynchronize());
	OK(cuMemPoolTrimTo(pool, 0));
	SAME();
	EQ(held(RATION_DATA), 0);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	return FINISH();
}
