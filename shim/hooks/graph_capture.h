/* Graphs that are made by capturing a stream. An allocation or a free on a captured stream becomes a
 * node of the graph, as if the program had added it. */
#ifndef RATION_GRAPH_CAPTURE_H
#define RATION_GRAPH_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"

/* A capture under way. */
struct graph_capture {
	CUgraph graph;   /* the graph that it makes; NULL: not known */
	uint64_t number; /* no other capture of this process has it */
};

/* graph_capture_of reports whether a stream is captured, and finds the capture. A capture that the
 * driver has invalidated, and the program has not ended yet, counts, too. */
bool graph_capture_of(CUstream stream, bool per_thread, struct graph_capture *c);

/* Destroying a stream or a context ends the captures in it. graph_capture_stream_ends is called before
 * the first, graph_captures_end after the second. If the stream has only joined a capture, the driver
 * knows whether that has ended: graph_capture_stream_ends returns the stream with which it began, and
 * graph_capture_stream_ended asks, after the driver's call. */
CUstream graph_capture_stream_ends(CUstream stream);
void graph_capture_stream_ended(CUstream origin);
void graph_captures_end(uint32_t context);

/* graph_capture_allocated and graph_capture_freed record an allocation and a free on a captured
 * stream, after the driver's call. device is RATION_DEVICES if it is not known. */
void graph_capture_allocated(const struct graph_capture *c, unsigned device, CUdeviceptr at, uint64_t bytes);
void graph_capture_freed(const struct graph_capture *c, CUdeviceptr at);

#endif
