/* Managed memory, which is charged and need not be on the device, hides nothing that is
 * measured: not beside driver overhead, and not where it comes or goes meanwhile. */
#include "../later.h"
#include "stranger.h"

#define COST (100 * MIB)
#define MODULE (100 * MIB)
#define BYTES (200 * MIB)

static const char large[] = PTX(BIG_100M);

static CUdeviceptr p;

static CUresult load(struct task *t) { return cuModuleLoadData(&t->module, large); }

/* All that is charged, with managed bytes that are not on the device. */
#define COUNTED(managed) EQ(region_used(region_here(), 0), in_use(0) + (managed))

static void read_figure(void)
{
	later();
	OK(cuCtxSynchronize());
}

/* A context, and 100 MiB that a launch loads behind our back. */
static CUlibrary start_with_overhead(void)
{
	CUlibrary l;
	CUkernel k;
	start();
	set_limit(0, 2000 * MIB);
	OK(cuLibraryLoadData(&l, large, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&k, l, "k"));
	OK(cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	read_figure();
	CHECK(held(RATION_OVERHEAD) >= MODULE - MIB);
	COUNTED(0);
	return l;
}

static void beside_overhead(void)
{
	CUmodule m;
	start_with_overhead();
	OK(cuMemAllocManaged(&p, BYTES, CU_MEM_ATTACH_GLOBAL));
	OK(cuModuleLoadData(&m, large));
	COUNTED(BYTES);
	OK(cuModuleUnload(m));
	COUNTED(BYTES);
	set_limit(0, region_used(region_here(), 0) + MODULE - MIB);
	EQ(cuModuleLoadData(&m, large), CUDA_ERROR_OUT_OF_MEMORY);
	COUNTED(BYTES);
}

/* A module that is being loaded while managed memory is allocated. */
static void comes_meanwhile(void)
{
	struct task t = {.run = load};
	CUcontext c = start();
	OK(cuCtxSynchronize());
	set_limit(0, 2000 * MIB);
	fakegpu_hold("cuModuleLoadData", 1);
	task_begin(&t, c);
	EQ(fakegpu_held("cuModuleLoadData", 1, LONG), 1);
	OK(cuMemAllocManaged(&p, BYTES, CU_MEM_ATTACH_GLOBAL));
	fakegpu_open("cuModuleLoadData");
	JOIN(&t);
	OK(t.result);
	EQ(held(RATION_MODULE), truth(FAKEGPU_MODULE));
	COUNTED(BYTES);
}

/* And while it is freed. */
static void goes_meanwhile(void)
{
	struct task t = {.run = load};
	CUcontext c = start();
	OK(cuCtxSynchronize());
	set_limit(0, 2000 * MIB);
	OK(cuMemAllocManaged(&p, BYTES, CU_MEM_ATTACH_GLOBAL));
	fakegpu_hold("cuModuleLoadData", 1);
	task_begin(&t, c);
	EQ(fakegpu_held("cuModuleLoadData", 1, LONG), 1);
	OK(cuMemFree_v2(p));
	fakegpu_open("cuModuleLoadData");
	JOIN(&t);
	OK(t.result);
	EQ(held(RATION_MODULE), truth(FAKEGPU_MODULE));
	COUNTED(0);
}

/* A heap that has come is absent no more, and does not hide that overhead goes. */
static void heap_came(void)
{
	CUmodule m;
	CUfunction f;
	CUlibrary l = start_with_overhead();
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, BYTES));
	COUNTED(BYTES);
	OK(cuModuleLoadData(&m, PTX(".extern .func (.param .b64 r) malloc(.param .b64 n);\n")));
	COUNTED(BYTES);
	read_figure();
	COUNTED(BYTES); /* it is still to come */
	OK(cuModuleGetFunction(&f, m, "k"));
	OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	COUNTED(0);
	read_figure();
	OK(cuLibraryUnload(l));
	read_figure();
	COUNTED(0);
	EQ(held(RATION_OVERHEAD), 0);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	COUNTED(0);
}

RUN_PARTS(true, {"beside overhead", beside_overhead}, {"comes meanwhile", comes_meanwhile}, {"goes meanwhile", goes_meanwhile},
	  {"heap came", heap_came})
