/* Events: points in streams, that streams and threads wait for and whose times programs compare. */
#include "capture.h"
#include "fakegpu.h"
#include "stream.h"

struct event {
	struct handle handle;
	CUstream stream; /* that it was recorded in */
	bool recorded;
	unsigned flags;
	struct work_mark mark; /* when, on the machine's clock */
	struct capture_point captured;
};

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

static CUresult event_get(CUevent handle, const char *call, struct event **out)
{
	TRY(driver_ready());
	*out = handle_want(handle, HANDLE_EVENT, call);
	return *out == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

API cuEventDestroy_v2(CUevent handle)
{
	struct event *e;
	TRY(event_get(handle, "cuEventDestroy", &e));
	if (work_timed)
		work_forget(&e->mark);
	handle_drop(e);
	return CUDA_SUCCESS;
}

API cuEventDestroy(CUevent e) { return cuEventDestroy_v2(e); }

static unsigned long event_count;

EXPORT unsigned long fakegpu_events(void) { return load_relaxed(&event_count); }

static CUresult event_record(CUevent handle, CUstream s)
{
	struct context *c;
	struct event *e;
	TRY(current_context(&c));
	TRY(stream_check(s));
	TRY(event_get(handle, "cuEventRecord", &e));
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
	add_relaxed(&event_count, 1);
	return CUDA_SUCCESS;
}

API cuEventRecord(CUevent e, CUstream s) { ENTRY(cuEventRecord, event_record(e, s)); }
API cuEventRecord_ptsz(CUevent e, CUstream s) { ENTRY(cuEventRecord, event_record(e, per_thread(s))); }

API cuEventRecordWithFlags(CUevent e, CUstream s, unsigned flags)
{
	(void)flags;
	ENTRY(cuEventRecordWithFlags, event_record(e, s));
}

API cuEventRecordWithFlags_ptsz(CUevent e, CUstream s, unsigned flags)
{
	(void)flags;
	ENTRY(cuEventRecordWithFlags, event_record(e, per_thread(s)));
}

API cuEventQuery(CUevent handle)
{
	struct event *e;
	TRY(event_get(handle, "cuEventQuery", &e));
	TRY(capture_sync_event(&e->captured));
	TRY(capture_unsafe());
	return work_timed && !work_reached(&e->mark, NULL) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult event_synchronize(CUevent handle)
{
	struct event *e;
	TRY(event_get(handle, "cuEventSynchronize", &e));
	TRY(capture_sync_event(&e->captured));
	if (work_timed)
		work_wait_mark(&e->mark);
	stream_wait(e->stream);
	pools_return_slack();
	return CUDA_SUCCESS;
}

API cuEventSynchronize(CUevent e) { ENTRY(cuEventSynchronize, event_synchronize(e)); }

API cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to)
{
	uint64_t since, until;
	struct event *a, *b;
	TRY(event_get(from, "cuEventElapsedTime", &a));
	TRY(event_get(to, "cuEventElapsedTime", &b));
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

/* Between contexts the call itself waits. */
static CUresult event_wait(CUstream s, CUevent handle)
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
	ENTRY(cuStreamWaitEvent, event_wait(s, e));
}

API cuStreamWaitEvent_ptsz(CUstream s, CUevent e, unsigned flags)
{
	(void)flags;
	ENTRY(cuStreamWaitEvent, event_wait(per_thread(s), e));
}
