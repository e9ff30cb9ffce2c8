/* The clock that a context's events are times of, in ms, and how far it is from the CPU's. With the meter's mark. */
#ifndef RATION_EVENT_CLOCK_H
#define RATION_EVENT_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"

struct event_clock {
	CUevent base;  /* what all times are measured from; NULL: the first event will be */
	double origin; /* its time */
	double offset; /* what to add to a time to have the CPU's; < 0: not known */
};

/* event_clock_begin is for a context of which no event is known. */
void event_clock_begin(struct event_clock *c);

/* event_clock_when sets when an event was, and says whether that is known. */
bool event_clock_when(const struct event_clock *c, CUevent event, double *at);

/* event_clock_keep does the same for an event that is no longer needed. A late one becomes the new base, and the old base
 * will be recorded again in its place. */
bool event_clock_keep(struct event_clock *c, CUevent *event, double *at);

/* event_clock_cpu returns the CPU's time of one by events, in ns; 0 where that is not known. */
uint64_t event_clock_cpu(const struct event_clock *c, double at);

/* event_clock_tie learns from an event that was recorded at a time of the CPU's clock while nothing was under way: it
 * is reached a moment later. The shortest such moment tells how far apart the clocks are, and a longer one that they drift. */
void event_clock_tie(struct event_clock *c, double at, uint64_t recorded);

#endif
