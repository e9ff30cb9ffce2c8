/* Streams: queues of a context's work. All work is done at once, except with FAKEGPU_QUEUE (it is
 * done when a thread waits for it), or if kernels take time (work.h). */
#ifndef FAKEGPU_STREAM_H
#define FAKEGPU_STREAM_H

#include "driver.h"

struct stream {
	struct handle handle;
	unsigned flags;
	int priority;
	uint64_t id;
	unsigned queued; /* launches that no thread has waited for; atomic */
	uint64_t last;   /* number of entries of its context's work up to the end of this stream's work; atomic */
};

/* The legacy stream and every other stream wait for each other, except streams made with this flag. */
enum { STREAM_NON_BLOCKING = 1 };

/* NULL, legacy and per-thread need no creating. */
static inline bool stream_is_builtin(CUstream s) { return (uintptr_t)s <= (uintptr_t)CU_STREAM_PER_THREAD; }

/* Returns the count of a stream's launches; NULL if it is destroyed. The built-in streams share one
 * count of the process. */
unsigned *stream_queue_of(CUstream s);
/* stream_work returns the work that a stream is a part of, and stream_last the entry at which the
 * stream ends in it. */
struct work *stream_work(struct context *c, CUstream s);
uint64_t stream_last(struct context *c, CUstream s);
/* Puts a step at the end of a stream, and a mark if mark is not NULL. The legacy stream and the
 * streams that wait for it are one queue, in the order of submission. */
void stream_put(struct context *c, CUstream s, struct engine_step step, struct work_mark *mark);
/* Called when a thread has waited for the stream: its queue is empty. */
void stream_wait(CUstream s);

#endif
