/* How long a context's kernels occupied their device, found out by events beside launches. All
 * of a stream's launches between two events are a batch. A batch's time is that from its first
 * event to its last, if the stream had work all the while; and of batches of several streams that
 * overlap, the time counts once.
 *
 * So each launch that is looked at asks first whether the stream's last event has been reached. If not, the stream had work all
 * the while: its batch goes on, or the next one begins with the end of the last. If it has, the device may have been idle since:
 * a program whose kernels are short is slower than the device, and what it launched since then is not known. Of such
 * launches some are measured, chosen by chance so that no program can tell which, and the others are taken for as long. Each counts
 * for as many as it was chosen from; one that is measured for another reason (a graph, after a pause or a copy) says nothing of others. That is right in
 * the long run whatever they take, and one is chosen every 2 ms or so, as a launch may take all the time until the next. What runs at the moment of a look is measured to its end, since the last launch at least. But a kernel that may have run
 * through a long pause and has ended must not be left to chance: from the first one on that was missed so, an event follows each.
 *
 * Launches between two looks are few after the cap has made the program wait, as the device is idle then and works off each launch before the
 * next one comes; and ever more while it does not.
 *
 * Copies and host functions run beside kernels and are free: one ends its stream's batch, and the next launch
 * begins anew behind it.
 *
 * An event is recorded on a stream only by a thread that is just launching or copying on it, or that launched on it
 * before it waits for the device: whatever happens to other threads' streams (they end, they are captured), nothing here
 * touches them. A stream that another thread ends is left alone once that has begun.
 *
 * A context's meter is taken by a mark. */
#ifndef RATION_METER_H
#define RATION_METER_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"
#include "mark.h"

enum {
	METER_BATCHES = 64, /* of a context, and launches of a batch */
	METER_STREAMS = 96, /* of a context: more than can have a batch */
	METER_INTERVALS = 16
};

/* Launches of a stream, the last of which an event follows. */
struct meter_batch {
	CUevent start, end;
	bool follows;    /* it begins with the end of the stream's last batch, and not with start */
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
	uint32_t burst;     /* launches since the stream was last found idle, but for pending */
	uint32_t wary;      /* launches that are looked at each, as some before had no event */
	bool sampled;       /* of its launches only some are measured */
	uint64_t missed;    /* when launches were last missed before a pause */
	uint32_t one_of;    /* launches of which one is chosen by chance, in the mean */
	uint64_t apart_ns;  /* between launches, in the mean since the last event */
	uint32_t stands;    /* as in struct meter_batch, for the last launch that was looked at */
	uint32_t ends;      /* batches that await their end */
	uint64_t launch_ns; /* what a launch took, in the last batch; 0: not known */
	double chance_ns;   /* what one takes, by those that were chosen by chance */
	uint32_t chances;   /* launches that those stand for, but for more than count */
	double until;       /* the end of the last batch that was measured; < 0: not known */
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
	uint64_t found_ns;                 /* what was used, and is not told yet */
	uint32_t pauses;                   /* how often the cap made a thread wait until nothing was under way */
	double lately_ns, lately_launches; /* what launches took, the older the less it counts */
	CUevent base;                      /* what all times are measured from */
	double origin;                     /* its time, in ms */
	double offset;                     /* what to add to a time to have the CPU's, in ms; < 0: not known */
	unsigned count;
	struct meter_interval {
		double from, to;
	} counted[METER_INTERVALS]; /* no two of which overlap */
	struct meter_batch batch[METER_BATCHES];
	struct meter_stream stream[METER_STREAMS];
};

/* meter_reset forgets all, in a process that has just opened the region. used is called for what
 * contexts' kernels took. */
void meter_reset(void (*used)(const struct device *d, uint64_t ns));

/* meter_is says whether a meter is this context's, which lives; meter_is_free whether it is none's. */
bool meter_is(const struct meter *m, CUcontext context);
bool meter_is_free(const struct meter *m);

/* meter_assign makes a meter a context's, and says whether it could: if it is free; or, too, if its context has nothing
 * under way; or whatever that has, which is counted by guess. Not where another thread is at it. */
enum meter_assignment { METER_IF_FREE, METER_IF_IDLE, METER_ANYWAY };
bool meter_assign(struct meter *m, CUcontext context, struct device *d, enum meter_assignment how);

/* meter_crowd says that there are more contexts than meters: from now on an event follows each launch, as a meter may be
 * needed for another context after any of them. */
void meter_crowd(void);

/* meter_passes is called before every launch: true, and counted, if it need not be looked at.
 * Otherwise meter_begins is called, which returns false if the meter has become another context's, and, if it sets *ends, meter_ends after
 * the launch. alone: a graph, of whose length other launches say nothing. idle: the cap made the thread wait until the
 * context had no work. */
bool meter_passes(CUstream stream, bool alone);
bool meter_begins(struct meter *m, CUcontext context, CUstream stream, bool alone, bool idle, bool *ends);
void meter_ends(CUstream stream);

/* meter_pauses is for a thread that will wait before it launches on the stream. */
void meter_pauses(struct meter *m, CUcontext context, CUstream stream);

/* meter_copies is for a thread that is about to put something that is no kernel into a stream: what comes between two
 * launches in this way is none of their time. */
void meter_copies(struct meter *m, CUcontext context, CUstream stream);

/* meter_waits is for a thread that is about to wait for the device, or found that it has work: it puts
 * an event behind what it has launched, as no further launch may come before the stream is idle. */
void meter_waits(struct meter *m, CUcontext context);

/* meter_read counts what has ended. The context is current. */
void meter_read(struct meter *m, CUcontext context);

/* meter_flight returns what is thought to be under way, in ns: 0 nothing, METER_MUCH more than one should
 * add to. */
#define METER_MUCH UINT64_C(1000000000)
uint64_t meter_flight(const struct meter *m, CUcontext context, uint64_t now);

/* meter_give_up says that a launch waited in vain for what is under way: until some of it ends,
 * none is. */
void meter_give_up(struct meter *m);

/* meter_stream_ends is called before a stream is destroyed. meter_context_ends is called before a
 * context is, meter_context_lives where it was not, and meter_context_ended once it has ended. */
void meter_stream_ends(struct meter *m, CUstream stream);
void meter_context_ends(struct meter *m);
void meter_context_lives(struct meter *m);
void meter_context_ended(struct meter *m);

#endif
