/* More pools than the library has places for are refused: what one of them handed out would not
 * count. The device's own pool has a place all the same. */
#include "stranger.h"

int main(void)
{
	static CUmemoryPool made[2000];
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool refused = NULL;
	CUdeviceptr p, q;
	CUresult r = CUDA_SUCCESS;
	unsigned n = 0;
	start();
	while (n < 2000 && (r = cuMemPoolCreate(&made[n], &props)) == CUDA_SUCCESS)
		n++;
	EQ(r, CUDA_ERROR_OUT_OF_MEMORY);
	EQ(n, 1024);
	EQ(cuMemPoolCreate(&refused, &props), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(refused == NULL);
	LOGGED("more than 1024 memory pools", 1);
	EQ(cuMemAllocFromPoolAsync(&p, 5000 * MIB, made[n - 1], NULL), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemAllocFromPoolAsync(&p, 320 * MIB, made[n - 1], NULL));
	SAME();
	EQ(cuMemAllocAsync(&q, 2000 * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemAllocAsync(&q, 320 * MIB, NULL));
	SAME();
	OK(cuMemPoolDestroy(made[0]));
	OK(cuMemPoolCreate(&made[0], &props));
	EQ(cuMemPoolCreate(&refused, &props), CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(0);
	EQ(fakegpu_errors(), 0);
	return FINISH();
}
