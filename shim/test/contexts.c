/* Contexts and modules, by the driver's own count; and what ends with them. */
#include "held.h"

CUresult cuCtxCreate(CUcontext *, unsigned, CUdevice);
CUresult cuCtxCreate_v3(CUcontext *, void *, int, unsigned, CUdevice);

static const char ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n";

static void made_and_ended(void)
{
	CUcontext c[4];
	OK(cuCtxCreate(&c[0], 0, 0));
	SAME();
	OK(cuCtxCreate_v2(&c[1], 0, 0));
	OK(cuCtxCreate_v3(&c[2], NULL, 0, 0, 0));
	OK(cuCtxCreate_v4(&c[3], NULL, 0, 0));
	SAME();
	for (int i = 4; i-- > 0;) {
		OK(cuCtxDestroy_v2(c[i]));
		SAME();
	}
	EQ(held(RATION_CONTEXT), 0);
}

static void counted(void)
{
	CUcontext c, d;
	OK(cuDevicePrimaryCtxRetain(&c, 0));
	uint64_t cost = held(RATION_CONTEXT);
	OK(cuDevicePrimaryCtxRetain(&d, 0));
	CHECK(c == d);
	EQ(held(RATION_CONTEXT), cost);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	EQ(held(RATION_CONTEXT), cost);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	EQ(held(RATION_CONTEXT), 0);
	CHECK(cuDevicePrimaryCtxRelease_v2(0) != CUDA_SUCCESS);
	SAME();
}

/* All that is left in a context goes with it. */
static void taken_along(void)
{
	CUDA_ARRAY_DESCRIPTOR desc = {512, 512, CU_AD_FORMAT_FLOAT, 4};
	CUdeviceptr p, q, r;
	CUmodule m;
	CUarray a;
	CUcontext c;
	for (int reset = 0; reset < 2; reset++) {
		start();
		OK(cuMemAlloc_v2(&p, 10 * MIB));
		OK(cuMemAlloc_v2(&q, 20 * MIB));
		OK(cuMemAllocAsync(&r, 3 * MIB, NULL));
		OK(cuArrayCreate_v2(&a, &desc));
		OK(cuModuleLoadData(&m, ptx));
		SAME();
		CHECK(held(RATION_MODULE) > 0);
		OK(reset ? cuDevicePrimaryCtxReset_v2(0) : cuDevicePrimaryCtxRelease_v2(0));
		SAME();
		EQ(usage_of(0).total, 0);
		if (reset) /* which leaves the references as they were */
			OK(cuDevicePrimaryCtxRelease_v2(0));
	}
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(cuMemAlloc_v2(&p, 10 * MIB));
	OK(cuCtxDestroy_v2(c));
	SAME();
}

static void modules(void)
{
	CUmodule m[3];
	CUlibrary l;
	start();
	for (int i = 0; i < 3; i++) {
		OK(cuModuleLoadData(&m[i], ptx));
		SAME();
	}
	for (int i = 0; i < 3; i++) {
		OK(cuModuleUnload(m[i]));
		SAME();
	}
	OK(cuLibraryLoadData(&l, ptx, NULL, NULL, 0, NULL, NULL, 0));
	SAME();
	OK(cuLibraryGetModule(&m[0], l));
	SAME();
	OK(cuLibraryGetModule(&m[1], l));
	SAME();
	CHECK(held(RATION_MODULE) > 0);
	OK(cuLibraryUnload(l));
	SAME();
	CHECK(cuModuleLoadData(&m[0], "rubbish") != CUDA_SUCCESS);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	SAME();
}

static void green(void)
{
	CUdevResourceDesc desc;
	CUdevResource all;
	CUgreenCtx g;
	CUcontext c;
	OK(cuDeviceGetDevResource(0, &all, 1));
	OK(cuDevResourceGenerateDesc(&desc, &all, 1));
	OK(cuGreenCtxCreate(&g, desc, 0, 1));
	SAME();
	CHECK(held(RATION_CONTEXT) > 0);
	/* The primary context is kept by either. */
	OK(cuDevicePrimaryCtxRetain(&c, 0));
	SAME();
	OK(cuGreenCtxDestroy(g));
	SAME();
	OK(cuDevicePrimaryCtxRelease_v2(0));
	SAME();
	EQ(held(RATION_CONTEXT), 0);
}

/* What the driver counts beyond our count is charged by force, and returned. */
static void overhead(void)
{
	CUlibrary l;
	CUkernel k;
	CUfunction f;
	CUmodule m;
	start();
	OK(cuLibraryLoadData(&l, ptx, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&k, l, "k"));
	OK(cuKernelGetFunction(&f, k)); /* loads it */
	EQ(held(RATION_MODULE), mine() - held(RATION_CONTEXT));
	OK(cuModuleLoadData(&m, ptx));
	EQ(usage_of(0).total, mine());
	EQ(held(RATION_OVERHEAD), 0);
	OK(cuLibraryUnload(l));
	EQ(usage_of(0).total, mine());
	OK(cuModuleUnload(m));
	SAME();
	OK(cuDevicePrimaryCtxRelease_v2(0));
}

int main(void)
{
	OK(cuInit(0));
	made_and_ended();
	counted();
	taken_along();
	modules();
	green();
	overhead();
	return FINISH();
}
