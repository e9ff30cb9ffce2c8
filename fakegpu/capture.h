/* Stream capture: calls on a stream make nodes of a graph instead of work.
 *
 * A stream is captured from cuStreamBeginCapture on, or from when it waits for an event of
 * a stream that is, until cuStreamEndCapture on the first one. What must not be done
 * meanwhile ends the capture: it is invalidated, its calls fail and its end gives no graph. */
#ifndef FAKEGPU_CAPTURE_H
#define FAKEGPU_CAPTURE_H

#include "driver.h"

extern unsigned capture_count; /* captures under way in this process; atomic */

static inline bool captures(void) { return __builtin_expect(load_acquire(&capture_count) > 0, 0); }

/* Where an event lies that was recorded in a captured stream. */
struct capture_point {
	uint64_t capture; /* its number; 0: in none */
	CUstream stream;
	uint64_t nodes; /* of that stream, before it */
};

/* What each kind of call on a stream does first where there are captures: where the stream
 * is captured it makes a node and says so in *taken; an error ends the call. */
CUresult capture_kernel(CUstream s, uint64_t ns, bool *taken);
CUresult capture_other(CUstream s, bool *taken); /* copies, host functions */
CUresult capture_graph(CUstream s, CUgraphExec e, bool *taken);
CUresult capture_alloc(CUstream s, CUdevice device, size_t bytes, CUdeviceptr *out, bool *taken);
CUresult capture_free(CUstream s, CUdeviceptr p, bool *taken);
CUresult capture_record(CUstream s, struct capture_point *p, bool *taken);
/* The stream of an event's capture, if that is under way, takes this one in. */
CUresult capture_wait(CUstream s, const struct capture_point *p, bool *taken);

/* Calls that wait for a stream or ask whether it is done, for an event, or for a context. */
CUresult capture_sync(CUstream s);
CUresult capture_sync_event(const struct capture_point *p);
CUresult capture_sync_context(const struct context *c);
/* Calls that may not be safe for a capture, as an H200 sees it: not allowed to a thread
 * while it captures, or while another one captures in global mode, unless it is relaxed. */
CUresult capture_check_unsafe(void);
static inline CUresult capture_unsafe(void) { return captures() ? capture_check_unsafe() : CUDA_SUCCESS; }

/* A stream, or all of a context, is destroyed. */
void capture_forget(const struct context *c, CUstream s);

#endif
