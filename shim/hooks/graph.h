/* Memory that graphs allocate: charged by what each device has reserved for them. */
#ifndef RATION_GRAPH_H
#define RATION_GRAPH_H

#include "device.h"

/* graph_takes_memory records that graphs of this process may allocate from now on. */
void graph_takes_memory(void);

/* graph_sync makes the charge what the device has reserved. */
void graph_sync(struct device *d);

#endif
