/* Returns the charges of any number of records at once: those of a context, of a library, or of
 * a module. */
#ifndef RATION_DEPARTURE_H
#define RATION_DEPARTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc_table.h"
#include "region/abi.h"

struct departure {
	unsigned kind;
	struct departure_sums {
		uint64_t bytes;       /* sum over all records */
		uint64_t absent;      /* sum over those with RECORD_MANAGED */
		uint64_t deferred;    /* sum over those with RECORD_DEFERRED */
		uint64_t unconfirmed; /* sum over those with RECORD_UNCONFIRMED */
		uint64_t corrected;   /* part of unconfirmed that was returned before */
		uint64_t exported;    /* sum over those with RECORD_EXPORTED, which become lent: see context_return */
		uint64_t ipc;         /* sum over those with RECORD_IPC alone, which do so, too */
	} device[RATION_DEVICES];
};

/* departure_add adds a record to the sums; it takes no lock. Call departure_begin before the
 * driver is asked to free the objects; or, under overhead_pause, after it has freed them
 * together with another object. Call departure_end last: it returns the charges if gone is
 * true, and otherwise reverses departure_begin. */
void departure_add(struct departure *p, const struct alloc_record *r);
void departure_begin(struct departure *p);
void departure_end(const struct departure *p, bool gone);

#endif
