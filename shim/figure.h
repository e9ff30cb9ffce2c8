/* The driver's own figures, from NVML: for this process, and for everybody. Starting
 * NVML takes as long as a tenth of making a context, so it is put off until a figure
 * is needed. */
#ifndef RATION_FIGURE_H
#define RATION_FIGURE_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

/* figure_ready loads and starts NVML if need be: not under a lock, unless that was
 * tried already. figure_up says whether it was started. */
bool figure_ready(void);
bool figure_tried(void);
bool figure_up(void);

/* figure_pids reads the driver's list of processes; false where it has none. */
bool figure_pids(struct device *d, uint32_t *pids, unsigned most, unsigned *n);

/* figure_mine is the driver's figure for this process; false where it does not show
 * us to ourselves. A process that was in its list once and is no longer has nothing. */
bool figure_mine(struct device *d, uint64_t *bytes);

/* figure_all is what everybody has. */
bool figure_all(struct device *d, uint64_t *bytes);

/* The driver lists processes by PIDs of its own choice: the host's, or those of the
 * PID namespace that asks. Where the host's is not known, whoever makes his first
 * context finds out whether his own PID turns up with it, and the region remembers
 * that for all of his namespace.
 *
 * figure_named says whether we know our name there, and figure_stranger whether
 * nobody has found out yet. figure_unlisted is for before the context: nobody has
 * our PID. figure_meet is for after it. */
bool figure_named(void);
bool figure_stranger(void);
bool figure_unlisted(struct device *d);
void figure_meet(struct device *d);

/* figure_name is for who found out otherwise. */
void figure_name(uint32_t pid);

/* figure_forget starts anew, in a process that has just joined. */
void figure_forget(void);

#endif
