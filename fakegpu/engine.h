/* The engine of a device decides which context's kernels run when.
 *
 * Kernels fill the device, so one context runs at a time. Contexts that have work take turns, each
 * for at most its slice; a switch to another context costs time. A context without work is skipped,
 * and a context that runs out of work ends its turn. The work of a context is done in the order in
 * which it was submitted, whatever its streams; this keeps every order that streams and events ask
 * for. An event takes no time, but the device reaches it in its context's turn only. So the time
 * between the events before and behind a kernel does not include the wait for that turn.
 *
 * Copies and host functions are different: they run beside the kernels, and begin when the work
 * before them in their stream is done. They delay the work after them in this stream, and nothing
 * else. A context that has such work is *apart*: of the kernels that may start in its streams, the
 * first one runs, and entries that take no time are reached at once.
 *
 * No thread runs the engine. Each process that submits work or asks about it advances the engine
 * from its last known time to now. The result is pure arithmetic: it does not depend on which
 * process does it, or when.
 *
 * The engine is in the machine's file, under a lock that the kernel releases when its owner dies.
 * There are two copies of the books: the holder of the lock changes the copy that is not valid, and
 * then makes it the valid one with one store. A process that is killed before that store has
 * changed nothing. Queue entries are written in place. Entries that the valid copy does not count
 * yet belong to no context. The times in the others are read only if the valid copy counts them as
 * reached, and computing them again gives the same times. */
#ifndef FAKEGPU_ENGINE_H
#define FAKEGPU_ENGINE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { ENGINE_CONTEXTS = 256, ENGINE_QUEUE = 1024, ENGINE_NONE = ENGINE_CONTEXTS };

/* The slice that a group of channels has before libcuda sets it, and the time that an H200 needs
 * for a switch between contexts. After a switch it does no work in the first 40 microseconds of the
 * slice either; the stand-in leaves that out unless FAKEGPU_RESUME says so. */
enum { ENGINE_FIRST_SLICE = 1024 * 1000, ENGINE_SWITCH = 180 * 1000 }; /* ns */

enum engine_state { ENGINE_FREE, ENGINE_LIVE, ENGINE_ENDED };

/* A unit of work that is submitted: a kernel; an event, which takes no time; or work that runs
 * beside kernels (beside). An entry is named by its number plus one; 0 means none. */
struct engine_step {
	uint64_t ns;
	bool beside;
	uint64_t after, also; /* entries that must end before it: of its own stream, and of another one; 0: none */
};

/* A point in a context's work: the end of a kernel or of a copy, or an event. */
struct engine_entry {
	uint64_t end; /* ns of the context's work that come before it; not where it is apart */
	uint64_t
		at; /* when it is reached, on the machine's clock; once `head` is past it, or, where the context is apart, if that is not later
		       * than the books. ENGINE_NEVER: it is not known yet */
	struct engine_step step;
};

#define ENGINE_NEVER UINT64_MAX

/* A context in the books. An ended context stays until its entry is needed. All times in ns. */
struct engine_context {
	uint32_t state;
	uint32_t slot; /* of the process */
	uint64_t identity;
	uint32_t pid;    /* as NVML shows it */
	uint32_t number; /* a number that no other context of the device has ever had */
	uint64_t slice;
	uint64_t submitted, done; /* of work */
	uint64_t tail, head;      /* entries submitted, and reached; entry i is queue[i % ENGINE_QUEUE] */
	uint64_t front, left;     /* if it is apart: the running kernel, or 0, and the rest of its time */
	uint64_t wake;            /* if it is apart: when the next work beside kernels ends */
	uint32_t apart, pad;
	uint64_t busy; /* time for which it had work; if it has work now, up to `since` */
	uint64_t since;
	uint64_t turns;
	uint64_t ended; /* when it ended */
};

struct engine_books {
	uint64_t now; /* the books are complete up to this time */
	uint64_t idle, switching, switches;
	uint64_t slice_left, switch_left; /* of the turn of `loaded` */
	uint32_t loaded;                  /* the context whose turn it is, or was last */
	uint32_t high;                    /* entries below this were used at some time */
	uint32_t apart, pad;              /* how many contexts are apart */
	struct engine_context context[ENGINE_CONTEXTS];
};

struct engine {
	pthread_mutex_t lock; /* robust, shared by all processes */
	uint32_t truth;       /* which copy of the books is valid; atomic */
	uint32_t numbers;     /* how many context numbers were given out */
	struct engine_books books[2];
	struct engine_entry queue[ENGINE_CONTEXTS][ENGINE_QUEUE];
};

/* Initialises the engine of a new machine, before another process can see it. */
void engine_make(struct engine *e);

/* Takes the lock, and returns a copy of the books that may be changed. */
struct engine_books *engine_open(struct engine *e);
/* Releases the lock. With `keep` the changed copy becomes the valid one, otherwise it is dropped. */
void engine_close(struct engine *e, struct engine_books *b, bool keep);

/* The functions below take books that engine_open has returned. */

/* The cost of going from one context to another, in ns: the switch, and the start of the next
 * context's slice, in which it does no work yet. A context whose slice is no longer than that
 * start does nothing while another context has work. */
struct engine_costs {
	uint64_t switch_ns, resume_ns;
};

void engine_advance(struct engine *e, struct engine_books *b, uint64_t now, struct engine_costs costs);

/* Returns an entry for a context; ENGINE_NONE if live contexts have all entries. */
unsigned engine_join(struct engine *e, struct engine_books *b, unsigned slot, uint64_t identity, uint32_t pid);
/* Ends a context: its work is dropped, and its entry in the books stays. */
void engine_leave(struct engine_books *b, unsigned i);

bool engine_is_full(const struct engine_books *b, unsigned i);
/* Adds an entry to a context's queue, which must not be full (engine_is_full). */
void engine_submit(struct engine *e, struct engine_books *b, unsigned i, struct engine_step step);

/* engine_has_work returns true if a context has a kernel to run; engine_is_reached, if an entry was
 * reached. */
bool engine_has_work(const struct engine_context *c);
bool engine_is_reached(const struct engine *e, const struct engine_books *b, unsigned i, uint64_t number);

/* Returns the earliest time at which entry `number` of a context can be reached, if no other
 * context runs before it after the current turn. For a context that is apart: the earliest time at
 * which any entry can be reached. */
uint64_t engine_soonest(const struct engine *e, const struct engine_books *b, unsigned i, uint64_t number, struct engine_costs costs);

#endif
