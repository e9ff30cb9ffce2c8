#include "capture.h"

#include <pthread.h>
#include <stdlib.h>

#include "graph.h"

struct capture {
	uint64_t number;
	CUgraph graph;
	bool own_graph; /* the graph was made for this capture */
	CUstreamCaptureMode mode;
	pthread_t thread; /* the thread that began the capture */
	CUstream origin;
	bool invalid;
	struct capture *next;
};

/* A stream that is captured. */
struct capture_stream {
	CUstream stream;
	pthread_t thread; /* for a per-thread stream: its thread */
	const struct context *context;
	struct capture *capture;
	uint64_t nodes;   /* how many nodes it made */
	uint64_t joined;  /* how many of them another stream of the capture waits for */
	CUgraphNode last; /* NULL: none yet */
	struct capture_stream *next;
};

unsigned capture_count;

/* Guards all variables below and all structs above. The graph's lock may be taken while it is held. */
static pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *capture_list;
static struct capture_stream *capture_streams;
static uint64_t capture_numbers;

static _Thread_local CUstreamCaptureMode capture_thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static bool capture_is_legacy(CUstream s) { return s == NULL || s == CU_STREAM_LEGACY; }

/* The caller of each static function below holds capture_lock. */

static struct capture_stream *capture_find(CUstream s)
{
	for (struct capture_stream *c = capture_streams; c != NULL; c = c->next)
		if (c->stream == s && (s != CU_STREAM_PER_THREAD || pthread_equal(c->thread, pthread_self())))
			return c;
	return NULL;
}

/* Checks a call on the legacy stream. The call would have to wait for the capturing streams of its
 * context, so it is an error if there are any. With ends it also invalidates their captures; a call
 * that only queries the stream does not. */
static CUresult capture_implicit(const struct context *context, bool ends)
{
	CUresult r = CUDA_SUCCESS;
	for (struct capture_stream *c = capture_streams; c != NULL; c = c->next)
		if (c->context == context && stream_is_blocking(c->stream)) {
			c->capture->invalid |= ends;
			r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
		}
	return r;
}

/* Sets *out to the captured stream, or to NULL if the stream is not captured. Returns an error if
 * the stream cannot be used now. */
static CUresult capture_enter(CUstream s, struct capture_stream **out)
{
	struct context *context;
	*out = NULL;
	if (capture_is_legacy(s)) {
		TRY(current_context(&context));
		return capture_implicit(context, true);
	}
	*out = capture_find(s);
	return *out != NULL && (*out)->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

static void capture_made(struct capture_stream *c, CUgraphNode n)
{
	c->nodes++;
	c->last = n;
}

static struct capture_stream *capture_join(struct capture *c, CUstream s)
{
	struct context *context = NULL;
	struct capture_stream *n = calloc(1, sizeof *n);
	if (n == NULL || current_context(&context) != CUDA_SUCCESS) {
		free(n);
		return NULL;
	}
	*n = (struct capture_stream){
		.stream = s, .thread = pthread_self(), .context = stream_context(s, context), .capture = c, .next = capture_streams};
	capture_streams = n;
	return n;
}

/* Ends a capture. Without keep_graph its graph is destroyed, because no caller gets it. */
static void capture_end(struct capture *c, bool keep_graph)
{
	for (struct capture_stream **at = &capture_streams; *at != NULL;) {
		struct capture_stream *gone = *at;
		if (gone->capture != c) {
			at = &gone->next;
			continue;
		}
		*at = gone->next;
		free(gone);
	}
	for (struct capture **at = &capture_list; *at != NULL; at = &(*at)->next)
		if (*at == c) {
			*at = c->next;
			break;
		}
	if (!keep_graph && c->own_graph)
		graph_destroy(c->graph);
	free(c);
	add_relaxed(&capture_count, -1u);
}

static struct capture *capture_numbered(uint64_t number)
{
	struct capture *c = capture_list;
	while (c != NULL && c->number != number)
		c = c->next;
	return c;
}

/* The body of the calls that make a node: `make` is an expression of `in`, which makes `node`. */
#define CAPTURE(s, taken, make)                             \
	do {                                                \
		struct capture_stream *in;                  \
		CUgraphNode node = NULL;                    \
		CUresult result;                            \
		*(taken) = false;                           \
		pthread_mutex_lock(&capture_lock);          \
		result = capture_enter(s, &in);             \
		if (result == CUDA_SUCCESS && in != NULL) { \
			*(taken) = true;                    \
			result = (make);                    \
			if (result == CUDA_SUCCESS)         \
				capture_made(in, node);     \
		}                                           \
		pthread_mutex_unlock(&capture_lock);        \
		return result;                              \
	} while (0)

CUresult capture_kernel(CUstream s, uint64_t ns, bool *taken)
{
	CAPTURE(s, taken, graph_add_kernel(&node, in->capture->graph, GRAPH_FIRST, ns));
}
CUresult capture_other(CUstream s, bool *taken) { CAPTURE(s, taken, graph_add_other(&node, in->capture->graph)); }

CUresult capture_graph(CUstream s, CUgraphExec e, bool *taken)
{
	CAPTURE(s, taken, graph_add_kernel(&node, in->capture->graph, GRAPH_FIRST, graph_exec_ns(e)));
}

CUresult capture_free(CUstream s, CUdeviceptr p, bool *taken)
{
	CAPTURE(s, taken, graph_add_free(&node, in->capture->graph, GRAPH_FIRST, p));
}

CUresult capture_alloc(CUstream s, CUdevice device, size_t bytes, CUdeviceptr *out, bool *taken)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}},
		.bytesize = bytes};
	CAPTURE(s, taken, (result = graph_add_alloc(&node, in->capture->graph, GRAPH_FIRST, &p), *out = p.dptr, result));
}

