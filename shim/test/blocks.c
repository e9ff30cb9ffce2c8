/* A driver that rounds large allocations up to whole blocks, as real ones do: so do
 * the accounts, and the limit is what the driver counts. 1 GiB for the job. */
#include "held.h"

#define GIB (1024 * MIB)

static uint64_t room(void) { return GIB - region_used(region_here(), 0); }

static void sizes(void)
{
	static const uint64_t some[] = {1, 511, 513, MIB - 1, MIB, MIB + 1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 33 * MIB + 7};
	enum { N = sizeof some / sizeof *some };
	CUdeviceptr p[N], q[N];
	size_t pitch;
	for (int i = 0; i < N; i++) {
		OK(cuMemAlloc_v2(&p[i], some[i]));
		SAME();
		OK(cuMemAllocPitch_v2(&q[i], &pitch, some[i] / 700 + 1, 700, 4));
		SAME();
	}
	for (int i = 0; i < N; i++) {
		OK(cuMemFree_v2(p[i]));
		SAME();
		OK(cuMemFree_v2(q[i]));
		SAME();
	}
	EQ(held(RATION_DATA), 0);
}

/* 3 MiB take 4: by the driver's count the limit is never passed. */
static void fills(void)
{
	static CUdeviceptr p[1024];
	CUresult result = CUDA_SUCCESS;
	int n = 0;
	while (result == CUDA_SUCCESS && n < 1024) {
		result = cuMemAlloc_v2(&p[n], 3 * MIB);
		n += result == CUDA_SUCCESS;
		CHECK(everybody() <= GIB);
	}
	EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(room() < 4 * MIB);
	SAME();
	while (n > 0)
		OK(cuMemFree_v2(p[--n]));
	SAME();
}

/* How the driver lays out arrays we do not know: what it takes beyond our count is charged
 * as overhead once it is read, and refuses no request once they are gone. */
static void arrays(void)
{
	enum { N = 200 };
	static CUarray a[N];
	CUDA_ARRAY_DESCRIPTOR desc = {1200, 256, CU_AD_FORMAT_FLOAT, 1};
	uint64_t before = room();
	CUdeviceptr p;
	for (int i = 0; i < N; i++)
		OK(cuArrayCreate_v2(&a[i], &desc));
	EQ(usage_of(0).total, truth(FAKEGPU_DATA) + truth(FAKEGPU_CONTEXT));
	CHECK(held(RATION_OVERHEAD) > 0);
	for (int i = 0; i < N; i++)
		OK(cuArrayDestroy(a[i]));
	OK(cuMemAlloc_v2(&p, before));
	SAME();
	OK(cuMemFree_v2(p));
}

int main(void)
{
	CUdeviceptr p;
	start();
	sizes();
	fills();
	arrays();
	EQ(cuMemAlloc_v2(&p, UINT64_MAX - 5), CUDA_ERROR_OUT_OF_MEMORY); /* rounded up it would be little */
	SAME();
	OK(cuDevicePrimaryCtxRelease_v2(0));
	return FINISH();
}
