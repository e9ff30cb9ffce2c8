#include "compute/event_clock.h"

#include "hooks.h"

/* Take a new base after this time: the distance between two events is a float, which becomes too
 * coarse. */
#define EVENT_CLOCK_FAR_MS 30000

void event_clock_begin(struct event_clock *c) { *c = (struct event_clock){NULL, 0, -1}; }

bool event_clock_when(const struct event_clock *c, CUevent event, double *at)
{
	float ms = 0;
	if (!c->base || REAL(cuEventElapsedTime, &ms, c->base, event) != CUDA_SUCCESS)
		return false;
	*at = c->origin + ms;
	return true;
}

bool event_clock_keep(struct event_clock *c, CUevent *event, double *at)
{
	CUevent old = c->base;
	if (old && !event_clock_when(c, *event, at))
		return false;
	if (!old)
		*at = c->origin;
	if (!old || *at - c->origin > EVENT_CLOCK_FAR_MS) {
		c->base = *event;
		c->origin = *at;
		*event = old;
	}
	return true;
}

uint64_t event_clock_cpu(const struct event_clock *c, double at)
{
	return at >= 0 && c->offset >= 0 ? (uint64_t)((at + c->offset) * 1e6) : 0;
}

void event_clock_tie(struct event_clock *c, double at, uint64_t recorded)
{
	double offset = (double)recorded / 1e6 - at;
	c->offset = offset > c->offset ? offset : c->offset - (c->offset - offset) / 16;
}