CUresult capture_record(CUstream s, struct capture_point *p, bool *taken)
{
	struct capture_stream *in;
	CUresult r;
	pthread_mutex_lock(&capture_lock);
	r = capture_enter(s, &in);
	*taken = r == CUDA_SUCCESS && in != NULL;
	if (*taken)
		*p = (struct capture_point){in->capture->number, s, in->nodes};
	else if (r == CUDA_SUCCESS)
		p->capture = 0;
	pthread_mutex_unlock(&capture_lock);
	return r;
}

CUresult capture_wait(CUstream s, const struct capture_point *p, bool *taken)
{
	struct capture_stream *in, *from;
	struct capture *c;
	CUresult r;

	*taken = false;
	pthread_mutex_lock(&capture_lock);
	c = p->capture == 0 ? NULL : capture_numbered(p->capture);
	r = capture_enter(s, &in);
	if (r != CUDA_SUCCESS || (c == NULL && in == NULL)) {
		/* neither is captured, or the call has failed already */
	} else if (c == NULL) {
		in->capture->invalid = true; /* it waits for an event outside the capture */
		r = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	} else if (c->invalid) {
		r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	} else if (in != NULL && in->capture != c) {
		in->capture->invalid = c->invalid = true;
		r = CUDA_ERROR_STREAM_CAPTURE_MERGE;
	} else if (capture_is_legacy(s)) {
		c->invalid = true;
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	} else {
		*taken = true;
		if (in == NULL && capture_join(c, s) == NULL)
			r = CUDA_ERROR_OUT_OF_MEMORY;
		from = capture_find(p->stream);
		if (from != NULL && from->capture == c && from->stream != s && from->joined < p->nodes)
			from->joined = p->nodes;
	}
	pthread_mutex_unlock(&capture_lock);
	return r;
}

