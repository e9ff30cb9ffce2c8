/* Graphs: memory nodes and kernel nodes, made by calls or by capture. An allocation node has
 * its address from the start, and its memory from launch to free. One that comes after a node that
 * frees gets the address of what that frees, if it fits: then both are the same memory. */
#ifndef FAKEGPU_GRAPH_H
#define FAKEGPU_GRAPH_H

#include "driver.h"

CUresult graph_create(CUgraph *out);
CUresult graph_destroy(CUgraph g);

/* The nodes that a new node comes after. Captured nodes list none: their allocations get new
 * addresses. */
struct graph_after {
	const CUgraphNode *nodes;
	size_t count;
};
#define GRAPH_FIRST ((struct graph_after){NULL, 0})

/* Each makes a node. */
CUresult graph_add_kernel(CUgraphNode *out, CUgraph g, struct graph_after after, uint64_t ns);
CUresult graph_add_other(CUgraphNode *out, CUgraph g); /* a node without time and memory, such as a copy */
CUresult graph_add_alloc(CUgraphNode *out, CUgraph g, struct graph_after after, CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult graph_add_free(CUgraphNode *out, CUgraph g, struct graph_after after, CUdeviceptr p);

/* Takes the memory of the allocation nodes for a launch. Sets *ns to the duration of its kernels. */
CUresult graph_hold(CUgraphExec e, uint64_t *ns);
uint64_t graph_exec_ns(CUgraphExec e); /* duration of its kernels; 0 if e is not an executable graph */

#endif
