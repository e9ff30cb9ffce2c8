/* Streams and events. Everything is done at once, unless FAKEGPU_QUEUE says that it is
 * done when it is waited for, or kernels take time (work.h). */
#include "capture.h"
#include "driver.h"
#include "fakegpu.h"
#include "gate.h"
#include "knobs.h"

struct stream {
	struct handle handle;
	unsigned flags;
	int priority;
	uint64_t id;
	unsigned queued; /* launches that no thread has waited for; atomic */
	uint64_t last;   /* how many entries of its context's work come before the end of this stream's; atomic */
};

struct event {
	struct handle handle;
	CUstream stream; /* that it was recorded in */
	bool recorded;
	unsigned flags;
	struct work_mark mark; /* when, on the machine's clock */
	struct capture_point captured;
};

/* NULL, legacy and per-thread need no creating. */
static bool stream_is_builtin(CUstream s) { return (uintptr_t)s <= (uintptr_t)CU_STREAM_PER_THREAD; }

CUresult stream_check(CUstream s)
{
	if (stream_is_builtin(s) || handle_get(s, HANDLE_STREAM) != NULL)
		return CUDA_SUCCESS;
	report_error("%p is not a stream (destroyed already?)", (void *)s);
	return CUDA_ERROR_INVALID_HANDLE;
}

/* The count of a stream; NULL once it is destroyed. The streams that need no creating
 * have one of the process's. */
static unsigned *stream_queue_of(CUstream s)
{
	static unsigned builtin[2];
	struct stream *found;
	if (stream_is_builtin(s))
		return &builtin[s == CU_STREAM_PER_THREAD];
	found = handle_get(s, HANDLE_STREAM);
	return found == NULL ? NULL : &found->queued;
}

static bool stream_is_full(void *stream)
{
	const unsigned *n = stream_queue_of(stream);
	return n != NULL && load_acquire(n) >= knobs()->queue;
}

void stream_enqueue(CUstream s)
{
	unsigned *n;
	if (knobs()->queue == 0)
		return;
	while ((n = stream_queue_of(s)) != NULL && add_relaxed(n, 1) > knobs()->queue) {
		add_relaxed(n, -1u);
		gate_wait("queue", stream_is_full, s);
	}
}

/* The end of a stream in its context's work. The legacy stream waits for all that are not
 * made to be independent of it, and those for it. */
enum { STREAM_NON_BLOCKING = 1 };

static struct work *stream_work(struct context *c, CUstream s)
{
	struct stream *found = stream_is_builtin(s) ? NULL : handle_get(s, HANDLE_STREAM);
	return found == NULL ? &c->work : &found->handle.context->work;
}

const struct context *stream_context(CUstream s, const struct context *current)
{
	struct stream *found = stream_is_builtin(s) ? NULL : handle_get(s, HANDLE_STREAM);
	return found == NULL ? current : found->handle.context;
}

bool stream_is_blocking(CUstream s)
{
	struct stream *found = stream_is_builtin(s) ? NULL : handle_get(s, HANDLE_STREAM);
	return found == NULL || (found->flags & STREAM_NON_BLOCKING) == 0;
}

static uint64_t stream_last(struct context *c, CUstream s)
{
	struct stream *found = stream_is_builtin(s) ? NULL : handle_get(s, HANDLE_STREAM);
	if (found != NULL)
		return load_acquire(&found->last);
	return load_acquire(s == CU_STREAM_PER_THREAD ? &c->work.last : &c->work.blocking);
}

/* Threads that submit to one stream at the same time may end here in another order. */
static void stream_raise(uint64_t *last, uint64_t to)
{
	uint64_t now = load_relaxed(last);
	while (now < to && !cas_seq_cst(last, &now, to)) {
	}
}

