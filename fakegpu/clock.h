/* The machine's clock: nanoseconds since the machine was made, at FAKEGPU_CLOCK times
 * the speed of the wall's. All that the stand-in calls time is read here.
 *
 * It lies in the machine's file, so that all processes have the same. A reader takes the
 * copy that `turns` names and looks whether `turns` is still the same; the writer, of
 * which there is one at a time (machine.c), fills the other copy first and then counts
 * `turns` up. A writer that is killed leaves the old copy, which is whole. */
#ifndef FAKEGPU_CLOCK_H
#define FAKEGPU_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

enum { CLOCK_RATE = 1000 }; /* the rate of a clock that keeps pace with the wall's */

struct clock_base {
	uint64_t wall; /* CLOCK_MONOTONIC, ns */
	uint64_t at;   /* what this clock showed then, ns */
	uint64_t rate; /* thousandths; 0: it stands still */
};

struct clock {
	uint32_t turns; /* atomic; base[turns % 2] is true; threads that wait sleep on it (futex) */
	uint32_t pad;
	struct clock_base base[2];
};

uint64_t clock_now(const struct clock *c);

/* Goes on from now at this rate, and `add` ns ahead. One caller at a time. */
void clock_set(struct clock *c, uint64_t rate, uint64_t add);
uint64_t clock_rate(const struct clock *c);

/* Sleeps until the clock shows `until`, or is set, or is woken, or some milliseconds of the
 * wall's have passed; `turns` was read before the caller found that it must wait. */
void clock_sleep(struct clock *c, uint32_t turns, uint64_t until);
/* Wakes all that sleep: what they wait for may come earlier than they thought. */
void clock_wake(struct clock *c);

#endif
