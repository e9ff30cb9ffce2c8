/* The calls on streams. */
#include "capture.h"
#include "stream.h"

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
