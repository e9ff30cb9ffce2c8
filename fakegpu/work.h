/* What a context has to do on its device: the process's side of the engine (engine.h).
 *
 * Time is on where FAKEGPU_KERNEL says what kernels take. Where it is off nothing is
 * submitted, and everything is done at once. */
#ifndef FAKEGPU_WORK_H
#define FAKEGPU_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "engine.h"

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

/* A context begins on a device: takes its place in the engine. And ends. */
void work_open(struct work *w, unsigned device);
void work_close(struct work *w);

/* Submits work, and a mark at its end where one is given; waits where the queue is full. The entry, as the engine
 * names it. */
uint64_t work_submit(struct work *w, struct engine_step step, struct work_mark *mark);

/* Whether an entry, and so what comes before it in its stream, is done; and waits until it is, or the context
 * ends. work_wait_all waits for all that was submitted. */
bool work_done(struct work *w, uint64_t entry);
void work_wait(struct work *w, uint64_t entry);
void work_wait_all(struct work *w);

/* Whether a mark was reached, and when. */
bool work_reached(struct work_mark *mark, uint64_t *at);
/* The entry at a mark that was not reached yet; 0 where it was. */
uint64_t work_entry(struct work_mark *mark);
void work_wait_mark(struct work_mark *mark);
/* Nobody wants its time any more. */
void work_forget(struct work_mark *mark);

/* The slice of a context, in microseconds; false where the engine does not know it (any more). */
bool work_slice_set(unsigned device, uint32_t number, uint64_t us);
bool work_slice_get(unsigned device, uint32_t number, uint64_t *us);

#endif
