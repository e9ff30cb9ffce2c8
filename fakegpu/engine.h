/* The engine of a device: which context's kernels run when.
 *
 * Kernels fill the device, so one context runs at a time. Contexts that have work take
 * turns, each for its slice at most; when another context follows, the switch costs time.
 * A context without work is skipped, and one that runs out of it ends its turn. Work of a
 * context is done in the order in which it was submitted, whatever its streams, which
 * keeps every order that streams and events ask for.
 *
 * But copies and host functions run beside the kernels, for a time of their own: from when what is
 * before them in their stream is done. They hold up what comes after them in it, and nothing else. A
 * context that has some is *apart*: of what its streams allow, the first kernel runs, and what takes no time is
 * reached at once.
 *
 * Nobody runs the engine. It is advanced, from the last instant that it knows to now, by
 * each process that submits or asks; what it does between is a matter of arithmetic and the same whoever does
 * it, and when.
 *
 * All of it lies in the machine's file, under a lock that the kernel lets go of when its owner
 * dies. There are two copies of the books: the caller that has the lock changes the one
 * that is not true, then names it as the true one in one store. A process that is killed
 * before that store has changed nothing. Entries of the queues are written in place: those that
 * the true copy does not count yet are nobody's, and the times in those that it does are
 * read only once it says that they were reached, and come out the same when they are
 * found again.
 */
#ifndef FAKEGPU_ENGINE_H
#define FAKEGPU_ENGINE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { ENGINE_CONTEXTS = 256, ENGINE_QUEUE = 1024, ENGINE_NONE = ENGINE_CONTEXTS };

/* What a group of channels has before libcuda sets it, what libcuda sets, and what an H200 takes for a switch. */
enum { ENGINE_FIRST_SLICE = 1024 * 1000, ENGINE_SWITCH = 180 * 1000 }; /* ns */

enum engine_state { ENGINE_FREE, ENGINE_LIVE, ENGINE_ENDED };

/* What is submitted: a kernel, or, of no length, an event; or what runs beside kernels. An entry is named by its
 * number plus one; 0 is none. */
struct engine_step {
	uint64_t ns;
	bool beside;
	uint64_t after, also; /* entries that come before it: of its stream, and of another */
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

/* An ended context keeps its books until its place is needed. All times in ns. */
struct engine_context {
	uint32_t state;
	uint32_t slot; /* of the process */
	uint64_t identity;
	uint32_t pid;    /* as NVML shows it */
	uint32_t number; /* no other context of the device ever had it */
	uint64_t slice;
	uint64_t submitted, done; /* of work */
	uint64_t tail, head;      /* entries submitted, and reached; entry i is queue[i % ENGINE_QUEUE] */
	uint64_t front, left;     /* where it is apart: the kernel that runs, or 0, and what is left of it */
	uint64_t wake;            /* and when the next of what runs beside ends */
	uint32_t apart, pad;
	uint64_t busy; /* the time that it had work, up to `since` where it has some now */
	uint64_t since;
	uint64_t turns;
	uint64_t ended; /* when */
};

struct engine_books {
	uint64_t now; /* the engine is known up to here */
	uint64_t idle, switching, switches;
	uint64_t slice_left, switch_left; /* of the turn of `loaded` */
	uint32_t loaded;                  /* whose turn it is, or was last */
	uint32_t high;                    /* places below this were used at some time */
	uint32_t apart, pad;              /* contexts that are */
	struct engine_context context[ENGINE_CONTEXTS];
};

struct engine {
	pthread_mutex_t lock; /* robust, of all processes */
	uint32_t truth;       /* which copy is true; atomic */
	uint32_t numbers;     /* given out so far */
	struct engine_books books[2];
	struct engine_entry queue[ENGINE_CONTEXTS][ENGINE_QUEUE];
};

/* Makes a new machine's engine ready, before another process can see it. */
void engine_make(struct engine *e);

/* Takes the lock, and returns a copy of the books that may be changed. */
struct engine_books *engine_open(struct engine *e);
/* Lets go of the lock. With `keep` the copy becomes the truth, else it is forgotten. */
void engine_close(struct engine *e, struct engine_books *b, bool keep);

/* All that follow take an open copy. */

void engine_advance(struct engine *e, struct engine_books *b, uint64_t now, uint64_t switch_ns);

/* A place for a context; ENGINE_NONE where all are taken by live ones. */
unsigned engine_join(struct engine *e, struct engine_books *b, unsigned slot, uint64_t identity, uint32_t pid);
/* The context leaves the round; its work is dropped and its books stay. */
void engine_leave(struct engine_books *b, unsigned i);

bool engine_is_full(const struct engine_books *b, unsigned i);
/* Adds an entry; there must be room. */
void engine_submit(struct engine *e, struct engine_books *b, unsigned i, struct engine_step step);

/* Whether a context has a kernel to run; and whether an entry was reached. */
bool engine_has_work(const struct engine_context *c);
bool engine_is_reached(const struct engine *e, const struct engine_books *b, unsigned i, uint64_t number);

/* The earliest instant at which entry `number` of a context can be reached: when, after the
 * turn that is under way, no other context runs before. Of one that is apart: at which anything can. */
uint64_t engine_soonest(const struct engine *e, const struct engine_books *b, unsigned i, uint64_t number, uint64_t switch_ns);

#endif
