/* A rest is a time in which a process of high priority leaves a device to others: from the end of a wait for all
 * that it has launched until its next launch. If a process rests for a tenth of the time, a job of low priority has
 * that, however short its slices are. PROTOCOLS.md, *Rests*.
 *
 * Where it is not known whether the device has work, that is no rest: after waits for events and queries, with
 * launches on several streams, and with work in several contexts. */
#ifndef RATION_REST_H
#define RATION_REST_H

#include <stdbool.h>

#include "device.h"
#include "region/atomics.h"

/* Which launches a wait is for, if not those of a stream. */
#define REST_OF_NOTHING ((CUstream)(uintptr_t)-1)
#define REST_OF_CONTEXT ((CUstream)(uintptr_t)-2)

/* rest_watch begins or ends to measure. Until then the other functions are not called. */
extern uint64_t rest_watched; /* atomic */
static inline bool rest_measured(void) { return load_relaxed(&rest_watched) != 0; }
void rest_watch(bool on);

/* rest_launches is called before a launch. It returns true if that ends a rest of less than a second: what was
 * claimed before it still counts. */
bool rest_launches(CUstream stream);

/* rest_waits is called before a wait for a stream's launches, and rest_waited after it, with the number of
 * contexts of this process that have work on the device. */
void rest_waits(const struct device *d, CUstream stream);
void rest_waited(const struct device *d, unsigned contexts);

/* rest_is_none is called when the device has been found to have work of this process. */
void rest_is_none(void);

/* rest_suffices returns whether this process rested for a tenth of the last second or more. */
bool rest_suffices(const struct device *d);

/* rest_reset clears all state, in a process that has just opened the region. */
void rest_reset(void);

#endif
