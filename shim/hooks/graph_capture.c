#include "hooks/graph_capture.h"

#include "capture.h"
#include "hooks.h"
#include "hooks/context_table.h"
#include "hooks/graph.h"
#include "hooks/lane.h"

bool graph_capture_of(CUstream stream, bool per_thread, struct graph_capture *c)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	*c = (struct graph_capture){.graph = NULL};
	int result = per_thread ? REAL(cuStreamGetCaptureInfo_v2_ptsz, stream, &status, &c->number, &c->graph, NULL, NULL)
				: REAL(cuStreamGetCaptureInfo_v2, stream, &status, &c->number, &c->graph, NULL, NULL);
	if (result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		c->graph = NULL;
	if (result != CUDA_SUCCESS) /* a driver before 11.3, or a stream that cannot be asked */
		result = per_thread ? REAL(cuStreamIsCapturing_ptsz, stream, &status) : REAL(cuStreamIsCapturing, stream, &status);
	return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void graph_capture_allocated(const struct graph_capture *c, unsigned device, CUdeviceptr at, uint64_t bytes)
{
	if (device >= RATION_DEVICES)
		graph_unknown();
	else if (graph_capture_known(c->graph, c->number))
		graph_add_allocation(c->graph, device, at, bytes);
}

void graph_capture_freed(const struct graph_capture *c, CUdeviceptr at)
{
	if (graph_capture_known(c->graph, c->number))
		graph_free_added(c->graph, at);
}

/* The streams with which captures under way began: `other` is the capture's number, `bytes` the stream's
 * handle, or 0 for the default stream of a thread. Streams that have joined a capture since are not among
 * them. */
static struct alloc_table graph_captured;

static bool graph_capture_is_default(CUstream stream, bool per_thread) { return (per_thread && !stream) || stream == CU_STREAM_PER_THREAD; }

/* graph_capture_key returns the key of a stream: its handle, but for a thread's own default stream, which has
 * the same handle in all threads. */
static uint64_t graph_capture_key(CUstream stream, bool per_thread)
{
	static __thread char mine __attribute__((tls_model("initial-exec")));
	return graph_capture_is_default(stream, per_thread) ? (uintptr_t)&mine : (uintptr_t)stream;
}

/* graph_capture_ended is called when a capture has ended: the driver can wait for its context again. */
static void graph_capture_ended(uint64_t key)
{
	struct alloc_record r;
	alloc_table_take(&graph_captured, key, &r);
	capture_ended();
	lane_free_late();
}

/* graph_capture_begun ends the count of a capture that the driver did not begin: it was counted
 * before. It returns result. */
static int graph_capture_begun(CUstream stream, bool per_thread, int result)
{
	struct alloc_target t;
	struct graph_capture c;
	if (result != CUDA_SUCCESS)
		graph_capture_ended(0);
	else if (attach_on() && context_target(&t) == 1 && graph_capture_of(stream, per_thread, &c))
		alloc_table_put(&graph_captured,
				&(struct alloc_record){.key = graph_capture_key(stream, per_thread),
						       .bytes = graph_capture_is_default(stream, per_thread) ? 0 : (uintptr_t)stream,
						       .context = t.context,
						       .other = c.number});
	return result;
}

static bool graph_capture_outlives(struct alloc_record *r, void *context)
{
	bool outlives = r->context != *(uint32_t *)context;
	if (!outlives)
		capture_ended();
	return outlives;
}

void graph_captures_end(uint32_t context) { alloc_table_sweep(&graph_captured, graph_capture_outlives, &context); }

static bool graph_capture_numbered(struct alloc_record *r, void *found)
{
	if (r->other == ((struct alloc_record *)found)->other)
		*(struct alloc_record *)found = *r;
	return true;
}

CUstream graph_capture_stream_ends(CUstream stream)
{
	struct graph_capture c;
	struct alloc_record r;
	if (!capture_any() || !graph_capture_of(stream, false, &c))
		return NULL;
	bool began = alloc_table_take(&graph_captured, (uintptr_t)stream, &r);
	r = (struct alloc_record){.other = c.number};
	if (!began && c.number)
		alloc_table_sweep(&graph_captured, graph_capture_numbered, &r);
	if (!r.key)
		capture_ended();
	return (CUstream)(uintptr_t)r.bytes;
}

void graph_capture_stream_ended(CUstream origin)
{
	struct graph_capture c;
	if (unlikely(origin && capture_stream_valid(origin, false) && !graph_capture_of(origin, false, &c)))
		graph_capture_ended(graph_capture_key(origin, false));
}

int cuStreamBeginCapture(CUstream stream)
{
	capture_begun();
	return graph_capture_begun(stream, false, REAL(cuStreamBeginCapture, stream));
}

int cuStreamBeginCapture_ptsz(CUstream stream)
{
	capture_begun();
	return graph_capture_begun(stream, true, REAL(cuStreamBeginCapture_ptsz, stream));
}

int cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	capture_begun();
	return graph_capture_begun(stream, false, REAL(cuStreamBeginCapture_v2, stream, mode));
}

int cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	capture_begun();
	return graph_capture_begun(stream, true, REAL(cuStreamBeginCapture_v2_ptsz, stream, mode));
}

int cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode)
{
	capture_begun();
	graph_has_unseen(graph);
	return graph_capture_begun(stream, false, REAL(cuStreamBeginCaptureToGraph, stream, graph, after, edges, count, mode));
}

int cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode)
{
	capture_begun();
	graph_has_unseen(graph);
	return graph_capture_begun(stream, true, REAL(cuStreamBeginCaptureToGraph_ptsz, stream, graph, after, edges, count, mode));
}

/* graph_capture_end completes the end of a capture, and returns result. A call that fails may or may
 * not have ended it, so the driver is asked before (was, c) and after. */
static int graph_capture_end(CUstream stream, bool per_thread, bool was, const struct graph_capture *c, int result)
{
	struct graph_capture now;
	if (!was || graph_capture_of(stream, per_thread, &now))
		return result;
	graph_capture_ended(graph_capture_key(stream, per_thread));
	if (c->graph)
		graph_capture_made(c->graph, result == CUDA_SUCCESS);
	return result;
}

int cuStreamEndCapture(CUstream stream, CUgraph *out)
{
	struct graph_capture c;
	bool was = graph_capture_of(stream, false, &c);
	return graph_capture_end(stream, false, was, &c, REAL(cuStreamEndCapture, stream, out));
}

int cuStreamEndCapture_ptsz(CUstream stream, CUgraph *out)
{
	struct graph_capture c;
	bool was = graph_capture_of(stream, true, &c);
	return graph_capture_end(stream, true, was, &c, REAL(cuStreamEndCapture_ptsz, stream, out));
}
