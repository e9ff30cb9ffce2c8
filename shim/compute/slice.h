/* Time slices: how long a context has the device before the next one's turn. libcuda sets a
 * slice once for each context, by a control call to the kernel driver. In jobs with a share
 * that call is caught on its way out, its value replaced, and the group of channels it is
 * for remembered, so that the slice can be changed while the program runs.
 *
 * Whatever is not exactly as it is known here is left alone: the process goes on with the
 * driver's own slice, and its state says why. */
#ifndef RATION_SLICE_H
#define RATION_SLICE_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

/* slice_watch is called around the driver's call that makes a context on a device: the
 * thread's control calls in between are looked at. want is the slice in microseconds; 0 to
 * leave the driver's. slice_made ends it, with the context that was made, and the green one
 * that is part of a context, which may have no slice of its own; either may be NULL. It
 * returns what became of the slice: one of RATION_SLICE_KEPT to CROWDED. */
void slice_watch(struct device *d, uint64_t want);
unsigned slice_made(CUcontext whole, CUcontext part);

/* slice_control passes a control call of the program's on, with another value where it sets
 * the slice of a context that is being made. */
typedef int (*ioctl_function)(int fd, unsigned long request, ...);
int slice_control(ioctl_function next, int fd, unsigned long request, void *arg);

/* slice_add_unseen adds a context that was made before this process was attached, or in a way
 * that no hook sees. */
void slice_add_unseen(CUcontext handle, struct device *d);

/* slice_pause keeps a context's slice as it is while the driver may be ending it; slice_resume
 * is for one that has not ended, slice_forget for one that has. */
void slice_pause(CUcontext handle);
void slice_resume(CUcontext handle);
void slice_forget(CUcontext handle);

/* slice_sign records that a context has work, and returns its device; NULL for a context
 * that is not known. */
struct device *slice_sign(CUcontext handle, uint64_t now_us);

/* slice_workers counts the contexts on a device that had work at this time or later. */
unsigned slice_workers(const struct device *d, uint64_t since_us);

/* slice_set gives the contexts on a device this slice, where they have another one: 0 for the
 * driver's own. It returns the worst that became of any of them. No thread waits here: a
 * context whose slice another thread is setting is passed over. */
unsigned slice_set(const struct device *d, uint64_t want);

/* slice_complain logs, once for each reason, why a share is not kept. */
void slice_complain(const struct device *d, unsigned state);
const char *slice_state_text(unsigned state);

/* slices_reset forgets all contexts, in a process that has just opened the region. */
void slices_reset(void);

#endif
