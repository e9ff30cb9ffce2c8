/* The PID as the host sees it, where nothing better is at hand: RATION_HOSTPID=probe.
 * It is what the driver's list of processes gains while this process makes its
 * first context, provided that no other of its job does so at the same time: they
 * take turns, by a word in the region that a death does not leave taken. */
#ifndef RATION_HOSTPID_H
#define RATION_HOSTPID_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

struct hostpid {
	bool turn; /* ours, until hostpid_end */
	uint64_t word;
	uint32_t *before;
	unsigned n;
};

/* hostpid_begin waits for this process's turn, a few seconds at most, and looks at
 * the list. Where the PID is known or nobody asked for the probe it does nothing. */
void hostpid_begin(struct hostpid *h, struct device *d);

/* hostpid_end looks again, and gives up the turn. Not to know is no error. */
void hostpid_end(struct hostpid *h, struct device *d);

#endif
