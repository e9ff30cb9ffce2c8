/* Memory that graphs allocate. The charge is the number of bytes that each device has reserved
 * for them. */
#ifndef RATION_GRAPH_H
#define RATION_GRAPH_H

#include "device.h"
#include "region/atomics.h"

/* graph_unknown records that a graph may have nodes that no hook has seen: from now on the memory
 * that graphs take is not fully known. graph_has_unseen records the same of one graph. */
void graph_unknown(void);
void graph_has_unseen(CUgraph graph);

/* graph_add_allocation records a node that allocates, for the charge at the first launch;
 * graph_free_added a node that frees an address, of its own graph or of another one. */
void graph_add_allocation(CUgraph graph, unsigned device, CUdeviceptr at, uint64_t bytes);
void graph_free_added(CUgraph graph, CUdeviceptr at);

/* graph_capture_known begins to record the nodes of a graph that a capture makes; no other capture of
 * this process has its number. It returns false if not all nodes can be known: what the graph takes is
 * charged after its launch. graph_capture_made ends that: the program has the graph, or the driver has
 * destroyed it (made is false). */
bool graph_capture_known(CUgraph graph, uint64_t number);
void graph_capture_made(CUgraph graph, bool made);

/* Call graph_frees before and after the driver frees an address that is in no record, since a
 * graph may have allocated it. The call before is for launches that begin after the free, the
 * call after is for launches that began during it. */
extern uint32_t graph_any; /* graphs of this process may allocate; atomic */
void graph_count_free(void);
static inline void graph_frees(void)
{
	if (__atomic_load_n(&graph_any, __ATOMIC_RELAXED))
		graph_count_free();
}

/* graph_sync sets the charge to the bytes that the device has reserved for graphs. */
void graph_sync(struct device *d);

#endif
