/* A graph that frees before it allocates again needs the memory once: it is charged for what the
 * driver reserves, not for the sum. */
#include "stranger.h"

enum { STEPS = 3 };

/* A graph of allocations, each of which is freed; in a chain, before the next one is made. The
 * last one is not freed if it is to outlive the graph. */
static CUgraphExec graph(const uint64_t sizes[STEPS], bool chain, CUdeviceptr *last)
{
	CUgraphNode node, before = NULL;
	CUgraphExec e;
	CUgraph g;
	OK(cuGraphCreate(&g, 0));
	for (int i = 0; i < STEPS; i++) {
		CUDA_MEM_ALLOC_NODE_PARAMS params = {
			.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
			.bytesize = sizes[i],
		};
		OK(cuGraphAddMemAllocNode(&node, g, &before, chain && before ? 1 : 0, &params));
		if (last && i == STEPS - 1)
			*last = params.dptr;
		else
			OK(cuGraphAddMemFreeNode(&before, g, &node, 1, params.dptr));
	}
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	OK(cuGraphDestroy(g));
	return e;
}

/* The sizes are whole chunks; 96 MiB of the last two fit into what the first one frees. */
static const uint64_t sizes[STEPS] = {96 * MIB, 64 * MIB, 96 * MIB};

static void launches(void)
{
	CUdeviceptr last;
	start();
	OK(cuCtxSynchronize());
	set_limit(0, in_use(0) + 160 * MIB);
	CUgraphExec chain = graph(sizes, true, NULL), apart = graph(sizes, false, NULL), outlives = graph(sizes, true, &last);
	for (int i = 0; i < 2; i++) {
		OK(cuGraphLaunch(chain, NULL));
		WITHIN_LIMIT(0);
		BALANCED(0);
		EQ(cuGraphLaunch(apart, NULL), CUDA_ERROR_OUT_OF_MEMORY);
		BALANCED(0);
		OK(cuGraphLaunch(outlives, NULL));
		BALANCED(0);
		EQ(cuGraphLaunch(chain, NULL), CUDA_ERROR_OUT_OF_MEMORY);
		OK(cuMemFree_v2(last));
	}
	OK(cuGraphExecDestroy(chain));
	OK(cuGraphExecDestroy(apart));
	OK(cuGraphExecDestroy(outlives));
	OK(cuDeviceGraphMemTrim(0));
	BALANCED(0);
}

RUN_PARTS(true, {"launches", launches})