CUresult capture_sync(CUstream s)
{
	struct capture_stream *in;
	CUresult r;
	pthread_mutex_lock(&capture_lock);
	r = capture_enter(s, &in);
	if (r == CUDA_SUCCESS && in != NULL) {
		in->capture->invalid = true;
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	pthread_mutex_unlock(&capture_lock);
	return r;
}

CUresult capture_sync_event(const struct capture_point *p)
{
	struct capture *c;
	if (p->capture == 0)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&capture_lock);
	c = capture_numbered(p->capture);
	if (c != NULL)
		c->invalid = true;
	pthread_mutex_unlock(&capture_lock);
	return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult capture_sync_context(const struct context *context)
{
	CUresult r = CUDA_SUCCESS;
	pthread_mutex_lock(&capture_lock);
	for (struct capture_stream *c = capture_streams; c != NULL; c = c->next)
		if (c->context == context) {
			c->capture->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	pthread_mutex_unlock(&capture_lock);
	return r;
}

CUresult capture_check_unsafe(void)
{
	CUresult r = CUDA_SUCCESS;
	if (capture_thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return r;
	pthread_mutex_lock(&capture_lock);
	for (struct capture *c = capture_list; c != NULL; c = c->next) {
		bool mine = pthread_equal(c->thread, pthread_self());
		bool minds = mine ? c->mode != CU_STREAM_CAPTURE_MODE_RELAXED
				  : c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture_thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
		if (minds) {
			c->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	pthread_mutex_unlock(&capture_lock);
	return r;
}

void capture_forget(const struct context *context, CUstream s)
{
	if (!captures())
		return;
	pthread_mutex_lock(&capture_lock);
	for (struct capture_stream *c = capture_streams, *next; c != NULL; c = next) {
		next = c->next;
		if (context != NULL ? c->context == context : c->stream == s) {
			capture_end(c->capture, false);
			next = capture_streams; /* more than one entry was removed: start again */
		}
	}
	pthread_mutex_unlock(&capture_lock);
}

static CUresult capture_begin(CUstream s, CUstreamCaptureMode mode, CUgraph into)
{
	struct context *context;
	struct capture *c;
	CUresult r;

	TRY(current_context(&context));
	TRY(stream_check(s));
	if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (capture_is_legacy(s))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	c = calloc(1, sizeof *c);
	if (c == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*c = (struct capture){.graph = into, .own_graph = into == NULL, .mode = mode, .thread = pthread_self(), .origin = s};
	pthread_mutex_lock(&capture_lock);
	r = capture_find(s) != NULL ? CUDA_ERROR_ILLEGAL_STATE : into == NULL ? graph_create(&c->graph) : CUDA_SUCCESS;
	if (r == CUDA_SUCCESS && capture_join(c, s) == NULL)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r == CUDA_SUCCESS) {
		c->number = ++capture_numbers;
		c->next = capture_list;
		capture_list = c;
		add_relaxed(&capture_count, 1);
	} else {
		free(c);
	}
	pthread_mutex_unlock(&capture_lock);
	return r;
}

/* Returns true if another stream waits for all nodes of each forked stream. */
static bool capture_joined(const struct capture *c)
{
	for (const struct capture_stream *s = capture_streams; s != NULL; s = s->next)
		if (s->capture == c && s->stream != c->origin && s->joined < s->nodes)
			return false;
	return true;
}

static CUresult capture_finish(CUstream s, CUgraph *out)
{
	struct capture_stream *in;
	struct capture *c;
	CUresult r = CUDA_SUCCESS;

	TRY(driver_ready());
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	pthread_mutex_lock(&capture_lock);
	in = capture_find(s);
	c = in == NULL ? NULL : in->capture;
	if (c == NULL) {
		r = CUDA_ERROR_ILLEGAL_STATE;
	} else if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(c->thread, pthread_self())) {
		r = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	} else if (c->origin != s) {
		c->invalid = true;
		r = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	} else {
		r = c->invalid          ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
		    : capture_joined(c) ? CUDA_SUCCESS
					: CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
		if (r == CUDA_SUCCESS)
			*out = c->graph;
		capture_end(c, r == CUDA_SUCCESS);
	}
	pthread_mutex_unlock(&capture_lock);
	return r;
}

API cuStreamBeginCapture(CUstream s) { ENTRY(cuStreamBeginCapture, capture_begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL)); }
API cuStreamBeginCapture_ptsz(CUstream s)
{
	ENTRY(cuStreamBeginCapture, capture_begin(per_thread(s), CU_STREAM_CAPTURE_MODE_GLOBAL, NULL));
}
API cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode) { ENTRY(cuStreamBeginCapture, capture_begin(s, mode, NULL)); }
API cuStreamBeginCapture_v2_ptsz(CUstream s, CUstreamCaptureMode mode)
{
	ENTRY(cuStreamBeginCapture, capture_begin(per_thread(s), mode, NULL));
}

static CUresult capture_begin_into(CUstream s, CUgraph g, CUstreamCaptureMode mode)
{
	TRY(driver_ready());
	return handle_want(g, HANDLE_GRAPH, "cuStreamBeginCaptureToGraph") == NULL ? CUDA_ERROR_INVALID_VALUE : capture_begin(s, mode, g);
}

API cuStreamBeginCaptureToGraph(CUstream s, CUgraph g, const CUgraphNode *after, const void *edges, size_t count, CUstreamCaptureMode mode)
{
	(void)after, (void)edges, (void)count;
	ENTRY(cuStreamBeginCaptureToGraph, capture_begin_into(s, g, mode));
}

API cuStreamBeginCaptureToGraph_ptsz(CUstream s, CUgraph g, const CUgraphNode *after, const void *edges, size_t count,
				     CUstreamCaptureMode mode)
{
	(void)after, (void)edges, (void)count;
	ENTRY(cuStreamBeginCaptureToGraph, capture_begin_into(per_thread(s), g, mode));
}

API cuStreamEndCapture(CUstream s, CUgraph *out) { ENTRY(cuStreamEndCapture, capture_finish(s, out)); }
API cuStreamEndCapture_ptsz(CUstream s, CUgraph *out) { ENTRY(cuStreamEndCapture, capture_finish(per_thread(s), out)); }

struct capture_info {
	int status;
	uint64_t number;
	CUgraph graph;
	const CUgraphNode *last; /* NULL: none */
};

static CUresult capture_ask(CUstream s, struct capture_info *out)
{
	struct context *context;
	struct capture_stream *in;
	CUresult r = CUDA_SUCCESS;

	TRY(current_context(&context));
	TRY(stream_check(s));
	*out = (struct capture_info){.status = CU_STREAM_CAPTURE_STATUS_NONE};
	if (!captures())
		return r;
	pthread_mutex_lock(&capture_lock);
	in = capture_is_legacy(s) ? NULL : capture_find(s);
	if (capture_is_legacy(s))
		r = capture_implicit(context, false);
	if (in != NULL && in->capture->invalid)
		out->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
	else if (in != NULL)
		*out = (struct capture_info){CU_STREAM_CAPTURE_STATUS_ACTIVE, in->capture->number, in->capture->graph,
					     in->last == NULL ? NULL : &in->last};
	pthread_mutex_unlock(&capture_lock);
	return r;
}

API cuStreamIsCapturing(CUstream s, int *status)
{
	struct capture_info i;
	if (status == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(capture_ask(s, &i));
	*status = i.status;
	return CUDA_SUCCESS;
}

API cuStreamIsCapturing_ptsz(CUstream s, int *status) { return cuStreamIsCapturing(per_thread(s), status); }

API cuStreamGetCaptureInfo_v2(CUstream s, int *status, uint64_t *number, CUgraph *graph, const CUgraphNode **after, size_t *count)
{
	struct capture_info i;
	if (status == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(capture_ask(s, &i));
	*status = i.status;
	if (number != NULL)
		*number = i.number;
	if (graph != NULL)
		*graph = i.graph;
	if (after != NULL)
		*after = i.last;
	if (count != NULL)
		*count = i.last != NULL;
	return CUDA_SUCCESS;
}

API cuStreamGetCaptureInfo_v2_ptsz(CUstream s, int *status, uint64_t *number, CUgraph *graph, const CUgraphNode **after, size_t *count)
{
	return cuStreamGetCaptureInfo_v2(per_thread(s), status, number, graph, after, count);
}

API cuStreamGetCaptureInfo(CUstream s, int *status, uint64_t *number)
{
	return cuStreamGetCaptureInfo_v2(s, status, number, NULL, NULL, NULL);
}

API cuStreamGetCaptureInfo_ptsz(CUstream s, int *status, uint64_t *number)
{
	return cuStreamGetCaptureInfo_v2(per_thread(s), status, number, NULL, NULL, NULL);
}

/* Edges carry no data here. */
API cuStreamGetCaptureInfo_v3(CUstream s, int *status, uint64_t *number, CUgraph *graph, const CUgraphNode **after, const void **edges,
			      size_t *count)
{
	if (edges != NULL)
		*edges = NULL;
	return cuStreamGetCaptureInfo_v2(s, status, number, graph, after, count);
}

API cuStreamGetCaptureInfo_v3_ptsz(CUstream s, int *status, uint64_t *number, CUgraph *graph, const CUgraphNode **after, const void **edges,
				   size_t *count)
{
	return cuStreamGetCaptureInfo_v3(per_thread(s), status, number, graph, after, edges, count);
}

API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode before = capture_thread_mode;
	TRY(driver_ready());
	if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	capture_thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}
