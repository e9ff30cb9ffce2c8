/* The clock of a context's events, in ms, and its distance to the CPU's clock. The caller of all
 * these functions holds the mark of the meter that c belongs to. */
#ifndef RATION_EVENT_CLOCK_H
#define RATION_EVENT_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"

struct event_clock {
	CUevent base;  /* the event that all times are measured from; NULL: the first event will become the base */
	double origin; /* the time of base, in ms */
	double offset; /* add this to a time to get the CPU time, in ms; < 0: not known */
};

/* event_clock_begin starts the clock of a context that has no event yet. */
void event_clock_begin(struct event_clock *c);

/* event_clock_when sets *at to the time of an event, in ms. It returns false if that is not known. */
bool event_clock_when(const struct event_clock *c, CUevent event, double *at);

/* event_clock_keep does the same for an event that the caller no longer needs. An event long after
 * the base becomes the new base, and the caller gets the old base in *event to record again. */
bool event_clock_keep(struct event_clock *c, CUevent *event, double *at);

/* event_clock_cpu converts a time of events to CPU time, in ns; 0 if the offset is not known. */
uint64_t event_clock_cpu(const struct event_clock *c, double at);

/* event_clock_tie corrects the offset from an event with the time at, which was recorded at the CPU
 * time recorded while the context had nothing under way: the device reached it a moment later. The
 * shortest such delay gives the offset; a longer one shows that the clocks drift. */
void event_clock_tie(struct event_clock *c, double at, uint64_t recorded);

#endif
