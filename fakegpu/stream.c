#include "stream.h"

#include "knobs.h"

CUresult stream_check(CUstream s)
{
	if (stream_is_builtin(s) || handle_get(s, HANDLE_STREAM) != NULL)
		return CUDA_SUCCESS;
	report_error("%p is not a stream (destroyed already?)", (void *)s);
	return CUDA_ERROR_INVALID_HANDLE;
}

unsigned *stream_queue_of(CUstream s)
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

struct work *stream_work(struct context *c, CUstream s)
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

uint64_t stream_last(struct context *c, CUstream s)
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

void stream_put(struct context *c, CUstream s, struct engine_step step, struct work_mark *mark)
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

void stream_wait(CUstream s)
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
