/* The driver's own figure for this process, from NVML, and driver overhead: what it
 * says beyond what we counted. Off the hot path: at contexts and modules, and now
 * and then beside an allocation. */
#ifndef RATION_GAUGE_H
#define RATION_GAUGE_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

/* gauge_ready loads and starts NVML if need be. Not under a lock. */
bool gauge_ready(void);

/* A reading before something that takes memory no call tells the size of. */
struct gauge {
	struct device *device;
	uint64_t all; /* what everybody has of the device */
	bool known;
	uint64_t missing; /* what we counted and the driver did not have */
	bool listed; /* somebody with our PID was in the driver's list already */
};

/* gauge_pids reads the driver's list of processes; false where it has none. */
bool gauge_pids(struct device *d, uint32_t *pids, unsigned most, unsigned *n);

/* gauge_begin takes the reading, and books as overhead what is there already. */
struct gauge gauge_begin(struct device *d);

/* gauge_charge charges what has come since as kind, and tells how much that was:
 * CUDA_SUCCESS, or what the call must return once it has undone what it did. */
int gauge_charge(const struct gauge *g, unsigned kind, uint64_t *bytes);

/* gauge_shrink is for after the end of a context: what the driver no longer has
 * for us is given back. Where it has no figure for us, or one that does not show
 * all we counted, bytes are. */
void gauge_shrink(struct device *d, unsigned kind, uint64_t bytes);

/* gauge_nothing says whether the driver knows us, and has nothing for us. */
bool gauge_nothing(struct device *d);

/* gauge_refresh books or returns overhead, at most once a second unless now. */
void gauge_refresh(struct device *d, bool now);

/* gauge_tick is called beside each allocation. */
void gauge_tick(struct device *d);

#endif
