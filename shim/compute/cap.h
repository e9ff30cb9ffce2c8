/* Caps: at most so much of a device's time, also when nobody else wants it. Launches wait in
 * the CPU until what the job has used is due; what they use is measured after the fact (meter.h), and
 * charged to the one word that all processes of the job wait for (shim/compute/PROTOCOLS.md, *The cap's word*).
 * No thread and no lock, and nothing is held in a wait. */
#ifndef RATION_CAP_H
#define RATION_CAP_H

#include <stdbool.h>

#include "device.h"

/* Devices of which this process's job has a cap, one bit each, as of the last look. Atomic. */
extern uint32_t cap_devices;
static inline bool cap_any(void) { return __atomic_load_n(&cap_devices, __ATOMIC_RELAXED) != 0; }

/* cap_update looks whether there is a cap. */
void cap_update(const struct device *d);

/* cap_launch_begins is called before a launch, and returns whether meter_ends must be called after
 * it. It may wait. alone: it is a graph. */
bool cap_launch_begins(CUstream stream, bool alone);

/* cap_copies is for a thread that is about to copy on a stream, or to have a function called in its order. */
void cap_copies(CUstream stream);

/* cap_waits is for a thread that is about to wait for its current context, or found it at work. */
void cap_waits(void);

/* cap_waited is for a thread that has waited for its current context: it charges what is known
 * by now. */
void cap_waited(void);

/* cap_reset forgets all, in a process that has just opened the region. */
void cap_reset(void);

#endif
