/* Threads that meet in a pool in the middle of each other's calls: what the driver has is never more
 * than what is granted, and when all have returned, the count is the driver's. */
#include "stranger.h"

static CUmemoryPool pool;

static CUresult allocate(struct task *t) { return cuMemAllocFromPoolAsync(&t->p, t->bytes, pool, NULL); }
static CUresult trim(struct task *t) { return (void)t, cuMemPoolTrimTo(pool, 0); }
static CUresult destroy(struct task *t) { return (void)t, cuMemPoolDestroy(pool); }

static CUcontext make(uint64_t threshold)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUcontext c = start(); /* 100 MiB of 1 GiB */
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	return c;
}

/* Leaves the pool with room, of which nothing is handed out. */
static void room(uint64_t bytes, bool waits)
{
	CUdeviceptr p;
	OK(cuMemAllocFromPoolAsync(&p, bytes, pool, NULL));
	OK(cuMemFreeAsync(p, NULL));
	if (waits)
		OK(cuCtxSynchronize());
	SAME();
}

/* A request finds room in the pool, which the pool loses before the driver allocates. */
static void lost_room(void)
{
	CUcontext c = make(0);
	struct task a = {.run = allocate, .bytes = 10 * MIB};
	CUdeviceptr rest;
	room(80 * MIB, false);
	fakegpu_hold("cuMemAllocFromPoolAsync:before", 1);
	task_begin(&a, c);
	EQ(fakegpu_held("cuMemAllocFromPoolAsync:before", 1, LONG), 1);
	OK(cuCtxSynchronize());
	EQ(truth(FAKEGPU_DATA), 0);
	CHECK(held(RATION_DATA) < 80 * MIB); /* what it does not need is given back */
	OK(cuMemAlloc_v2(&rest, limit_of(0) - region_used(region_here(), 0)));
	fakegpu_open("cuMemAllocFromPoolAsync:before");
	JOIN(&a);
	OK(a.result);
	WITHIN_LIMIT(0);
	SAME();
	OK(cuMemFreeAsync(a.p, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemFree_v2(rest));
	SAME();
}

/* A thread asks how large the pool is, and comes to act on the answer after another has made it
 * as large again as it was. */
static void old_answer(void)
{
	CUcontext c = make(1ull << 40);
	struct task a = {.run = trim};
	CUdeviceptr p;
	room(10 * MIB, true);
	fakegpu_hold("poolAnswer", 1);
	task_begin(&a, c);
	EQ(fakegpu_held("poolAnswer", 1, LONG), 1);
	EQ(truth(FAKEGPU_DATA), 0);
	OK(cuMemAllocFromPoolAsync(&p, 10 * MIB, pool, NULL));
	fakegpu_open("poolAnswer");
	JOIN(&a);
	OK(a.result);
	SAME();
	EQ(held(RATION_DATA), 32 * MIB);
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemPoolTrimTo(pool, 0));
	SAME();
	EQ(held(RATION_DATA), 0);
}

/* The same, while the request that has made it grow is still under way, and what it needed that for is
 * no longer promised. */
static void freed_meanwhile(void)
{
	CUcontext c = make(1ull << 40);
	struct task a = {.run = trim}, b = {.run = allocate, .bytes = 40 * MIB};
	CUdeviceptr p;
	OK(cuMemAllocFromPoolAsync(&p, 40 * MIB, pool, NULL));
	room(40 * MIB, true);
	EQ(held(RATION_DATA), 96 * MIB);
	fakegpu_hold("poolAnswer", 1);
	task_begin(&a, c);
	EQ(fakegpu_held("poolAnswer", 1, LONG), 1);
	EQ(truth(FAKEGPU_DATA), 64 * MIB);
	fakegpu_hold("cuMemAllocFromPoolAsync", 1);
	task_begin(&b, c);
	EQ(fakegpu_held("cuMemAllocFromPoolAsync", 1, LONG), 1);
	EQ(truth(FAKEGPU_DATA), 96 * MIB);
	OK(cuMemFreeAsync(p, NULL));
	fakegpu_open("poolAnswer");
	JOIN(&a);
	OK(a.result);
	CHECK(held(RATION_DATA) >= truth(FAKEGPU_DATA));
	fakegpu_open("cuMemAllocFromPoolAsync");
	JOIN(&b);
	OK(b.result);
	SAME();
}

