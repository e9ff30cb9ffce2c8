/* Graphs: memory nodes and kernel nodes, made by calls or by capture. An allocation node has
 * its address from the start, and its memory from launch to free. */
#ifndef FAKEGPU_GRAPH_H
#define FAKEGPU_GRAPH_H

#include "driver.h"

CUresult graph_create(CUgraph *out);
CUresult graph_destroy(CUgraph g);

/* Each makes a node. */
CUresult graph_add_kernel(CUgraphNode *out, CUgraph g, uint64_t ns);
CUresult graph_add_other(CUgraphNode *out, CUgraph g); /* that takes neither time nor memory: a copy */
CUresult graph_add_alloc(CUgraphNode *out, CUgraph g, CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult graph_add_free(CUgraphNode *out, CUgraph g, CUdeviceptr p);

/* A launch takes the memory of the allocation nodes; *ns is what its kernels take. */
CUresult graph_hold(CUgraphExec e, uint64_t *ns);
uint64_t graph_exec_ns(CUgraphExec e); /* what its kernels take; 0 where it is none */

#endif
