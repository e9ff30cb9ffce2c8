/* More pools than the library has places for: what they hand out counts, or is refused. */
#include "../stranger.h"
int main(void)
{
	start();
	CUdeviceptr q = 0;
	CUmemoryPool n;
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	for (int i = 0; i < 1025; i++)
		OK(cuMemPoolCreate(&n, &props));
	CUresult r = cuMemAllocFromPoolAsync(&q, 5000 * MIB, n, NULL);
	printf("5000 MiB from pool 1025: %d; region %llu truth %llu\n", r, (unsigned long long)region_used(region_here(), 0) >> 20,
	       (unsigned long long)in_use(0) >> 20);
	r = cuMemAllocAsync(&q, 2000 * MIB, NULL);
	printf("2000 MiB from the default pool: %d; region %llu truth %llu\n", r, (unsigned long long)region_used(region_here(), 0) >> 20,
	       (unsigned long long)in_use(0) >> 20);
	WITHIN_LIMIT(0);
	return FINISH();
}
