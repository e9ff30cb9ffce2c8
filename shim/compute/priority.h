/* Priority: a job of high priority hardly feels the jobs of low priority beside it. While a process
 * of high priority has had work on a device lately, the contexts of low priority there have short
 * time slices; so the wait for such a context's turn to end is short. Short slices of several
 * contexts would destroy each other's work, so each process claims that it has work (claims.h), and
 * the slice is short only if one context of low priority has. shim/compute/PROTOCOLS.md,
 * *Priority*. A job of normal priority claims nothing and asks nothing. */
#ifndef RATION_PRIORITY_H
#define RATION_PRIORITY_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

/* priority_show claims that this process has work on a device: in so many contexts, and whether one
 * of its threads waits for the device. If again, the last claim may have been overtaken by another
 * thread's, and is made anew. */
void priority_show(const struct device *d, unsigned contexts, bool waits, bool again);

/* priority_slice returns the slice of a context in microseconds, or 0 for the driver's own. own is
 * the number of this process's contexts that have work, all that of the whole job, and slice what
 * the job's share gives (0: no share). */
uint64_t priority_slice(const struct device *d, unsigned own, unsigned all, uint64_t slice);

/* priority_reset clears all state, in a process that has just opened the region. */
void priority_reset(void);

#endif
