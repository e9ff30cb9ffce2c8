/* A job's ration of a device's time, in this process. The hardware enforces a share by the length
 * of a context's time slice (slice.h): share x round, divided by the number of the job's contexts
 * that have work. The functions below publish when this process has work. Every few milliseconds,
 * in calls that are hooked anyway, they also compute the slice anew (a look) and change it if
 * necessary. There is no thread, no timer and no lock. shim/compute/PROTOCOLS.md, *The lease of
 * work*.
 *
 * In a process for which attach_compute is false they only remember the slices that libcuda set, so
 * that they are set again when the job wakes. */
#ifndef RATION_COMPUTE_H
#define RATION_COMPUTE_H

#include <stdbool.h>

#include "attach.h"
#include "clock.h"
#include "device.h"

/* compute_making is called before the driver makes a context, and compute_made after it.
 * compute_made returns CUDA_SUCCESS; or, if RATION_COMPUTE=strict and the share cannot be enforced,
 * the error that the hooked call must return, and then the caller undoes the context. whole and
 * part have the same meaning as in slice_made; both are NULL if no context was made. */
void compute_making(struct device *d);
int compute_made(struct device *d, CUcontext whole, CUcontext part);

/* compute_ending is called before the driver ends a context. Afterwards compute_ended is called if
 * it has ended, compute_not_ended if not. */
void compute_ending(CUcontext handle);
void compute_not_ended(CUcontext handle);
void compute_ended(CUcontext handle);

/* When this thread must next publish that it has work, and when it must next compute the slice
 * anew; ns of clock_coarse. */
extern __thread uint64_t compute_next_signal __attribute__((tls_model("initial-exec")));
extern __thread uint64_t compute_next_look __attribute__((tls_model("initial-exec")));

/* compute_signal publishes that this thread's current context has work, and computes the slice
 * anew. */
void compute_signal(void);

/* compute_look_now only computes the slice anew. compute_look does the same, at most every few
 * milliseconds. */
void compute_look_now(void);
static inline void compute_look(void)
{
	if (attach_compute() && clock_coarse() >= compute_next_look)
		compute_look_now();
}

/* compute_wait_begin is called before a call that waits for the device, and compute_wait_end after
 * it, with the device that the first returned (or NULL). In between the process counts as having
 * work. */
struct device *compute_wait_begin(void);
void compute_wait_end(struct device *d);

/* compute_found_busy is called when this thread has learned from the driver that its context has work. */
void compute_found_busy(void);

/* compute_answered is called with the driver's result of a query whether work is done. */
static inline void compute_answered(int result)
{
	if (result == CUDA_ERROR_NOT_READY && clock_coarse() >= compute_next_signal)
		compute_found_busy();
}

/* compute_stream_ends is called before a stream is destroyed, in every process. */
void compute_stream_ends(CUstream stream);

/* compute_launch_begins is called before a kernel or a graph is launched on a stream
 * (CU_STREAM_PER_THREAD means the stream of this thread). If the job has a cap, it may wait. It
 * returns true if the caller must call compute_launch_ended after the launch. */
bool compute_launch_begins(CUstream stream, bool graph);
void compute_launch_ended(CUstream stream);

/* compute_copy_begins is called before work that is not a kernel is put into a stream: a copy, a
 * host function. compute_event_wait_begins is called before a stream is made to wait for an event. */
void compute_copy_begins(CUstream stream);
void compute_event_wait_begins(CUstream stream, CUevent event);

/* compute_reset clears the state that a fork child inherited, in a process that has just opened the
 * region. */
void compute_reset(void);

#endif
