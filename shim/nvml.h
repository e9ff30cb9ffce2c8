/* The driver's own usage, from NVML: for this process, and for everybody. Starting
 * NVML takes as long as a tenth of making a context, so it is put off until a figure
 * is needed. */
#ifndef RATION_FIGURE_H
#define RATION_FIGURE_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

/* nvml_start loads and starts NVML if need be: not under a lock, unless that was
 * tried already. nvml_started says whether it was started. */
bool nvml_start(void);
bool nvml_tried(void);
bool nvml_started(void);

/* nvml_pids reads the driver's list of processes; false where it has none. */
bool nvml_pids(struct device *d, uint32_t *pids, unsigned most, unsigned *n);

/* nvml_own_bytes is the driver's figure for this process; false where it does not show
 * us to ourselves. A process that was in its list once and is no longer has nothing. */
bool nvml_own_bytes(struct device *d, uint64_t *bytes);

/* nvml_device_used is what everybody has. */
bool nvml_device_used(struct device *d, uint64_t *bytes);

/* The driver lists processes by PIDs of its own choice: the host's, or those of the
 * PID namespace that asks. Where the host's is not known, whoever makes his first
 * context finds out whether his own PID turns up with it, and the region remembers
 * that for all of his namespace.
 *
 * nvml_pid_known says whether we know our name there, and nvml_pid_undecided whether
 * nobody has found out yet. nvml_pid_unlisted is for before the context: nobody has
 * our PID. nvml_decide_pid is for after it. */
bool nvml_pid_known(void);
bool nvml_pid_undecided(void);
bool nvml_pid_unlisted(struct device *d);
void nvml_decide_pid(struct device *d);

/* nvml_set_pid is for who found out otherwise. */
void nvml_set_pid(uint32_t pid);

/* nvml_reset starts anew, in a process that has just joined. */
void nvml_reset(void);

#endif
