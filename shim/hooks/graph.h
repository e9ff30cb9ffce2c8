/* Memory that graphs allocate: charged by what each device has reserved for them. */
#ifndef RATION_GRAPH_H
#define RATION_GRAPH_H

#include "device.h"
#include "region/atomics.h"

/* graph_takes_memory records that graphs of this process may allocate from now on. */
void graph_takes_memory(void);

/* graph_memory_freed is for an address that was freed and is in no record: it may be one that
 * a graph had allocated. */
extern uint32_t graph_any;   /* graphs of this process may allocate; atomic */
extern uint64_t graph_frees; /* counts such frees; atomic */
static inline void graph_memory_freed(void)
{
	if (__atomic_load_n(&graph_any, __ATOMIC_RELAXED))
		fetch_add(&graph_frees, 1);
}

/* graph_sync makes the charge what the device has reserved. */
void graph_sync(struct device *d);

#endif
