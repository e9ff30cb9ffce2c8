/* A time slice is how long a context has the device before the next context's turn. libcuda sets it
 * once for each context, by a control call (ioctl) to the kernel driver. In jobs with a share, we
 * intercept that call and replace its value. We also remember the group of channels that the call
 * is for, in all jobs, so that the slice can be changed while the program runs, and be set again when
 * the job wakes: libcuda does not do that.
 *
 * If anything is not exactly as expected, it is left alone: the process continues with the driver's
 * own slice, and its state (RATION_SLICE_...) tells why. */
#ifndef RATION_SLICE_H
#define RATION_SLICE_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

/* slice_watch is called before the driver makes a context on a device. From then on this thread's
 * control calls are inspected. want is the slice in microseconds, or 0 for the driver's own.
 * slice_made is called after it, with the context that was made (whole) and the green context that
 * is part of a context (part), which may have no slice of its own; either may be NULL. It returns
 * whether the slice was set: one of RATION_SLICE_KEPT to RATION_SLICE_CROWDED. */
void slice_watch(struct device *d, uint64_t want);
unsigned slice_made(CUcontext whole, CUcontext part);

/* slice_control makes a control call of the program. If the call sets the slice of a context that
 * is being made, it replaces the value; if it starts the group of a context that was made anew, it
 * sets its slice. It returns the result of the call. */
typedef int (*ioctl_function)(int fd, unsigned long request, ...);
int slice_control(ioctl_function next, int fd, unsigned long request, void *arg);

/* slice_add_unseen adds a context that was made before this process was attached, or in a way
 * that no hook sees. */
void slice_add_unseen(CUcontext handle, struct device *d);

/* slice_pause is called before the driver may end a context: its slice is not changed from then on.
 * Afterwards slice_resume is called if it has not ended, slice_forget if it has. */
void slice_pause(CUcontext handle);
void slice_resume(CUcontext handle);
void slice_forget(CUcontext handle);

/* slice_sign records that a context has work at now_us (0: records nothing). It returns the
 * context's device, or NULL if the context is not known. */
struct device *slice_sign(CUcontext handle, uint64_t now_us);

/* slice_workers returns how many contexts on a device had work at since_us or later. */
unsigned slice_workers(const struct device *d, uint64_t since_us);

/* slice_set sets the slice of the contexts on a device to want microseconds, or to the driver's own
 * for 0. It returns the worst state of any of them. It does not wait: it skips a context whose
 * slice another thread is setting. */
unsigned slice_set(const struct device *d, uint64_t want);

/* slice_of returns the slice in microseconds that the contexts of this process have on a device, or 0
 * if it is not known. */
uint64_t slice_of(const struct device *d);

/* slice_complain logs why a share is not enforced, once for each reason. slice_state_text returns
 * that reason as text. */
void slice_complain(const struct device *d, unsigned state);
const char *slice_state_text(unsigned state);

/* slices_reset removes all contexts, in a process that has just opened the region. */
void slices_reset(void);

#endif
