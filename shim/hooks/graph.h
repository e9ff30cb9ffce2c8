/* Memory that graphs allocate: charged by what a device has reserved for them. */
#ifndef RATION_GRAPH_H
#define RATION_GRAPH_H

#include <stdbool.h>

#include "device.h"

/* graph_takes_memory says that there may be graphs that allocate from now on. */
void graph_takes_memory(void);

/* graph_captures says whether any stream was ever captured. */
bool graph_captures(void);

/* graph_relax and graph_unrelax go around calls of ours that the driver would hold against
 * whoever captures a stream meanwhile. The first returns what the second takes. */
int graph_relax(void);
void graph_unrelax(int mode);

/* graph_sync brings the charge up to date. */
void graph_sync(struct device *d);

/* graph_relieve makes a device let go of what no graph uses. */
void graph_relieve(unsigned device, bool wait);

#endif
