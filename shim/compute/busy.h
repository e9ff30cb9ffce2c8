/* The time for which a context's work has occupied its device, each instant counted once: batches of several streams
 * overlap, and so does the work of several processes of a job. Times are those of the context's events, in ms, but where
 * it says that they are the CPU's, in ns. With the meter's mark. */
#ifndef RATION_BUSY_H
#define RATION_BUSY_H

#include <stdint.h>

#include "device.h"

enum { BUSY_INTERVALS = 16 };

struct busy_interval {
	double from, to;
};

struct busy {
	const struct device *device;
	uint64_t found_ns; /* that was new, and is not told yet */
	unsigned count;
	struct busy_interval counted[BUSY_INTERVALS]; /* the last ones, no two of which overlap */
};

/* busy_begin is for a context on a device, of which nothing is counted. */
void busy_begin(struct busy *b, const struct device *d);

/* busy_claim counts so many ns until a time of the CPU's clock, but for what others of the job have
 * claimed of that time. */
void busy_claim(struct busy *b, uint64_t until, uint64_t ns);

/* busy_count counts an interval that ended at the CPU's time until, but for what is counted already, and returns
 * how much was new, in ms. The oldest one makes room. */
double busy_count(struct busy *b, struct busy_interval new, uint64_t until);

/* busy_tell returns what was found since it was last called, in ns. */
uint64_t busy_tell(struct busy *b);

#endif
