/* Work that goes on in threads until the next line: churn and reaper. */
#ifndef RATION_TEST_WORK_H
#define RATION_TEST_WORK_H

#include <stdint.h>

#include "region/region.h"

/* What stop reports, since the last one. */
struct tally {
	uint64_t ops, refused, longest; /* longest in nanoseconds */
};
extern struct tally tally;

uint64_t clock_ns(void);

/* took counts an operation that began at start. */
void took(uint64_t start);

/* work_churn starts threads that charge and return at random on the slot of r. */
void work_churn(struct region *r, unsigned threads, const unsigned *devices, unsigned count, uint64_t seed, uint64_t most);

/* work_reap starts one that reaps in a loop. */
void work_reap(struct region *r);

/* work_end ends what goes on, and returns its first error. */
int work_end(void);

#endif