/* What stays charged for the sake of a request that then fails is given back by the last one. */
static void last_gives_back(void)
{
	setenv("FAKEGPU_FAIL", "cuMemAllocFromPoolAsync:3:999", 1);
	CUcontext c = make(0);
	struct task a = {.run = allocate, .bytes = 10 * MIB}, b = {.run = allocate, .bytes = 40 * MIB};
	room(60 * MIB, false);
	fakegpu_hold("cuMemAllocFromPoolAsync:before", 1);
	task_begin(&b, c);
	EQ(fakegpu_held("cuMemAllocFromPoolAsync:before", 1, LONG), 1);
	fakegpu_hold("poolAnswer", 1);
	task_begin(&a, c);
	EQ(fakegpu_held("poolAnswer", 1, LONG), 1);
	OK(cuCtxSynchronize());
	EQ(truth(FAKEGPU_DATA), 32 * MIB);
	EQ(held(RATION_DATA), 64 * MIB);
	fakegpu_open("cuMemAllocFromPoolAsync:before");
	JOIN(&b);
	EQ(b.result, 999);
	fakegpu_open("poolAnswer");
	JOIN(&a);
	OK(a.result);
	SAME();
}

/* Two requests make the pool grow at once: each is charged for its own, and what both see is
 * charged once. */
static void both_grow(void)
{
	CUcontext c = make(0);
	struct task a = {.run = allocate, .bytes = 400 * MIB}, b = a;
	fakegpu_hold("cuMemAllocFromPoolAsync", 2);
	task_begin(&a, c);
	task_begin(&b, c);
	EQ(fakegpu_held("cuMemAllocFromPoolAsync", 2, LONG), 2);
	CHECK(held(RATION_DATA) >= truth(FAKEGPU_DATA));
	fakegpu_open("cuMemAllocFromPoolAsync");
	JOIN(&a);
	JOIN(&b);
	OK(a.result);
	OK(b.result);
	SAME();
	OK(cuMemFreeAsync(a.p, NULL));
	OK(cuMemFreeAsync(b.p, NULL));
	OK(cuCtxSynchronize());
	SAME();
}

/* A request makes the pool grow beyond the limit by an amount that could not be foreseen. Another
 * thread sees this before the request does. The request is still refused. */
static void seen_before(void)
{
	enum { PIECE = 40 * MIB };
	CUcontext c = make(1ull << 40);
	struct task a = {.run = allocate, .bytes = PIECE + 8 * MIB};
	uint64_t threshold = 1ull << 40;
	CUdeviceptr p = 0, rest;
	while (cuMemAllocFromPoolAsync(&rest, PIECE, pool, NULL) == CUDA_SUCCESS)
		p = rest;
	OK(cuMemAlloc_v2(&rest, limit_of(0) - region_used(region_here(), 0) - 8 * MIB));
	OK(cuMemFreeAsync(p, NULL)); /* it has its size again, but nothing larger: FAKEGPU_LAZY */
	fakegpu_hold("cuMemAllocFromPoolAsync", 1);
	task_begin(&a, c);
	EQ(fakegpu_held("cuMemAllocFromPoolAsync", 1, LONG), 1);
	CHECK(truth(FAKEGPU_DATA) > held(RATION_DATA));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	fakegpu_open("cuMemAllocFromPoolAsync");
	JOIN(&a);
	EQ(a.result, CUDA_ERROR_OUT_OF_MEMORY);
	SAME();
	OK(cuCtxSynchronize());
	SAME();
	WITHIN_LIMIT(0);
}

/* A pool is not destroyed while another thread asks about it. */
static void asked_about(void)
{
	CUcontext c = make(1ull << 40);
	struct task a = {.run = trim}, b = {.run = destroy};
	room(10 * MIB, true);
	unsigned errors = fakegpu_errors();
	fakegpu_hold("poolAnswer", 1);
	task_begin(&a, c);
	EQ(fakegpu_held("poolAnswer", 1, LONG), 1);
	room(10 * MIB, false); /* so that it asks again */
	task_begin(&b, c);
	CHECK(!task_returned(&b, SOON));
	fakegpu_open("poolAnswer");
	JOIN(&a);
	JOIN(&b);
	OK(a.result);
	OK(b.result);
	EQ(fakegpu_errors(), errors);
	OK(cuCtxSynchronize());
	SAME();
	EQ(held(RATION_DATA), 0);
}

RUN_PARTS(true, {"lost room", lost_room}, {"old answer", old_answer}, {"freed meanwhile", freed_meanwhile},
	  {"last gives back", last_gives_back}, {"both grow", both_grow}, {"seen before", seen_before}, {"asked about", asked_about})
