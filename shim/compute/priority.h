/* Priority: a job of high priority hardly feels the jobs of low priority beside it. While a process
 * of high priority has had work on a device lately, the contexts of low priority there have short
 * time slices; so the wait for such a context's turn to end is short. Short slices of several
 * contexts would destroy each other's work, so the processes of low priority take turns: one of them
 * launches, and the launches of the others wait. They know of each other by claims (claims.h).
 * shim/compute/PROTOCOLS.md, *Priority*. A job of normal priority claims nothing and asks nothing. */
#ifndef RATION_PRIORITY_H
#define RATION_PRIORITY_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

/* priority_show claims that this process has work on a device: in so many contexts, and whether one
 * of its threads waits for the device. If again, the last claim may have been overtaken by another
 * thread's, and is made anew. */
void priority_show(struct device *d, unsigned contexts, bool waits, bool again);

/* priority_unclaimed returns true if this process has a priority and no claim on a device. */
bool priority_unclaimed(const struct device *d);

/* priority_slice returns the slice of a context in microseconds, or 0 for the driver's own. own is
 * the number of this process's contexts that have work, all that of the whole job, and slice what
 * the job's share, in per cent, gives (0: no share). */
uint64_t priority_slice(const struct device *d, unsigned own, unsigned all, unsigned share, uint64_t slice);

/* priority_look_begins is called before a thread computes slices, and priority_look_ends when they are set. In
 * between, no lock is removed with which this process may have a short slice. If priority_drops has changed
 * from before they were computed until they were set, they must be computed again. */
void priority_look_begins(const struct device *d);
uint32_t priority_drops(const struct device *d);
void priority_look_ends(const struct device *d);

/* priority_turns returns true if this process's launches on a device may have to wait for its turn. */
bool priority_turns(const struct device *d);

/* priority_turn returns true if this process may launch on a device now. flight_ns is the estimated
 * time of its launches under way. If it returns false, the caller asks again a little later, and
 * calls priority_stop_turns if that has lasted for too long: then there are no turns for a while. */
#define PRIORITY_AHEAD_NS UINT64_C(10000000)
bool priority_turn(struct device *d, uint64_t flight_ns);
void priority_stop_turns(struct device *d);

/* priority_reset clears all state, in a process that has just opened the region. changed will be
 * called when the slices on a device must be computed again. */
void priority_reset(void (*changed)(struct device *d));

#endif
