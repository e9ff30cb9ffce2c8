/* The PID of this process as the host sees it, where nothing better is at hand: with
 * RATION_HOSTPID=probe, or where a context must be measured and the driver lists processes
 * by their host PIDs. It is the PID that the driver's list gains while this process makes
 * its first context, provided that no other process of the job does so at the same time:
 * they take turns, by a word in the region. A process that dies in its turn, is stopped or
 * gives no sign of life is passed over, and what it finds afterwards does not count:
 * shim/PROTOCOLS.md, *The host-PID lock*. */
#ifndef RATION_HOSTPID_H
#define RATION_HOSTPID_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

/* One search, around the making of a context. */
struct hostpid_probe {
	bool has_turn;        /* until hostpid_leave; unless it was passed over */
	bool unmeasured;      /* as hostpid_begin was told */
	unsigned slot;        /* this process's, as it was when this began */
	uint64_t gen;         /* its generation */
	uint64_t turn;        /* the region's word, without beats, while it is ours */
	uint32_t *pids;       /* mapped: the list before, and room for the list after */
	unsigned pids_before; /* how many were listed */
};

/* hostpid_wanted reports whether RATION_HOSTPID asks for the PID, and it is not known. */
bool hostpid_wanted(void);

/* hostpid_begin waits for this process's turn, as long as turns change hands, and reads the
 * list; one turn of another process is waited for a few seconds at most. Where the PID is
 * wanted only to measure a context (unmeasured), it waits no longer than until another
 * process has measured one. The caller has counted itself in contexts_making. It may start
 * NVML. */
void hostpid_begin(struct hostpid_probe *p, struct device *d, bool unmeasured);

/* hostpid_beat is the sign of life of a process that has a turn, attach_page's: each of the
 * driver's calls of ioctl is one. Safe in any thread, also inside the driver. */
void hostpid_beat(uint64_t turn);

/* hostpid_end reads the list again, if a context was made. It is not an error if the PID is
 * not found. hostpid_leave gives up the turn. */
void hostpid_end(struct hostpid_probe *p, struct device *d, bool made);
void hostpid_leave(struct hostpid_probe *p);

#endif
