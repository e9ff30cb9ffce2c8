/* Caps limit a job to a part of a device's time, even if no other job wants the rest. A launch
 * waits in the CPU until the time that the job has used is due. The time is measured afterwards
 * (meter.h), and charged to the one word that all processes of the job wait for
 * (shim/compute/PROTOCOLS.md, *The cap's word*). There is no thread and no lock, and a waiting
 * launch holds nothing. */
#ifndef RATION_CAP_H
#define RATION_CAP_H

#include <stdbool.h>

#include "device.h"

/* Devices on which this process's job has a cap, one bit for each index, as cap_update last read
 * it. Atomic. */
extern uint32_t cap_devices;
static inline bool cap_any(void) { return __atomic_load_n(&cap_devices, __ATOMIC_RELAXED) != 0; }

/* cap_update reads whether the job has a cap on a device, and sets the bit in cap_devices. */
void cap_update(const struct device *d);

/* cap_launch_begins is called before a launch, and may wait for the cap. It returns true if the
 * caller must call meter_ends after the launch. graph: the launch is a graph. */
bool cap_launch_begins(CUstream stream, bool graph);

/* cap_copies is called before a thread puts a copy or a host function into a stream. */
void cap_copies(CUstream stream);

/* cap_waits is called before a thread waits for its current context, or when it has found that the
 * context has work. */
void cap_waits(void);

/* cap_waited is called after a thread has waited for its current context. It charges the time of
 * all batches that have ended. */
void cap_waited(void);

/* cap_reset clears all state, in a process that has just opened the region. */
void cap_reset(void);

#endif
