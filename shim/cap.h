/* Caps: at most so much of a device's time, also when nobody else wants it. Launches wait in
 * the CPU until what the job has used is due; what they use is measured after the fact, by
 * events around batches of launches, and charged to the one word that all processes of the
 * job wait for (docs/protocols.md, section 12). No thread, and no lock: what a stream's batch
 * is made of is taken by a mark that no thread waits for, and nothing is held in a wait. */
#ifndef RATION_CAP_H
#define RATION_CAP_H

#include <stdbool.h>

#include "device.h"

/* Devices of which this process's job has a cap, one bit each, as of the last look. Atomic. */
extern uint32_t cap_devices;
static inline bool cap_any(void) { return __atomic_load_n(&cap_devices, __ATOMIC_RELAXED) != 0; }

/* cap_update looks whether there is a cap. */
void cap_update(const struct device *d);

/* cap_launch_begins is called before a launch, with the time by clock_coarse, and returns
 * whether cap_launch_ended must be called after it. It may wait. */
bool cap_launch_begins(CUstream stream, uint64_t now);
void cap_launch_ended(CUstream stream);

/* cap_wait_begins is for a thread that will wait for its current context, or asks whether
 * something there is done: what was launched so far is measured up to here. cap_wait_ended
 * charges what is known by now. */
void cap_wait_begins(void);
void cap_wait_ended(void);

/* cap_stream_ends is called before a stream is destroyed, and cap_forget once a context has
 * ended. */
void cap_stream_ends(CUstream stream);
void cap_forget(CUcontext context);

/* cap_reset forgets all, in a process that has just opened the region. */
void cap_reset(void);

#endif
