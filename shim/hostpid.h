/* The PID as the host sees it, where nothing better is at hand: RATION_HOSTPID=probe,
 * or where a context must be measured and the driver's figure found by that PID.
 * It is what the driver's list of processes gains while this process makes its
 * first context, provided that no other of its job does so at the same time: they
 * take turns, by a word in the region that a death does not leave taken. */
#ifndef RATION_HOSTPID_H
#define RATION_HOSTPID_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

struct hostpid {
	bool turn; /* ours, until hostpid_leave */
	uint64_t word;
	uint32_t *before;
	unsigned n;
};

/* hostpid_wanted says whether the PID was asked for, and is not known. */
bool hostpid_wanted(void);

/* hostpid_begin waits for this process's turn, a few seconds at most, and looks at
 * the list. Where nobody asked for the PID it is wanted only to measure a context: then
 * it waits no longer than until another process has measured one. */
void hostpid_begin(struct hostpid *h, struct device *d, bool unmeasured);

/* hostpid_end looks again. Not to know is no error. hostpid_leave gives up the turn. */
void hostpid_end(struct hostpid *h, struct device *d);
void hostpid_leave(struct hostpid *h);

#endif
