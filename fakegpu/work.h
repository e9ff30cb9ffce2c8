/* A context's work on its device: the process's side of the engine (engine.h).
 *
 * Kernels take time if FAKEGPU_KERNEL sets their durations (work_timed). Otherwise nothing is
 * submitted, and all work is done at once. */
#ifndef FAKEGPU_WORK_H
#define FAKEGPU_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "engine.h"

struct work_mark;

/* The work of a context; a field of struct context. `open`, `number` and `marks` are guarded by the
 * lock in work.c. */
struct work {
	bool open;
	unsigned device, index;   /* ENGINE_NONE: the engine has no free entry for it, and its work takes no time */
	uint32_t number;          /* the engine's number of it, a new one each time it is opened */
	struct work_mark **marks; /* by position in the queue: the mark that waits for that entry's time */
	uint64_t last;            /* like `last` of struct stream, for the per-thread stream, of which there is one here; atomic */
	uint64_t blocking;        /* the same for all streams that wait for the legacy stream; atomic */
};

/* A point in a context's work whose time is recorded: an event. */
struct work_mark {
	struct work *work; /* NULL: reached, or not set */
	uint32_t number;   /* number of the work when the mark was set */
	uint64_t entry;
	uint64_t at; /* when it was reached */
};

extern bool work_timed; /* kernels take time; constant after cuInit */

/* Reads FAKEGPU_KERNEL. */
void work_load(void);
/* Sets *ns to the duration of a kernel of this name, and *ns_per_block to the additional time for
 * each block. */
void work_duration(const char *kernel, uint64_t *ns, uint64_t *ns_per_block);

/* work_open is called when a context begins on a device: it takes an entry in the engine.
 * work_close is called when it ends. */
void work_open(struct work *w, unsigned device);
void work_close(struct work *w);

/* Submits work, with a mark at its end if mark is not NULL. It waits while the queue is full.
 * Returns the entry, as the engine numbers it. */
uint64_t work_submit(struct work *w, struct engine_step step, struct work_mark *mark);

/* work_done returns true if an entry, and so all before it in its stream, is done. work_wait waits
 * until it is, or until the context ends; work_wait_all waits for all that was submitted. */
bool work_done(struct work *w, uint64_t entry);
void work_wait(struct work *w, uint64_t entry);
void work_wait_all(struct work *w);
bool work_idle(struct work *w); /* nothing is left to wait for */

/* Returns true if a mark was reached, and sets *at to when. */
bool work_reached(struct work_mark *mark, uint64_t *at);
/* Returns the entry of a mark that was not reached yet; 0 if it was. */
uint64_t work_entry(struct work_mark *mark);
void work_wait_mark(struct work_mark *mark);
/* Removes a mark whose time is not needed any more. */
void work_forget(struct work_mark *mark);

/* Set and get the slice of a context, in microseconds. They return false if the engine does not
 * know the context (any more). */
bool work_slice_set(unsigned device, uint32_t number, uint64_t us);
bool work_slice_get(unsigned device, uint32_t number, uint64_t *us);

#endif
