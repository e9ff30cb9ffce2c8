/* Streams: queues of a context's work. Everything in them is done at once, unless
 * FAKEGPU_QUEUE says that it is done when a thread waits for it, or kernels take time (work.h). */
#ifndef FAKEGPU_STREAM_H
#define FAKEGPU_STREAM_H

#include "driver.h"

struct stream {
	struct handle handle;
	unsigned flags;
	int priority;
	uint64_t id;
	unsigned queued; /* launches that no thread has waited for; atomic */
	uint64_t last;   /* how many entries of its context's work come before the end of this stream's; atomic */
};

/* The legacy stream waits for all streams that are not made to be independent of it, and they for it. */
enum { STREAM_NON_BLOCKING = 1 };

/* NULL, legacy and per-thread need no creating. */
static inline bool stream_is_builtin(CUstream s) { return (uintptr_t)s <= (uintptr_t)CU_STREAM_PER_THREAD; }

/* The count of a stream's launches; NULL once it is destroyed. The streams that need no creating
 * have one of the process's. */
unsigned *stream_queue_of(CUstream s);
/* The work that a stream is a part of, and where the stream ends in it. */
struct work *stream_work(struct context *c, CUstream s);
uint64_t stream_last(struct context *c, CUstream s);
/* Puts a step, and a mark where one is given, at the end of a stream. Streams that wait for the
 * legacy one are one queue with it, in the order of submission. */
void stream_put(struct context *c, CUstream s, struct engine_step step, struct work_mark *mark);
/* A thread has waited for the stream: its queue is empty. */
void stream_wait(CUstream s);

#endif
