/* A context whose cost the job remembered, confirmed by the driver's count while threads
 * are inside an allocation: what they have been charged and the driver has not given yet is
 * no reason to give back part of the context, or to remember a smaller cost for others. */
#include "../later.h"
#include "stranger.h"

#define COST (100 * MIB)

static CUresult allocate(struct task *t) { return cuMemAlloc_v2(&t->p, t->bytes); }

static void in_flight(void)
{
	struct task t = {.run = allocate, .bytes = 300 * MIB};
	CUdeviceptr p;
	CUcontext c = start();
	set_limit(0, 1000 * MIB);
	EQ(remembered_cost(), COST);
	fakegpu_hold("cuMemAlloc:before", 1);
	task_begin(&t, c);
	EQ(fakegpu_held("cuMemAlloc:before", 1, LONG), 1);
	for (int i = 0; i < 4; i++) { /* a second apart each */
		later();
		OK(cuCtxSynchronize());
	}
	fakegpu_open("cuMemAlloc:before");
	JOIN(&t);
	OK(t.result);
	SAME();
	EQ(remembered_cost(), COST);
	set_limit(0, region_used(region_here(), 0) + 50 * MIB);
	EQ(cuMemAlloc_v2(&p, 60 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(0);
}

/* The same with a pool that is about to grow, and with physical memory. */
static CUresult allocate_async(struct task *t) { return cuMemAllocAsync(&t->p, t->bytes, NULL); }

static CUresult create(struct task *t)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle h;
	return cuMemCreate(&h, t->bytes, &prop, 0);
}

static void others_in_flight(const char *call, CUresult (*run)(struct task *))
{
	struct task t = {.run = run, .bytes = 50 * MIB};
	CUcontext c = start();
	set_limit(0, 1000 * MIB);
	EQ(remembered_cost(), COST);
	fakegpu_hold(call, 1);
	task_begin(&t, c);
	EQ(fakegpu_held(call, 1, LONG), 1);
	for (int i = 0; i < 4; i++) {
		later();
		OK(cuCtxSynchronize());
	}
	fakegpu_open(call);
	JOIN(&t);
	OK(t.result);
	SAME();
	EQ(remembered_cost(), COST);
}

static void pool(void) { others_in_flight("cuMemAllocFromPoolAsync:before", allocate_async); }
static void physical(void) { others_in_flight("cuMemCreate:before", create); }

/* A module that was measured beside another one is charged for both. Unloading the other one
 * shows that the module was overcharged, and not the context. */
static CUresult load(struct task *t) { return cuModuleLoadData(&t->module, PTX(BIG_100M)); }

static void module(void)
{
	struct task t = {.run = load};
	CUmodule m;
	CUcontext c = start();
	set_limit(0, 1000 * MIB);
	fakegpu_hold("cuModuleLoadData", 1);
	task_begin(&t, c);
	EQ(fakegpu_held("cuModuleLoadData", 1, LONG), 1);
	OK(cuModuleLoadData(&m, PTX(BIG_100M)));
	fakegpu_open("cuModuleLoadData");
	JOIN(&t);
	OK(t.result);
	OK(cuModuleUnload(t.module));
	later();
	OK(cuCtxSynchronize());
	EQ(held(RATION_CONTEXT), COST);
	EQ(held(RATION_MODULE), 100 * MIB);
	EQ(remembered_cost(), COST);
	SAME();
}

/* A module that was measured beside an allocation is charged for both, before any reading has confirmed
 * the context. */
static void beside_allocation(void)
{
	struct task t = {.run = allocate, .bytes = 300 * MIB};
	CUmodule m;
	CUcontext c = start();
	set_limit(0, 1000 * MIB);
	fakegpu_hold("cuMemAlloc", 1);
	task_begin(&t, c);
	EQ(fakegpu_held("cuMemAlloc", 1, LONG), 1);
	OK(cuModuleLoadData(&m, PTX(BIG_100M)));
	EQ(held(RATION_MODULE), 400 * MIB);
	fakegpu_open("cuMemAlloc");
	JOIN(&t);
	OK(t.result);
	later();
	OK(cuCtxSynchronize());
	EQ(held(RATION_CONTEXT), COST);
	EQ(remembered_cost(), COST);
	SAME();
}

RUN_PARTS(true, {"beside allocation", beside_allocation}, {"module", module}, {"in flight", in_flight}, {"pool", pool},
	  {"physical", physical})
