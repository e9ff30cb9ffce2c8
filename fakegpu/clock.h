/* The machine's clock: nanoseconds since the machine was made, at FAKEGPU_CLOCK times the speed of
 * real time. All times of the stand-in are of this clock.
 *
 * It is in the machine's file, so that all processes have the same clock. A reader reads the copy
 * that `turns` selects, and then checks that `turns` is still the same. There is one writer at a
 * time (machine.c): it fills the other copy first and then increments `turns`. A writer that is
 * killed leaves the old copy, which is complete. */
#ifndef FAKEGPU_CLOCK_H
#define FAKEGPU_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

enum { CLOCK_RATE = 1000 }; /* the rate of a clock as fast as real time */

struct clock_base {
	uint64_t wall; /* CLOCK_MONOTONIC, ns */
	uint64_t at;   /* the time of this clock at that moment, ns */
	uint64_t rate; /* thousandths; 0: it stands still */
};

struct clock {
	uint32_t turns; /* atomic; base[turns % 2] is valid; waiting threads sleep on it (futex) */
	uint32_t pad;
	struct clock_base base[2];
};

uint64_t clock_now(const struct clock *c);

/* Moves the clock forward by `add` ns, and lets it run at `rate` thousandths of real time from now
 * on. Not thread-safe: the caller must prevent concurrent calls, also by other processes. */
void clock_set(struct clock *c, uint64_t rate, uint64_t add);
uint64_t clock_rate(const struct clock *c);

/* Sleeps until the clock reaches `until`, or is set, or clock_wake is called, or some milliseconds
 * of real time have passed. The caller read `turns` before it found that it must wait. */
void clock_sleep(struct clock *c, uint32_t turns, uint64_t until);
/* Wakes all threads in clock_sleep, because an event may come earlier than they expected. */
void clock_wake(struct clock *c);

#endif
