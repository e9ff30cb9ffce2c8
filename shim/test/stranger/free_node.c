/* An executable that frees when it is launched again needs its memory anew once another graph's node
 * has freed it, and not for other graphs' sake. */
#include "stranger.h"

enum { AUTO_FREE_ON_LAUNCH = 1 };

/* A graph that allocates, frees that again if inside, and frees another one's address. */
static CUgraphExec graph(uint64_t bytes, bool inside, CUdeviceptr frees, CUdeviceptr *out, int flags)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
		.bytesize = bytes,
	};
	CUgraphNode a;
	CUgraphExec e;
	CUgraph g;
	OK(cuGraphCreate(&g, 0));
	if (bytes > 0)
		OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &params));
	if (inside)
		OK(cuGraphAddMemFreeNode(&a, g, NULL, 0, params.dptr));
	if (frees)
		OK(cuGraphAddMemFreeNode(&a, g, NULL, 0, frees));
	OK(cuGraphInstantiateWithFlags(&e, g, flags));
	OK(cuGraphDestroy(g));
	if (out)
		*out = params.dptr;
	return e;
}

static CUresult launch(struct task *t) { return cuGraphLaunch(t->exec, NULL); }
static CUresult release(struct task *t) { return cuMemFreeAsync(t->p, NULL); }

/* 100 MiB of 1000 are the context's, and 320 each graph's. */
static void freed_by_node(void)
{
	CUdeviceptr pa, pc, q;
	start();
	CUgraphExec a = graph(300 * MIB, false, 0, &pa, AUTO_FREE_ON_LAUNCH), c = graph(300 * MIB, false, 0, &pc, AUTO_FREE_ON_LAUNCH);
	OK(cuGraphLaunch(a, NULL));
	OK(cuGraphLaunch(graph(0, false, pa, NULL, 0), NULL));
	OK(cuGraphLaunch(c, NULL));
	OK(cuMemAlloc_v2(&q, 500 * MIB));
	EQ(cuGraphLaunch(a, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(0);
	BALANCED(0);
	OK(cuMemFree_v2(q));
	OK(cuGraphLaunch(a, NULL));
	BALANCED(0);
}

/* A graph that frees what it has allocated itself takes nothing from another. */
static void freed_inside(void)
{
	CUdeviceptr pa, q;
	start();
	CUgraphExec a = graph(300 * MIB, false, 0, &pa, AUTO_FREE_ON_LAUNCH), b = graph(60 * MIB, true, 0, NULL, 0);
	OK(cuGraphLaunch(a, NULL));
	OK(cuGraphLaunch(b, NULL));
	OK(cuMemAlloc_v2(&q, 500 * MIB));
	OK(cuGraphLaunch(a, NULL)); /* 984 of 1000: it has what it needs */
	BALANCED(0);
	WITHIN_LIMIT(0);
}

/* A free that has come to pass in the driver, and is not back yet. */
static void freed_meanwhile(bool by_node)
{
	CUdeviceptr pa, pc, q;
	CUcontext current = start();
	CUgraphExec a = graph(300 * MIB, false, 0, &pa, AUTO_FREE_ON_LAUNCH), c = graph(300 * MIB, false, 0, &pc, AUTO_FREE_ON_LAUNCH);
	OK(cuGraphLaunch(a, NULL));
	struct task t = {.run = by_node ? launch : release, .exec = graph(0, false, pa, NULL, 0), .p = pa};
	const char *call = by_node ? "cuGraphLaunch" : "cuMemFreeAsync";
	fakegpu_hold(call, 1);
	task_begin(&t, current);
	EQ(fakegpu_held(call, 1, LONG), 1);
	OK(cuGraphLaunch(c, NULL));
	OK(cuMemAlloc_v2(&q, 500 * MIB));
	EQ(cuGraphLaunch(a, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(0);
	fakegpu_open(call);
	JOIN(&t);
	OK(t.result);
	BALANCED(0);
}

/* One that comes to pass while the executable is launched. */
static void freed_later(bool by_node)
{
	CUdeviceptr pa, pc, q;
	CUcontext current = start();
	CUgraphExec a = graph(300 * MIB, false, 0, &pa, AUTO_FREE_ON_LAUNCH), c = graph(300 * MIB, false, 0, &pc, AUTO_FREE_ON_LAUNCH);
	OK(cuGraphLaunch(a, NULL));
	struct task t = {.run = by_node ? launch : release, .exec = graph(0, false, pa, NULL, 0), .p = pa};
	const char *call = by_node ? "cuGraphLaunch:before" : "cuMemFreeAsync:before";
	fakegpu_hold(call, 1);
	task_begin(&t, current);
	EQ(fakegpu_held(call, 1, LONG), 1);
	OK(cuGraphLaunch(a, NULL));
	fakegpu_open(call);
	JOIN(&t);
	OK(t.result);
	OK(cuGraphLaunch(c, NULL));
	OK(cuMemAlloc_v2(&q, 500 * MIB));
	EQ(cuGraphLaunch(a, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(0);
	BALANCED(0);
}

static void node_meanwhile(void) { freed_meanwhile(true); }
static void call_meanwhile(void) { freed_meanwhile(false); }
static void node_later(void) { freed_later(true); }
static void call_later(void) { freed_later(false); }

RUN_PARTS(true, {"node", freed_by_node}, {"inside", freed_inside}, {"node meanwhile", node_meanwhile}, {"call meanwhile", call_meanwhile},
	  {"node later", node_later}, {"call later", call_later})
