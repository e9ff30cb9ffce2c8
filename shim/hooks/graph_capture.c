#include "hooks/graph_capture.h"

#include "capture.h"
#include "hooks.h"
#include "hooks/graph.h"

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

/* graph_capture_begun ends the count of a capture that the driver did not begin: it was counted
 * before the driver was asked. It returns result. */
static int graph_capture_begun(int result)
{
	if (result != CUDA_SUCCESS)
		capture_ended();
	return result;
}

int cuStreamBeginCapture(CUstream stream)
{
	capture_begun();
	return graph_capture_begun(REAL(cuStreamBeginCapture, stream));
}

int cuStreamBeginCapture_ptsz(CUstream stream)
{
	capture_begun();
	return graph_capture_begun(REAL(cuStreamBeginCapture_ptsz, stream));
}

int cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	capture_begun();
	return graph_capture_begun(REAL(cuStreamBeginCapture_v2, stream, mode));
}

int cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	capture_begun();
	return graph_capture_begun(REAL(cuStreamBeginCapture_v2_ptsz, stream, mode));
}

int cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode)
{
	capture_begun();
	graph_has_unseen(graph);
	return graph_capture_begun(REAL(cuStreamBeginCaptureToGraph, stream, graph, after, edges, count, mode));
}

int cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode)
{
	capture_begun();
	graph_has_unseen(graph);
	return graph_capture_begun(REAL(cuStreamBeginCaptureToGraph_ptsz, stream, graph, after, edges, count, mode));
}

/* graph_capture_end completes the end of a capture, and returns result. A call that fails may or may
 * not have ended it, so the driver is asked before (was, c) and after. */
static int graph_capture_end(CUstream stream, bool per_thread, bool was, const struct graph_capture *c, int result)
{
	struct graph_capture now;
	if (!was || graph_capture_of(stream, per_thread, &now))
		return result;
	capture_ended();
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
