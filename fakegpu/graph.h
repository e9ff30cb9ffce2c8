/* Nodes of a graph, for those who make them: callers of the driver, and captures. */
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

uint64_t graph_exec_ns(CUgraphExec e); /* what its kernels take; 0 where it is none */

#endif
