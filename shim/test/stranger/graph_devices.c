/* A graph that allocates on two devices: each device's part is that device's to grant or to
 * refuse, and no graph is refused for bytes of a device that it does not need. */
#include "stranger.h"

static CUgraphExec graph(uint64_t on_first, uint64_t on_second)
{
	uint64_t bytes[2] = {on_first, on_second};
	CUgraphExec e;
	CUgraph g;
	OK(cuGraphCreate(&g, 0));
	for (int d = 0; d < 2; d++) {
		CUDA_MEM_ALLOC_NODE_PARAMS params = {
			.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, d}},
			.bytesize = bytes[d],
		};
		CUgraphNode a, f;
		if (bytes[d] == 0)
			continue;
		OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &params));
		OK(cuGraphAddMemFreeNode(&f, g, &a, 1, params.dptr));
	}
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	OK(cuGraphDestroy(g));
	return e;
}

/* Contexts on both: 100 MiB of 1000 each. */
static void both(void)
{
	CUcontext c;
	start();
	OK(cuDevicePrimaryCtxRetain(&c, 1));
}

static void second_refuses(void)
{
	both();
	set_limit(0, 4000 * MIB);
	CUgraphExec e = graph(64 * MIB, 960 * MIB);
	EQ(cuGraphLaunch(e, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(1);
	BALANCED(0);
	BALANCED(1);
	set_limit(0, 1000 * MIB);
}

static void in_all_too_much(void)
{
	both();
	CUgraphExec e = graph(640 * MIB, 640 * MIB); /* each has room */
	OK(cuGraphLaunch(e, NULL));
	BALANCED(0);
	BALANCED(1);
	CUgraphExec more = graph(640 * MIB, 0);
	OK(cuGraphLaunch(more, NULL)); /* by what the first has left */
	BALANCED(0);
	BALANCED(1);
	OK(cuDeviceGraphMemTrim(0));
	OK(cuDeviceGraphMemTrim(1));
	BALANCED(0);
	BALANCED(1);
}

/* What one takes of the second device is there for no other. */
static void beside_others(void)
{
	CUcontext c;
	CUdeviceptr p;
	both();
	CUgraphExec e = graph(64 * MIB, 512 * MIB);
	OK(cuGraphLaunch(e, NULL));
	OK(cuDevicePrimaryCtxRetain(&c, 1));
	OK(cuCtxSetCurrent(c));
	OK(cuMemAlloc_v2(&p, 350 * MIB));
	BALANCED(1);
	OK(cuMemAlloc_v2(&p, 60 * MIB)); /* what the graph holds no more makes room */
	WITHIN_LIMIT(1);
	BALANCED(1);
}

RUN_PARTS(true, {"second refuses", second_refuses}, {"in all too much", in_all_too_much}, {"beside others", beside_others})
