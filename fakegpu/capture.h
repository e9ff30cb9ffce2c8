/* Stream capture: calls on a stream make nodes of a graph instead of work.
 *
 * A stream is captured from cuStreamBeginCapture on, or from the moment it waits for an event of a
 * captured stream, until cuStreamEndCapture on the first stream. A call that is not allowed
 * meanwhile invalidates the capture: further calls on it fail, and its end gives no graph. */
#ifndef FAKEGPU_CAPTURE_H
#define FAKEGPU_CAPTURE_H

#include "driver.h"

extern unsigned capture_count; /* captures under way in this process; atomic */

static inline bool captures(void) { return __builtin_expect(load_acquire(&capture_count) > 0, 0); }

/* The position of an event that was recorded in a captured stream. */
struct capture_point {
	uint64_t capture; /* number of the capture; 0: none */
	CUstream stream;
	uint64_t nodes; /* number of that stream's nodes before the event */
};

/* Each kind of call on a stream first calls its function below if captures() is true. If the stream
 * is captured, the function makes a node and sets *taken. If it returns an error, the call fails
 * with it. */
CUresult capture_kernel(CUstream s, uint64_t ns, bool *taken);
CUresult capture_other(CUstream s, bool *taken); /* copies, host functions */
CUresult capture_graph(CUstream s, CUgraphExec e, bool *taken);
CUresult capture_alloc(CUstream s, CUdevice device, size_t bytes, CUdeviceptr *out, bool *taken);
CUresult capture_free(CUstream s, CUdeviceptr p, bool *taken);
CUresult capture_record(CUstream s, struct capture_point *p, bool *taken);
/* If the event belongs to a capture under way, stream s joins that capture. */
CUresult capture_wait(CUstream s, const struct capture_point *p, bool *taken);

/* Checks for calls that wait for, or query, a stream, an event or a context. */
CUresult capture_sync(CUstream s);
CUresult capture_sync_event(const struct capture_point *p);
CUresult capture_sync_context(const struct context *c);
/* Check for calls that may be unsafe during a capture, with the rules of an H200: a thread may not
 * make them while it captures, or while another thread captures in global mode, unless its own mode
 * is relaxed. */
CUresult capture_check_unsafe(void);
static inline CUresult capture_unsafe(void) { return captures() ? capture_check_unsafe() : CUDA_SUCCESS; }

/* Called when a stream, or a context with all its streams, is destroyed. */
void capture_forget(const struct context *c, CUstream s);

#endif
