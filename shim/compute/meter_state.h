/* What a context's meter keeps: its streams, and the batches of their launches. How it measures by them is told in meter.h. */
#ifndef RATION_METER_STATE_H
#define RATION_METER_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/busy.h"
#include "compute/chance.h"
#include "device.h"
#include "compute/event_clock.h"
#include "mark.h"

/* relaxed reads and set writes what other threads use at the same time, where no order with
 * anything else is needed. */
#define relaxed(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define set(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)

enum {
	METER_BATCHES = 64, /* of a context, and launches of a batch */
	METER_STREAMS = 96  /* of a context: more than can have a batch */
};

/* Launches of a stream, the last of which an event follows. */
struct meter_batch {
	CUevent start, end;
	bool follows;    /* it begins with the end of the stream's last batch, and not with start */
	bool superseded; /* that one would have been measured anyway */
	uint32_t stands; /* how many launches the one that is in it stands for, if it was chosen by chance; or 0 */
	unsigned stream; /* its place */
	uint32_t launches;
	uint64_t guess_ns;  /* what it was thought to take */
	uint64_t started;   /* when start was recorded, if nothing of the context was under way; or 0 */
	uint64_t sure;      /* not 0: it had work from here on for sure, and before that no more than was thought */
	uint64_t handed_ns; /* how long after start its first launch was handed over, where that is known */
	uint64_t at;        /* when end was */
};

/* A stream. What every launch reads without the mark is atomic. */
struct meter_stream {
	struct meter *meter; /* whose it is */
	CUstream stream;
	CUcontext context;  /* NULL: the place is free; atomic */
	const void *thread; /* whose stream it is, for the per-thread stream; atomic */
	uint64_t last;      /* when a launch last came here; atomic */
	uint64_t look;      /* when one has to be looked at; atomic */
	uint64_t pause;     /* and after what a pause, in ns; atomic */
	uint32_t allowance; /* and after how many without an event; atomic */
	uint32_t pending;   /* launches since the last event; atomic */
	uint32_t copied;    /* a copy came after the last launch; atomic */
	enum {
		AFTER_NOTHING,
		AFTER_START,
		AFTER_END
	} /* which that was. Nothing: it is not known */
	after;
	CUevent start;
	uint64_t started;  /* as in struct meter_batch */
	uint64_t ready;    /* when start had been recorded */
	uint64_t recorded; /* when */
	uint32_t run;      /* launches since the last pause, and which that was */
	uint32_t pauses;
	uint32_t burst;            /* launches since the stream was last found idle, but for pending */
	uint32_t wary;             /* launches that are looked at each, as some before had no event */
	bool sampled;              /* of its launches only some are measured */
	uint64_t missed;           /* when launches were last missed before a pause */
	uint32_t one_of;           /* launches of which one is chosen by chance, in the mean */
	uint64_t apart_ns;         /* between launches, in the mean since the last event */
	uint32_t stands;           /* as in struct meter_batch, for the last launch that was looked at */
	uint32_t ends;             /* batches that await their end */
	uint64_t owed_ns;          /* of what launches are taken for that were lost, there was no time for this yet */
	uint64_t launch_ns;        /* what a launch took, in the last batch; 0: not known */
	struct chance chance;      /* what one takes that is not measured, by all that were chosen */
	struct chance chance_lost; /* and by those of them that would not have been measured otherwise */
	double until;              /* the end of the last batch that was measured; < 0: not known */
};

/* A context's meter. What is not atomic is the mark's. */
struct meter {
	CUcontext handle;                                          /* NULL: free; atomic */
	enum { CONTEXT_LIVES, CONTEXT_ENDS, CONTEXT_ENDED } state; /* atomic */
	struct mark mark;
	struct device *device;
	uint32_t closed;                   /* batches that await their end, the first ones of batch[]; atomic */
	uint32_t under_way;                /* launches in them; atomic */
	uint64_t flight_ns;                /* what they are thought to take; atomic */
	uint64_t oldest;                   /* when the first of them was closed; atomic */
	uint32_t given_up;                 /* atomic */
	uint32_t pauses;                   /* how often the cap made a thread wait until nothing was under way */
	double lately_ns, lately_launches; /* what launches took, the older the less it counts */
	struct event_clock clock;
	struct busy busy;
	struct meter_batch batch[METER_BATCHES];
	struct meter_stream stream[METER_STREAMS];
};

#endif
