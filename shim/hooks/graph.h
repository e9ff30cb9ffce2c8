/* Memory that graphs allocate: charged by what each device has reserved for them. */
#ifndef RATION_GRAPH_H
#define RATION_GRAPH_H

#include "device.h"
#include "region/atomics.h"

/* graph_captures records that a captured stream allocates: what graphs take from now on is
 * not all known. */
void graph_captures(void);

/* graph_frees goes before and after a free of an address that is in no record: it may be one
 * that a graph has allocated. Before, for launches that begin after the driver has freed it;
 * after, for those that began while it did. */
extern uint32_t graph_any; /* graphs of this process may allocate; atomic */
void graph_count_free(void);
static inline void graph_frees(void)
{
	if (__atomic_load_n(&graph_any, __ATOMIC_RELAXED))
		graph_count_free();
}

/* graph_sync makes the charge what the device has reserved. */
void graph_sync(struct device *d);

#endif
