/* What a context has to do on its device: the process's side of the engine (engine.h).
 *
 * Time is on where FAKEGPU_KERNEL says what kernels take. Where it is off nothing is
 * submitted, and everything is done at once. */
#ifndef FAKEGPU_WORK_H
#define FAKEGPU_WORK_H

#include <stdbool.h>
#include <stdint.h>

struct context;
struct work_mark;

/* Of a context, in it. `open`, `number` and the marks are under work.c's lock. */
struct work {
	bool open;
	unsigned device, index;   /* ENGINE_NONE: the engine has no place for it, and its work takes no time */
	uint32_t number;          /* the engine's; another one each time that it is opened */
	struct work_mark **marks; /* by place in the queue: what wants the time of that entry */
	uint64_t last;            /* as struct stream's, of the per-thread stream, of which there is one here; atomic */
	uint64_t blocking;        /* the same, of all streams that wait for the legacy one; atomic */
};

/* A point in a context's work whose time is wanted: an event. */
struct work_mark {
	struct work *work; /* NULL: reached, or not set */
	uint32_t number;   /* work's, when it was set */
	uint64_t entry;
	uint64_t at; /* when it was reached */
};

extern bool work_timed; /* time is on; constant after cuInit */

/* Reads FAKEGPU_KERNEL. */
void work_load(void);
/* What a kernel of this name takes: so many ns, and so many more for each block. */
void work_duration(const char *kernel, uint64_t *ns, uint64_t *ns_per_block);

/* A context begins: takes its place in the engine. And ends. */
void work_open(struct context *c);
void work_close(struct context *c);

/* Submits ns of work, and a mark at its end where one is given; waits where the queue is full. The number of
 * the entry, plus one. */
uint64_t work_submit(struct work *w, uint64_t ns, struct work_mark *mark);

/* Whether the first `count` entries are done; and waits until they are, or the context ends. */
bool work_done(struct work *w, uint64_t count);
void work_wait(struct work *w, uint64_t count);
void work_wait_all(struct work *w);

/* Whether a mark was reached, and when. */
bool work_reached(struct work_mark *mark, uint64_t *at);
void work_wait_mark(struct work_mark *mark);
/* Nobody wants its time any more. */
void work_forget(struct work_mark *mark);

/* The slice of a context, in microseconds; false where the engine does not know it (any more). */
bool work_slice_set(unsigned device, uint32_t number, uint64_t us);
bool work_slice_get(unsigned device, uint32_t number, uint64_t *us);

#endif
