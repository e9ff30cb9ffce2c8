/* Memory of graphs, with the numbers of an H200. */
#include "check.h"

static uint64_t attribute(CUgraphMem_attribute a)
{
	uint64_t n = ~0ull;
	OK(cuDeviceGetGraphMemAttribute(0, a, &n));
	return n;
}

#define RESERVED attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)

static CUDA_MEM_ALLOC_NODE_PARAMS params(size_t bytes)
{
	return (CUDA_MEM_ALLOC_NODE_PARAMS){
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = bytes};
}

static void freed_inside(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = params(10 * MIB);
	uint64_t before = mine();
	CUgraphNode a, f;
	CUgraphExec e;
	CUgraph g;
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &p));
	CHECK(p.dptr != 0);
	OK(cuGraphAddMemFreeNode(&f, g, &a, 1, p.dptr));
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	EQ(mine(), before);
	EQ(RESERVED, 0);
	OK(cuGraphLaunch(e, NULL));
	EQ(RESERVED, 32 * MIB);
	EQ(mine() - before, 32 * MIB);
	OK(cuGraphLaunch(e, NULL));
	EQ(RESERVED, 32 * MIB);
	OK(cuGraphExecDestroy(e));
	OK(cuGraphDestroy(g));
	EQ(RESERVED, 32 * MIB);
	OK(cuDeviceGraphMemTrim(0));
	EQ(RESERVED, 0);
	EQ(mine(), before);
	EQ(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), 32 * MIB);
}

static void freed_outside(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = params(10 * MIB);
	uint64_t before = mine();
	CUgraphNode a;
	CUgraphExec e;
	CUgraph g;
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &p));
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	EQ(cuMemFree_v2(p.dptr), CUDA_ERROR_INVALID_VALUE); /* not launched yet */
	OK(cuGraphLaunch(e, NULL));
	EQ(cuGraphLaunch(e, NULL), CUDA_ERROR_INVALID_VALUE); /* still held */
	OK(cuDeviceGraphMemTrim(0));
	EQ(mine() - before, 32 * MIB);
	OK(cuMemFreeAsync(p.dptr, NULL));
	OK(cuGraphLaunch(e, NULL));
	OK(cuMemFree_v2(p.dptr));
	OK(cuDeviceGraphMemTrim(0));
	EQ(mine(), before);
	OK(cuGraphDestroy(g)); /* the executable keeps what it needs */
	OK(cuGraphLaunch(e, NULL));
	OK(cuGraphExecDestroy(e));
	OK(cuDeviceGraphMemTrim(0));
	EQ(mine() - before, 32 * MIB); /* an allocation that was not freed outlives both */
	OK(cuMemFree_v2(p.dptr));
	OK(cuDeviceGraphMemTrim(0));
	EQ(mine(), before);
	EQ(cuMemFree_v2(p.dptr), CUDA_ERROR_INVALID_VALUE);
	EQ(cuGraphExecDestroy(e), CUDA_ERROR_INVALID_VALUE);
}

static void freed_by_another(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = params(10 * MIB);
	uint64_t before = mine();
	CUgraphNode a, f;
	CUgraphExec e[2];
	CUgraph g[2];
	OK(cuGraphCreate(&g[0], 0));
	OK(cuGraphCreate(&g[1], 0));
	OK(cuGraphAddMemAllocNode(&a, g[0], NULL, 0, &p));
	OK(cuGraphAddMemFreeNode(&f, g[1], NULL, 0, p.dptr));
	OK(cuGraphInstantiateWithFlags(&e[0], g[0], 0));
	OK(cuGraphInstantiateWithFlags(&e[1], g[1], 0));
	OK(cuGraphLaunch(e[0], NULL));
	OK(cuGraphLaunch(e[1], NULL));
	OK(cuDeviceGraphMemTrim(0));
	EQ(mine(), before);
	for (int i = 0; i < 2; i++) {
		OK(cuGraphExecDestroy(e[i]));
		OK(cuGraphDestroy(g[i]));
	}
}

/* Graphs that free at their next launch, in turns: each has its own. */
static void freed_at_launch(void)
{
	uint64_t before = mine();
	CUgraphExec e[2];
	CUgraphNode a;
	CUgraph g;
	CUDA_MEM_ALLOC_NODE_PARAMS p[2] = {params(384 * MIB), params(384 * MIB)};
	for (int i = 0; i < 2; i++) {
		OK(cuGraphCreate(&g, 0));
		OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &p[i]));
		OK(cuGraphInstantiateWithFlags(&e[i], g, 1));
		OK(cuGraphDestroy(g));
	}
	for (int i = 0; i < 6; i++) {
		OK(cuGraphLaunch(e[i % 2], NULL));
		EQ(RESERVED, i == 0 ? 384 * MIB : 768 * MIB);
		EQ(mine() - before, RESERVED);
	}
	for (int i = 0; i < 2; i++) {
		OK(cuMemFree_v2(p[i].dptr));
		OK(cuGraphExecDestroy(e[i]));
	}
	OK(cuDeviceGraphMemTrim(0));
	EQ(mine(), before);
}

static void on_two_devices(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = params(100 * MIB), q = params(200 * MIB);
	uint64_t before = mine(), other;
	CUgraphNode a;
	CUgraphExec e;
	CUgraph g;
	q.poolProps.location.id = 1;
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &p));
	OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &q));
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	OK(cuGraphLaunch(e, NULL));
	EQ(fakegpu_truth(1, &other, NULL), 0);
	EQ(mine() - before, 128 * MIB);
	EQ(other, 224 * MIB);
	OK(cuMemFree_v2(p.dptr));
	OK(cuMemFree_v2(q.dptr));
	OK(cuGraphExecDestroy(e));
	OK(cuGraphDestroy(g));
	OK(cuDeviceGraphMemTrim(0));
	OK(cuDeviceGraphMemTrim(1));
	EQ(mine(), before);
}

/* Several allocations share a chunk. */
static void small_ones(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p[3] = {params(10 * MIB), params(10 * MIB), params(10 * MIB)};
	uint64_t before = mine();
	CUgraphNode a;
	CUgraphExec e;
	CUgraph g;
	OK(cuGraphCreate(&g, 0));
	for (int i = 0; i < 3; i++)
		OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &p[i]));
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	OK(cuGraphLaunch(e, NULL));
	EQ(RESERVED, 32 * MIB);
	OK(cuDeviceGraphMemTrim(0));
	EQ(RESERVED, 32 * MIB);
	EQ(mine() - before, 32 * MIB);
	for (int i = 0; i < 3; i++)
		OK(cuMemFreeAsync(p[i].dptr, NULL));
	OK(cuDeviceGraphMemTrim(0));
	EQ(mine(), before);
	OK(cuGraphExecDestroy(e));
	OK(cuGraphDestroy(g));
}

int main(void)
{
	setenv("FAKEGPU", "h200x2", 1);
	start();
	freed_by_another();
	freed_inside();
	freed_outside();
	freed_at_launch();
	on_two_devices();
	small_ones();
	return FINISH();
}
