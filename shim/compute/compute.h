/* A job's ration of a device's time, in this process. A share is kept by the hardware, as the
 * length of a context's time slice (slice.h): share x round, divided by how many contexts of
 * the job have work. Here each process shows when it has work, and looks, every few
 * milliseconds in calls that come here anyway, whether its slice is still the right one. No
 * thread, no timer, and no lock. shim/compute/PROTOCOLS.md, *The lease of work*.
 *
 * All of it is for processes for which attach_compute holds; in others these do nothing. */
#ifndef RATION_COMPUTE_H
#define RATION_COMPUTE_H

#include <stdbool.h>

#include "attach.h"
#include "clock.h"
#include "device.h"

/* compute_making and compute_made go around the driver's call that makes a context. The
 * second returns CUDA_SUCCESS, or, where RATION_COMPUTE=strict and the share cannot be kept,
 * what the call must return: the caller undoes the context. whole and part as in
 * slice_made; both are NULL where none was made. */
void compute_making(struct device *d);
int compute_made(struct device *d, CUcontext whole, CUcontext part);

/* compute_ending, compute_not_ended and compute_ended go around the call that ends one. */
void compute_ending(CUcontext handle);
void compute_not_ended(CUcontext handle);
void compute_ended(CUcontext handle);

/* When this thread next has to show that it has work, and to look; nanoseconds of
 * clock_coarse. */
extern __thread uint64_t compute_next_signal __attribute__((tls_model("initial-exec")));
extern __thread uint64_t compute_next_look __attribute__((tls_model("initial-exec")));

/* compute_signal is for a thread whose current context has work: it shows that, and looks. */
void compute_signal(void);

/* compute_look_now is for one that only passes by. compute_look is the same, every few
 * milliseconds. */
void compute_look_now(void);
static inline void compute_look(void)
{
	if (attach_compute() && clock_coarse() >= compute_next_look)
		compute_look_now();
}

/* compute_wait_begin and compute_wait_end go around a call that waits for the device: the
 * process has work for as long. The second takes what the first returned. */
struct device *compute_wait_begin(void);
void compute_wait_end(struct device *d);

/* compute_found_busy is for a thread that asked, and was told that there is work. */
void compute_found_busy(void);

/* compute_answered is called with the answer to a question whether something is done. */
static inline void compute_answered(int result)
{
	if (result == CUDA_ERROR_NOT_READY && clock_coarse() >= compute_next_signal)
		compute_found_busy();
}

/* compute_stream_ends is called before a stream is destroyed. */
void compute_stream_ends(CUstream stream);

/* compute_launch_begins is called before a launch on a stream (CU_STREAM_PER_THREAD for that
 * of this thread) of a kernel or a graph, and returns whether compute_launch_ended must be called after it. It may
 * wait, where the job has a cap. */
bool compute_launch_begins(CUstream stream, bool graph);
void compute_launch_ended(CUstream stream);

/* compute_copy_begins is called before something that is no kernel is put into a stream: a copy, a host function, a wait for
 * an event. */
void compute_copy_begins(CUstream stream);

/* compute_reset forgets what a fork handed down, in a process that has just opened the
 * region. */
void compute_reset(void);

#endif
