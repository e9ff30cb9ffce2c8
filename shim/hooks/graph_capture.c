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

/* The streams that are being captured, by handle, with their context. A thread's own default stream
 * is not among them: it has no handle. */
static struct alloc_table graph_captured;

/* graph_capture_ended is called when a capture has ended: the driver can wait for its context again. */
static void graph_capture_ended(CUstream stream)
{
	struct alloc_record r;
	alloc_table_take(&graph_captured, (uintptr_t)stream, &r);
	capture_ended();
	lane_free_late();
}

/* graph_capture_begun ends the count of a capture that the driver did not begin: it was counted
 * before. It returns result. */
static int graph_capture_begun(CUstream stream, int result)
{
	struct alloc_target t;
	if (result != CUDA_SUCCESS)
		graph_capture_ended(NULL);
	else if (stream && attach_on() && context_target(&t) == 1)
		alloc_table_put(&graph_captured, &(struct alloc_record){.key = (uintptr_t)stream, .context = t.context});
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

void graph_capture_stream_ends(CUstream stream)
{
	int status = 0;
	struct alloc_record r;
	if (!capture_any() || REAL(cuStreamIsCapturing, stream, &status) != CUDA_SUCCESS || status == CU_STREAM_CAPTURE_STATUS_NONE)
		return;
	alloc_table_take(&graph_captured, (uintptr_t)stream, &r);
	capture_ended();
}

int cuStreamBeginCapture(CUstream stream)
{
	capture_begun();
	return graph_capture_begun(stream, REAL(cuStreamBeginCapture, stream));
}

int cuStreamBeginCapture_ptsz(CUstream stream)
{
	capture_begun();
	return graph_capture_begun(stream, REAL(cuStreamBeginCapture_ptsz, stream));
}

int cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	capture_begun();
	return graph_capture_begun(stream, REAL(cuStreamBeginCapture_v2, stream, mode));
}

int cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	capture_begun();
	return graph_capture_begun(stream, REAL(cuStreamBeginCapture_v2_ptsz, stream, mode));
}

int cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode)
{
	capture_begun();
	graph_has_unseen(graph);
	return graph_capture_begun(stream, REAL(cuStreamBeginCaptureToGraph, stream, graph, after, edges, count, mode));
}

int cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode)
{
	capture_begun();
	graph_has_unseen(graph);
	return graph_capture_begun(stream, REAL(cuStreamBeginCaptureToGraph_ptsz, stream, graph, after, edges, count, mode));
}

/* graph_capture_end completes the end of a capture, and returns result. A call that fails may or may
 * not have ended it, so the driver is asked before (was, c) and after. */
static int graph_capture_end(CUstream stream, bool per_thread, bool was, const struct graph_capture *c, int result)
{
	struct graph_capture now;
	if (!was || graph_capture_of(stream, per_thread, &now))
		return result;
	graph_capture_ended(stream);
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
