/* The data of a context's meter: its streams, and the batches of their launches. meter.h explains
 * how it measures. */
#ifndef RATION_METER_STATE_H
#define RATION_METER_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/busy.h"
#include "compute/chance.h"
#include "device.h"
#include "compute/event_clock.h"
#include "mark.h"

/* relaxed and set read and write fields that other threads use at the same time, if no order with
 * other fields is needed. */
#define relaxed(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define set(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)

enum {
	METER_BATCHES = 64, /* batches of a context, and the most launches of a batch */
	METER_STREAMS = 96  /* streams of a context: more than METER_BATCHES, so one without a batch can be replaced */
};

/* A batch: launches of a stream, behind the last of which an event was recorded. Times are CPU
 * times in ns. */
struct meter_batch {
	CUevent start, end;
	bool follows;    /* the batch begins with the end of the stream's last batch, and not with start */
	bool superseded; /* its chosen launch would have been measured anyway */
	uint32_t stands; /* if its launch was chosen by chance, how many launches it was chosen from; otherwise 0 */
	unsigned stream; /* index of its stream in struct meter */
	uint32_t launches;
	uint64_t guess_ns;  /* estimate of its time, made when it was closed */
	uint64_t started;   /* when start was recorded, if the context had nothing under way then; otherwise 0 */
	uint64_t sure;      /* not 0: the stream had work from this time on for certain, and before that for guess_ns at most */
	uint64_t handed_ns; /* time from start to the start of its first launch, if known; otherwise 0 */
	uint64_t at;        /* when end was recorded */
	uint64_t first;     /* when its first launch was made */
};

/* A stream of a context. Every launch reads the atomic fields without the mark; the other fields
 * are guarded by the meter's mark. Times are CPU times in ns unless noted. */
struct meter_stream {
	struct meter *meter; /* the meter that has this stream */
	CUstream stream;
	CUcontext context;  /* NULL: the place is free; atomic */
	const void *thread; /* the thread that a per-thread stream belongs to, otherwise NULL; atomic */
	uint64_t last;      /* when it was last launched on; atomic */
	uint64_t look;      /* a launch after this time is looked at; atomic */
	uint64_t pause;     /* so is a launch that comes this long after the last one; atomic */
	uint32_t allowance; /* and one that makes this many launches since the last event; atomic */
	uint32_t pending;   /* launches since the last event; atomic */
	uint64_t first;     /* when the first of the pending launches was made; atomic */
	uint32_t copied;    /* a copy came after the last launch; atomic */
	bool graph;         /* the last launch was a graph; atomic */
	enum {
		AFTER_NOTHING,
		AFTER_START,
		AFTER_END
	} /* what the last event was; AFTER_NOTHING: not known */
	after;
	CUevent start;
	uint64_t started;          /* see struct meter_batch */
	uint64_t ready;            /* when the call that recorded start had returned */
	uint64_t recorded;         /* when the last event was recorded */
	uint32_t run;              /* grows with each launch that is looked at, since the cap last made the program wait */
	uint32_t pauses;           /* the value of meter.pauses then */
	uint32_t burst;            /* launches since the stream was last found idle, without pending */
	uint32_t wary;             /* how many of the next launches are each looked at, because earlier ones were missed */
	bool sampled;              /* only some of its launches are measured, by chance */
	uint64_t missed;           /* when launches were last missed before a long pause */
	uint32_t one_of;           /* one of this many launches is chosen by chance, on average */
	uint64_t apart_ns;         /* mean time between launches since the last event */
	uint32_t stands;           /* see struct meter_batch; of the last launch that was looked at */
	uint32_t ends;             /* its closed batches that are not measured yet */
	uint64_t owed_ns;          /* estimated time of lost launches that was not charged yet, for lack of elapsed time */
	uint64_t launch_ns;        /* time of a launch in the last batch; 0: not known */
	struct chance chance;      /* estimate of a lost launch, from all chosen ones */
	struct chance chance_lost; /* the same, from the chosen ones that would not have been measured otherwise */
	double until;              /* end of the last measured batch, in ms by events; < 0: not known */
};

/* A context's meter. The fields that are not atomic are guarded by mark. */
struct meter {
	CUcontext handle;                                          /* NULL: free; atomic */
	enum { CONTEXT_LIVES, CONTEXT_ENDS, CONTEXT_ENDED } state; /* atomic */
	struct mark mark;
	struct device *device;
	uint32_t closed;                   /* closed batches that are not measured yet: the first ones of batch[]; atomic */
	uint32_t under_way;                /* launches in the closed batches; atomic */
	uint64_t flight_ns;                /* estimated time of these launches, in ns; atomic */
	uint64_t oldest;                   /* when the first closed batch was closed; atomic */
	uint64_t first;                    /* when the work of the closed batches began */
	uint32_t given_up;                 /* see meter_give_up; atomic */
	uint64_t uncharged;                /* since when the context has had work that is not counted yet; 0: it has none; atomic */
	uint32_t streams;                  /* entries of stream[] below this were used at some time */
	uint32_t pauses;                   /* how often the cap made a thread wait until nothing was under way */
	double lately_ns, lately_launches; /* sums of the time and the number of measured launches, older ones with less weight */
	struct event_clock clock;
	struct busy busy;
	struct meter_batch batch[METER_BATCHES];
	struct meter_stream stream[METER_STREAMS];
};

#endif