/* Streams that wait for the legacy one are one queue with it, in the order of submission. */
static void stream_put(struct context *c, CUstream s, struct engine_step step, struct work_mark *mark)
{
	struct stream *found = stream_is_builtin(s) ? NULL : handle_get(s, HANDLE_STREAM);
	struct work *w = stream_work(c, s);
	uint64_t last;

	step.after = load_acquire(found != NULL && (found->flags & STREAM_NON_BLOCKING) != 0 ? &found->last : &w->blocking);
	last = work_submit(w, step, mark);
	if (found != NULL)
		stream_raise(&found->last, last);
	else if (s == CU_STREAM_PER_THREAD)
		stream_raise(&w->last, last);
	if (found == NULL || (found->flags & STREAM_NON_BLOCKING) == 0)
		stream_raise(&w->blocking, last);
}

void stream_submit(struct context *c, CUstream s, uint64_t ns) { stream_put(c, s, (struct engine_step){.ns = ns}, NULL); }

void stream_submit_beside(CUstream s, uint64_t ns)
{
	struct context *c;
	if (work_timed && ns > 0 && current_context(&c) == CUDA_SUCCESS)
		stream_put(c, s, (struct engine_step){.ns = ns, .beside = true}, NULL);
}

void stream_finish(struct context *c, CUstream s)
{
	if (work_timed)
		work_wait(stream_work(c, s), stream_last(c, s));
}

static void stream_wait(CUstream s)
{
	unsigned *n = stream_queue_of(s);
	if (n != NULL)
		store_release(n, 0);
}

static void stream_wait_handle(struct handle *h)
{
	if (h->kind == HANDLE_STREAM)
		stream_wait((CUstream)h);
}

void streams_wait(struct context *c)
{
	if (work_timed)
		work_wait_all(&c->work);
	if (knobs()->queue == 0)
		return;
	stream_wait(NULL);
	stream_wait(CU_STREAM_PER_THREAD);
	handle_each(c, stream_wait_handle);
}

CUdevice stream_device(CUstream s, CUdevice current)
{
	struct stream *found = stream_is_builtin(s) ? NULL : handle_get(s, HANDLE_STREAM);
	return found != NULL ? found->handle.context->device : current;
}

