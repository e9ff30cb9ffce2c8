/* Memory that a node of a graph allocates at launch. One graph frees what it allocates,
 * and the driver keeps it reserved; the others leave it allocated, and another graph frees
 * it. */
#include "allocpaths.h"

static struct {
	CUgraph graph;
	CUgraphExec exec;
	CUdeviceptr at;
} pieces[PIECES];

static size_t count;
static CUstream stream;

static void graph_begin(void) { MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING); }
static void graph_end(void) { MUST(cuStreamDestroy_v2, stream); }

static uint64_t graph_data(void)
{
	uint64_t reserved = 0;
	CAN(cuDeviceGetGraphMemAttribute, device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved);
	return reserved;
}

static bool graph_add_allocation(CUgraph g, CUgraphNode *node, const CUgraphNode *after, CUdeviceptr *at)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}},
		.bytesize = piece,
	};
	if (!HAD(cuGraphAddMemAllocNode, node, g, after, after ? 1 : 0, &params))
		return false;
	*at = params.dptr;
	return true;
}

/* graph_run instantiates a graph and launches it. Either may be refused. */
static bool graph_run(CUgraph g, CUgraphExec *exec)
{
	if (!HAD(cuGraphInstantiateWithFlags, exec, g, 0))
		return false;
	if (HAD(cuGraphLaunch, *exec, stream)) {
		MUST(cuStreamSynchronize, stream);
		return true;
	}
	MUST(cuGraphExecDestroy, *exec);
	return false;
}

/* graph_before launches a graph that makes several allocations and then frees them. */
static void graph_before(void)
{
	CUgraph g;
	CUgraphExec exec;
	CUgraphNode nodes[FIRST], freed;
	CUdeviceptr at[FIRST];
	MUST(cuGraphCreate, &g, 0);
	for (int i = 0; i < FIRST; i++)
		if (!graph_add_allocation(g, &nodes[i], i ? &nodes[i - 1] : NULL, &at[i]))
			allocpath_refused("the first graph");
	for (int i = 0; i < FIRST; i++)
		MUST(cuGraphAddMemFreeNode, &freed, g, &nodes[FIRST - 1], 1, at[i]);
	if (!graph_run(g, &exec))
		allocpath_refused("the first graph");
	step("launched data=%llu", (unsigned long long)graph_data());
	MUST(cuDeviceGraphMemTrim, device);
	step("trimmed data=%llu", (unsigned long long)graph_data());
	MUST(cuGraphExecDestroy, exec);
	MUST(cuGraphDestroy, g);
}

static bool graph_take(void)
{
	CUgraphNode node;
	MUST(cuGraphCreate, &pieces[count].graph, 0);
	if (!graph_add_allocation(pieces[count].graph, &node, NULL, &pieces[count].at) ||
	    !graph_run(pieces[count].graph, &pieces[count].exec)) {
		MUST(cuGraphDestroy, pieces[count].graph);
		return false;
	}
	driver_use(pieces[count++].at, piece);
	return true;
}

static void graph_give_back(void)
{
	CUgraph g;
	CUgraphExec exec;
	CUgraphNode node;
	MUST(cuGraphCreate, &g, 0);
	for (size_t i = 0; i < count; i++)
		MUST(cuGraphAddMemFreeNode, &node, g, NULL, 0, pieces[i].at);
	if (!graph_run(g, &exec))
		allocpath_refused("a graph that only frees");
	MUST(cuGraphExecDestroy, exec);
	MUST(cuGraphDestroy, g);
	for (; count > 0; count--) {
		MUST(cuGraphExecDestroy, pieces[count - 1].exec);
		MUST(cuGraphDestroy, pieces[count - 1].graph);
	}
	MUST(cuDeviceGraphMemTrim, device);
}

const struct allocpath graph = {.name = "graph",
				.begin = graph_begin,
				.take = graph_take,
				.data = graph_data,
				.give_back = graph_give_back,
				.end = graph_end,
				.before = graph_before};
