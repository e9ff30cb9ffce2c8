/* Counts how long a context's work has kept its device busy. Each instant counts once, although
 * batches of several streams overlap, and so does the work of several processes of a job. Times are
 * those of the context's events, in ms (event_clock.h), except where a comment says CPU time, which
 * is in ns. The caller of all these functions holds the mark of the meter that b belongs to. */
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
	uint64_t found_ns; /* time at work that was found since the last busy_tell */
	uint64_t turn_ns;  /* the part of it in which no other context had the device */
	unsigned count;
	struct busy_interval counted[BUSY_INTERVALS]; /* the latest intervals, no two of which overlap */
};

/* busy_begin starts to count for a context on a device. */
void busy_begin(struct busy *b, const struct device *d);

/* busy_claim counts the ns nanoseconds that end at the CPU time until, except the part that another
 * process of the job has claimed. */
void busy_claim(struct busy *b, uint64_t until, uint64_t ns);

/* busy_count counts an interval that ended at the CPU time until, except the part that is counted
 * already. It returns how much was new, in ms. If there are too many intervals, it forgets the
 * oldest. */
double busy_count(struct busy *b, struct busy_interval new, uint64_t until);

/* busy_tell returns the new time since its last call, in ns. In *turn_ns it returns the part of it in
 * which no other context had the device, for certain: a context that was idle begins to work at the
 * beginning of its turn, and keeps the device for a slice. The rest may contain the turns of others. */
uint64_t busy_tell(struct busy *b, uint64_t *turn_ns);

#endif
