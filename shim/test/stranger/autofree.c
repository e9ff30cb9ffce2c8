/* Graphs that free what they hold when they are launched again: in turns, each needs no
 * more than it has. */
#include "stranger.h"

static CUdeviceptr address[2];

static CUgraphExec graph(uint64_t bytes, CUdeviceptr *p)
{
	enum { AUTO_FREE_ON_LAUNCH = 1 };
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
		.bytesize = bytes,
	};
	CUgraphNode a;
	CUgraphExec e;
	CUgraph g;
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &params));
	OK(cuGraphInstantiateWithFlags(&e, g, AUTO_FREE_ON_LAUNCH));
	OK(cuGraphDestroy(g));
	*p = params.dptr;
	return e;
}

/* 100 MiB for the context and 256 for each: 612 of 1000; then 384 each, and 868. */
static void in_turns(uint64_t bytes)
{
	start();
	CUgraphExec e[2] = {graph(bytes, &address[0]), graph(bytes, &address[1])};
	for (int i = 0; i < 6; i++) {
		OK(cuGraphLaunch(e[i % 2], NULL));
		BALANCED(0);
		WITHIN_LIMIT(0);
	}
	for (int i = 0; i < 2; i++) {
		OK(cuMemFreeAsync(address[i], NULL));
		OK(cuGraphExecDestroy(e[i]));
	}
	OK(cuDeviceGraphMemTrim(0));
	SAME();
}

static void half(void) { in_turns(256 * MIB); }
static void most(void) { in_turns(384 * MIB); }

/* A third for which there is no room is refused, and the others go on. */
static void no_room(void)
{
	CUdeviceptr third;
	start();
	CUgraphExec e[2] = {graph(384 * MIB, &address[0]), graph(384 * MIB, &address[1])}, f = graph(160 * MIB, &third);
	for (int i = 0; i < 4; i++) {
		OK(cuGraphLaunch(e[i % 2], NULL));
		if (i > 0)
			EQ(cuGraphLaunch(f, NULL), CUDA_ERROR_OUT_OF_MEMORY);
		BALANCED(0);
		WITHIN_LIMIT(0);
	}
}

/* One whose memory the program has freed, and another graph has now, needs as much again. */
static void freed(void)
{
	CUdeviceptr third, p;
	start();
	CUgraphExec e[2] = {graph(256 * MIB, &address[0]), graph(256 * MIB, &address[1])}, f = graph(256 * MIB, &third);
	OK(cuGraphLaunch(e[0], NULL));
	OK(cuGraphLaunch(e[1], NULL));
	OK(cuMemFreeAsync(address[0], NULL));
	OK(cuGraphLaunch(f, NULL));
	BALANCED(0);
	OK(cuMemAlloc_v2(&p, 200 * MIB)); /* 812 of 1000 */
	EQ(cuGraphLaunch(e[0], NULL), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree_v2(p));
	OK(cuGraphLaunch(e[0], NULL));
	BALANCED(0);
	WITHIN_LIMIT(0);
}

RUN_PARTS(true, {"half", half}, {"most", most}, {"no room", no_room}, {"freed", freed})
