/* Background work in threads, until the next order: churn and reaper. */
#ifndef RATION_TEST_WORK_H
#define RATION_TEST_WORK_H

#include <stdint.h>

#include "region/region.h"

/* What the order stop returns, since the last stop. */
struct tally {
	uint64_t ops, refused, longest; /* longest in nanoseconds */
};
extern struct tally tally;

uint64_t clock_ns(void);

/* took records the time of an operation that began at start, if it is the longest. */
void took(uint64_t start);

/* work_churn starts threads that charge and return at random on the slot of r. */
void work_churn(struct region *r, unsigned threads, const unsigned *devices, unsigned count, uint64_t seed, uint64_t most);

/* work_reap starts a thread that reaps in a loop. */
void work_reap(struct region *r);

/* work_end ends all threads and returns their first error. */
int work_end(void);

#endif
