/* Linear memory: what we count is what the driver has, after every step. */
#include "held.h"

CUresult cuMemAllocPitch(CUdeviceptr_v1 *, unsigned *, unsigned, unsigned, unsigned);

static void plain(void)
{
	static const size_t sizes[] = {1, 511, 512, 513, 4096, MIB, 3 * MIB + 7, 64 * MIB};
	enum { N = sizeof sizes / sizeof *sizes };
	CUdeviceptr p[N];
	for (int i = 0; i < N; i++) {
		OK(cuMemAlloc_v2(&p[i], sizes[i]));
		SAME();
	}
	for (int i = N; i-- > 0;) {
		OK(i % 2 ? cuMemFree_v2(p[i]) : cuMemFree_v2(p[i]));
		SAME();
	}
}

/* What the driver has no room for is not counted: there is no limit here, and 8 GiB. */
static void refused_by_the_driver(void)
{
	CUdeviceptr p;
	EQ(cuMemAlloc_v2(&p, 9 * 1024 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	SAME();
}

static void old_names(void)
{
	CUdeviceptr_v1 p, q;
	unsigned pitch;
	OK(cuMemAlloc(&p, 1000));
	SAME();
	OK(cuMemAllocPitch(&q, &pitch, 100, 30, 4));
	SAME();
	OK(cuMemFree(p));
	OK(cuMemFree(q));
	SAME();
}

static void pitched(void)
{
	CUdeviceptr p;
	size_t pitch;
	uint64_t before = held(RATION_DATA);
	OK(cuMemAllocPitch_v2(&p, &pitch, 1001, 77, 16));
	EQ(held(RATION_DATA) - before, pitch * 77);
	SAME();
	OK(cuMemFree_v2(p));
	SAME();
}

/* Charged in full although the device has none of it yet. */
static void managed(void)
{
	CUdeviceptr p;
	uint64_t before = held(RATION_DATA);
	OK(cuMemAllocManaged(&p, 8 * MIB, CU_MEM_ATTACH_GLOBAL));
	EQ(held(RATION_DATA) - before, 8 * MIB);
	OK(cuMemFree_v2(p));
	SAME();
}

/* What the driver refuses is given back, and what we never saw reaches it. */
static void mistakes(void)
{
	CUdeviceptr p;
	unsigned errors = fakegpu_errors();
	EQ(cuMemAlloc_v2(NULL, 100), CUDA_ERROR_INVALID_VALUE);
	EQ(cuMemAlloc_v2(&p, 0), CUDA_ERROR_INVALID_VALUE);
	SAME();
	OK(cuMemAlloc_v2(&p, 100));
	EQ(cuMemFree_v2(p + 8), CUDA_ERROR_INVALID_VALUE);
	SAME();
	OK(cuMemFree_v2(p));
	EQ(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	EQ(cuMemFree_v2(0x1234), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree_v2(0));
	EQ(fakegpu_errors() - errors, 3);
	SAME();
}

static void host(void)
{
	void *p;
	OK(cuMemHostAlloc(&p, 8 * MIB, 0));
	SAME();
	OK(cuMemFreeHost(p));
	SAME();
}

static void many(void)
{
	enum { N = 5000 };
	static CUdeviceptr p[N];
	for (int i = 0; i < N; i++)
		OK(cuMemAlloc_v2(&p[i], (size_t)(i % 7 + 1) * 512));
	SAME();
	for (int i = 0; i < N; i += 2)
		OK(cuMemFree_v2(p[i]));
	SAME();
	for (int i = 1; i < N; i += 2)
		OK(cuMemFree_v2(p[i]));
	SAME();
}

int main(void)
{
	start();
	SAME();
	CHECK(held(RATION_CONTEXT) > 0);
	plain();
	refused_by_the_driver();
	old_names();
	pitched();
	managed();
	mistakes();
	host();
	many();
	OK(cuDevicePrimaryCtxRelease_v2(0));
	SAME();
	EQ(held(RATION_CONTEXT), 0);
	return FINISH();
}
