/* Finds the PID of this process as the host sees it, where no other way gives it: with
 * RATION_HOSTPID=probe, or to measure a context if the driver lists processes by their host
 * PIDs. It is the PID that appears in the driver's list while this process makes its first
 * context. No other process of the job may make its first context at the same time, so
 * processes take turns, by a word in the region. A process that dies or is stopped in its turn,
 * or shows no progress, loses the turn, and a PID that it finds afterwards is ignored:
 * shim/PROTOCOLS.md, *The host-PID lock*. */
#ifndef RATION_HOSTPID_H
#define RATION_HOSTPID_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

/* One search, around the making of a context. */
struct hostpid_probe {
	bool has_turn;        /* this process has the turn, until hostpid_leave or until it loses it */
	bool unmeasured;      /* the argument of hostpid_begin */
	unsigned slot;        /* this process's slot when the search began */
	uint64_t gen;         /* the slot's generation */
	uint64_t turn;        /* the region's word while this process has the turn, without beats */
	uint32_t *pids;       /* from mmap: the list before, and space for the list after */
	unsigned pids_before; /* number of PIDs in the list before */
};

/* hostpid_wanted reports whether RATION_HOSTPID asks for the PID and it is not known yet. */
bool hostpid_wanted(void);

/* hostpid_begin waits for this process's turn, and reads the driver's list. It waits a few
 * seconds at most for one turn of another process, but as long as turns change hands. If the
 * PID is wanted only to measure a context (unmeasured), it stops waiting once another process
 * has measured one. The caller has counted itself in contexts_making. It may start NVML, so the
 * caller must hold no lock. */
void hostpid_begin(struct hostpid_probe *p, struct device *d, bool unmeasured);

/* hostpid_beat shows other processes that the owner of a turn makes progress; turn is the one
 * in attach_page. Each ioctl of the driver calls it. Safe in any thread, also inside the
 * driver. */
void hostpid_beat(uint64_t turn);

/* hostpid_end reads the list again, if a context was made, and records the PID that is new. It
 * is no error if the PID is not found. hostpid_leave gives up the turn. */
void hostpid_end(struct hostpid_probe *p, struct device *d, bool made);
void hostpid_leave(struct hostpid_probe *p);

#endif
