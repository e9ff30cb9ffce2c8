/* What is measured while another thread's bytes are on their way is charged the most that
 * it can be. The next reading returns what was too much, and whatever ends the thing then
 * returns the rest, once. */
#include "../later.h"
#include "stranger.h"

#define COST (100 * MIB)
#define BYTES (300 * MIB)

static const char large[] = PTX(BIG_100M);

static CUresult allocate(struct task *t) { return cuMemAlloc_v2(&t->p, BYTES); }

/* Another thread is inside cuMemAlloc, with its memory taken. */
static struct task other = {.run = allocate};

static CUcontext begin(void)
{
	CUcontext c = start();
	OK(cuCtxSynchronize()); /* the driver's figure is known from here on */
	set_limit(0, 2000 * MIB);
	fakegpu_hold("cuMemAlloc", 1);
	task_begin(&other, c);
	EQ(fakegpu_held("cuMemAlloc", 1, LONG), 1);
	return c;
}

static void read_figure(void)
{
	later();
	OK(cuCtxSynchronize());
}

/* It returns, and a reading is exact again. */
static void end(void)
{
	CHECK(region_used(region_here(), 0) >= in_use(0));
	fakegpu_open("cuMemAlloc");
	JOIN(&other);
	OK(other.result);
	read_figure();
	SAME();
}

static void module(void)
{
	CUmodule m;
	begin();
	OK(cuModuleLoadData(&m, large));
	EQ(held(RATION_MODULE), truth(FAKEGPU_MODULE) + BYTES);
	end();
	OK(cuModuleUnload(m));
	SAME();
}

/* Corrected, and then swept with its context. */
static void swept(void)
{
	CUcontext c, popped;
	CUmodule m;
	CUlibrary l;
	CUdeviceptr p;
	size_t size;
	begin();
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(cuLibraryLoadData(&l, large, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuModuleLoadData(&m, large));
	OK(cuLibraryGetGlobal(&p, &size, l, "big"));
	OK(cuCtxPopCurrent_v2(&popped));
	end();
	OK(cuCtxDestroy_v2(c));
	SAME();
	OK(cuLibraryUnload(l));
	SAME();
}

/* The context that ends is not the one that was corrected. */
static void another(void)
{
	CUcontext before, c, popped;
	start();
	set_limit(0, 2000 * MIB);
	OK(cuCtxCreate_v2(&before, 0, 0));
	OK(cuCtxPopCurrent_v2(&popped));
	begin();
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(cuCtxPopCurrent_v2(&popped));
	end();
	OK(cuCtxDestroy_v2(before));
	SAME();
	OK(cuCtxDestroy_v2(c));
	SAME();
}

static void unloaded(void)
{
	CUlibrary l;
	CUdeviceptr p;
	size_t size;
	begin();
	OK(cuLibraryLoadData(&l, large, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetGlobal(&p, &size, l, "big"));
	end();
	OK(cuLibraryUnload(l));
	SAME();
}

static void stack(void)
{
	begin();
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
	end();
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
	SAME();
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
	SAME();
	OK(cuMemFree_v2(other.p));
	OK(cuDevicePrimaryCtxReset_v2(0));
	SAME();
}

/* A driver that fails to end it changes nothing. */
static void not_ended(void)
{
	CUmodule m;
	CUlibrary l;
	CUdeviceptr p;
	size_t size;
	if (getenv("FAKEGPU_FAIL") == NULL) {
		EQ(AGAIN("not ended", "FAKEGPU_FAIL", "cuModuleUnload:1:999,cuLibraryUnload:1:999"), 0);
		return;
	}
	begin();
	OK(cuModuleLoadData(&m, large));
	OK(cuLibraryLoadData(&l, large, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetGlobal(&p, &size, l, "big"));
	end();
	EQ(cuModuleUnload(m), 999);
	EQ(cuLibraryUnload(l), 999);
	SAME();
	read_figure();
	SAME();
	OK(cuModuleUnload(m));
	OK(cuLibraryUnload(l));
	SAME();
}

RUN_PARTS(true, {"module", module}, {"swept", swept}, {"another", another}, {"unloaded", unloaded}, {"stack", stack},
	  {"not ended", not_ended})
