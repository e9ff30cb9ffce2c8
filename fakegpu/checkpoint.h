/* Checkpoints: another process of the same user stops a process's calls (calls.h), puts its device memory
 * aside into host memory, and brings it back. The process itself does it, in a thread of the driver. */
#ifndef FAKEGPU_CHECKPOINT_H
#define FAKEGPU_CHECKPOINT_H

/* Starts the thread, if FAKEGPU_CHECKPOINT is set. */
void checkpoint_load(void);

#endif
