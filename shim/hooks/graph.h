/* Memory that graphs allocate. The charge is the number of bytes that each device has reserved
 * for them. */
#ifndef RATION_GRAPH_H
#define RATION_GRAPH_H

#include "device.h"
#include "region/atomics.h"

/* graph_captures records that a captured stream allocates: from now on the memory that graphs
 * take is not fully known. */
void graph_captures(void);

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
