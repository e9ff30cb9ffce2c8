/* Allocating in the lane: lane.h. */
#ifndef RATION_LANE_ALLOC_H
#define RATION_LANE_ALLOC_H

#include "hooks/context_table.h"

/* The smallest request that is served by the lane. */
#define LANE_LEAST (UINT64_C(2) << 20)

/* lane_alloc allocates in the place of the driver's cuMemAlloc, and returns whether it did. bytes is
 * the size that was charged. Whatever keeps it from doing so, the driver's own call does the rest. */
bool lane_alloc(const struct alloc_target *t, uint64_t bytes, CUdeviceptr *out);

#endif
