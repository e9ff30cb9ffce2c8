/* The clocks that the rationing of a device's time reads, in nanoseconds. */
#ifndef RATION_CLOCK_H
#define RATION_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_read(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t clock_exact(void) { return clock_read(CLOCK_MONOTONIC); }

/* clock_coarse takes a few nanoseconds to read, and advances every few milliseconds. */
static inline uint64_t clock_coarse(void) { return clock_read(CLOCK_MONOTONIC_COARSE); }

#endif