static CUresult stream_create(CUstream *out, unsigned flags, int priority)
{
	static uint64_t ids = 2;
	struct context *c;
	struct stream *s;

	TRY(current_context(&c));
	if (out == NULL || flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	s = handle_new(sizeof *s, HANDLE_STREAM, c);
	if (s == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	s->flags = flags;
	s->priority = priority;
	s->id = add_relaxed(&ids, 1);
	*out = s;
	return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream handle)
{
	struct stream *s;
	TRY(driver_ready());
	s = stream_is_builtin(handle) ? NULL : handle_want(handle, HANDLE_STREAM, "cuStreamDestroy");
	if (s == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	capture_forget(NULL, s);
	handle_drop(s);
	return CUDA_SUCCESS;
}

static CUresult stream_query(CUstream s)
{
	struct context *c;
	const unsigned *n;
	TRY(current_context(&c));
	TRY(stream_check(s));
	if (captures()) {
		TRY(capture_sync(s));
		TRY(capture_unsafe());
	}
	if (work_timed && !work_done(stream_work(c, s), stream_last(c, s)))
		return CUDA_ERROR_NOT_READY;
	n = stream_queue_of(s);
	return n != NULL && load_acquire(n) > 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult stream_synchronize(CUstream s)
{
	struct context *c;
	TRY(current_context(&c));
	TRY(stream_check(s));
	if (captures())
		TRY(capture_sync(s));
	stream_finish(c, s);
	stream_wait(s);
	pools_return_slack();
	return CUDA_SUCCESS;
}

API cuStreamCreate(CUstream *out, unsigned flags) { ENTRY(cuStreamCreate, stream_create(out, flags, 0)); }

API cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
	ENTRY(cuStreamCreateWithPriority, stream_create(out, flags, priority));
}

API cuStreamDestroy(CUstream s) { ENTRY(cuStreamDestroy, stream_destroy(s)); }
API cuStreamDestroy_v2(CUstream s) { ENTRY(cuStreamDestroy, stream_destroy(s)); }
API cuStreamSynchronize(CUstream s) { ENTRY(cuStreamSynchronize, stream_synchronize(s)); }
API cuStreamSynchronize_ptsz(CUstream s) { ENTRY(cuStreamSynchronize, stream_synchronize(per_thread(s))); }
API cuStreamQuery(CUstream s) { ENTRY(cuStreamQuery, stream_query(s)); }
API cuStreamQuery_ptsz(CUstream s) { ENTRY(cuStreamQuery, stream_query(per_thread(s))); }

/* Between contexts the call itself waits. */
static CUresult stream_wait_event(CUstream s, CUevent handle)
{
	struct context *c;
	struct event *e;
	uint64_t entry;
	TRY(current_context(&c));
	TRY(stream_check(s));
	e = handle_want(handle, HANDLE_EVENT, "cuStreamWaitEvent");
	if (e == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (captures()) {
		bool taken;
		TRY(capture_wait(s, &e->captured, &taken));
		if (taken)
			return CUDA_SUCCESS;
	}
	if (work_timed && stream_work(c, s) != &e->handle.context->work)
		work_wait_mark(&e->mark);
	else if (work_timed && (entry = work_entry(&e->mark)) != 0)
		stream_put(c, s, (struct engine_step){.also = entry}, NULL);
	return CUDA_SUCCESS;
}

API cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
	(void)flags;
	ENTRY(cuStreamWaitEvent, stream_wait_event(s, e));
}

API cuStreamWaitEvent_ptsz(CUstream s, CUevent e, unsigned flags)
{
	(void)flags;
	ENTRY(cuStreamWaitEvent, stream_wait_event(per_thread(s), e));
}

/* One question about a stream: its context, flags, priority or number. */
static CUresult stream_ask(CUstream handle, const void *out, struct stream *answer)
{
	struct context *c;
	TRY(current_context(&c));
	TRY(stream_check(handle));
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream_is_builtin(handle))
		*answer = (struct stream){.handle.context = c, .id = (uintptr_t)handle};
	else
		*answer = *handle;
	return CUDA_SUCCESS;
}

#define QUESTION(name, type, field)          \
	API name(CUstream s, type *out)      \
	{                                    \
		struct stream a;             \
		TRY(stream_ask(s, out, &a)); \
		*out = (type)a.field;        \
		return CUDA_SUCCESS;         \
	}                                    \
	API name##_ptsz(CUstream s, type *out) { return name(per_thread(s), out); }

QUESTION(cuStreamGetCtx, CUcontext, handle.context)
QUESTION(cuStreamGetFlags, unsigned, flags)
QUESTION(cuStreamGetPriority, int, priority)
QUESTION(cuStreamGetId, unsigned long long, id)
QUESTION(cuStreamGetDevice, CUdevice, handle.context->device)

API cuStreamGetCtx_v2(CUstream s, CUcontext *out, CUgreenCtx *green)
{
	if (green != NULL)
		*green = NULL;
	return cuStreamGetCtx(s, out);
}

API cuStreamGetCtx_v2_ptsz(CUstream s, CUcontext *out, CUgreenCtx *green) { return cuStreamGetCtx_v2(per_thread(s), out, green); }

API cuEventCreate(CUevent *out, unsigned flags)
{
	struct context *c;
	struct event *e;
	TRY(current_context(&c));
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	e = handle_new(sizeof *e, HANDLE_EVENT, c);
	if (e == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->flags = flags;
	*out = e;
	return CUDA_SUCCESS;
}

static CUresult stream_event_get(CUevent handle, const char *call, struct event **out)
{
	TRY(driver_ready());
	*out = handle_want(handle, HANDLE_EVENT, call);
	return *out == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

API cuEventDestroy_v2(CUevent handle)
{
	struct event *e;
	TRY(stream_event_get(handle, "cuEventDestroy", &e));
	if (work_timed)
		work_forget(&e->mark);
	handle_drop(e);
	return CUDA_SUCCESS;
}

API cuEventDestroy(CUevent e) { return cuEventDestroy_v2(e); }

static unsigned long stream_events;

EXPORT unsigned long fakegpu_events(void) { return load_relaxed(&stream_events); }

static CUresult stream_record(CUevent handle, CUstream s)
{
	struct context *c;
	struct event *e;
	TRY(current_context(&c));
	TRY(stream_check(s));
	TRY(stream_event_get(handle, "cuEventRecord", &e));
	e->stream = s;
	if (captures()) {
		bool taken;
		TRY(capture_record(s, &e->captured, &taken));
		if (taken)
			return CUDA_SUCCESS;
	}
	e->captured.capture = 0;
	if (!work_timed)
		store_relaxed(&e->mark.at, clock_now(machine_clock()));
	else if (stream_work(c, s) == &e->handle.context->work)
		stream_put(c, s, (struct engine_step){0}, &e->mark);
	else
		return CUDA_ERROR_INVALID_HANDLE; /* an event and its stream are of one context */
	store_release(&e->recorded, true);
	add_relaxed(&stream_events, 1);
	return CUDA_SUCCESS;
}

API cuEventRecord(CUevent e, CUstream s) { ENTRY(cuEventRecord, stream_record(e, s)); }
API cuEventRecord_ptsz(CUevent e, CUstream s) { ENTRY(cuEventRecord, stream_record(e, per_thread(s))); }

API cuEventRecordWithFlags(CUevent e, CUstream s, unsigned flags)
{
	(void)flags;
	ENTRY(cuEventRecordWithFlags, stream_record(e, s));
}

API cuEventRecordWithFlags_ptsz(CUevent e, CUstream s, unsigned flags)
{
	(void)flags;
	ENTRY(cuEventRecordWithFlags, stream_record(e, per_thread(s)));
}

API cuEventQuery(CUevent handle)
{
	struct event *e;
	TRY(stream_event_get(handle, "cuEventQuery", &e));
	TRY(capture_sync_event(&e->captured));
	TRY(capture_unsafe());
	return work_timed && !work_reached(&e->mark, NULL) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult stream_event_synchronize(CUevent handle)
{
	struct event *e;
	TRY(stream_event_get(handle, "cuEventSynchronize", &e));
	TRY(capture_sync_event(&e->captured));
	if (work_timed)
		work_wait_mark(&e->mark);
	stream_wait(e->stream);
	pools_return_slack();
	return CUDA_SUCCESS;
}

API cuEventSynchronize(CUevent e) { ENTRY(cuEventSynchronize, stream_event_synchronize(e)); }

API cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to)
{
	uint64_t since, until;
	struct event *a, *b;
	TRY(stream_event_get(from, "cuEventElapsedTime", &a));
	TRY(stream_event_get(to, "cuEventElapsedTime", &b));
	if (ms == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (a->captured.capture != 0 || b->captured.capture != 0)
		return CUDA_ERROR_CAPTURED_EVENT;
	if (!load_acquire(&a->recorded) || !load_acquire(&b->recorded) || ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) != 0)
		return CUDA_ERROR_INVALID_HANDLE;
	since = load_relaxed(&a->mark.at);
	until = load_relaxed(&b->mark.at);
	if (work_timed && (!work_reached(&a->mark, &since) || !work_reached(&b->mark, &until)))
		return CUDA_ERROR_NOT_READY;
	*ms = (float)(int64_t)(until - since) / 1e6f;
	return CUDA_SUCCESS;
}

API cuEventElapsedTime(float *ms, CUevent from, CUevent to) { return cuEventElapsedTime_v2(ms, from, to); }
