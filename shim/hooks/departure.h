/* Charged memory that is about to go back, of any number of records at once: those of a
 * context, of a library, of a module. */
#ifndef RATION_DEPARTURE_H
#define RATION_DEPARTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc_table.h"
#include "region/abi.h"

struct departure {
	unsigned kind;
	struct departure_sums {
		uint64_t bytes;       /* of all records */
		uint64_t absent;      /* of those with RECORD_MANAGED */
		uint64_t deferred;    /* of those with RECORD_DEFERRED */
		uint64_t unconfirmed; /* of those with RECORD_UNCONFIRMED */
		uint64_t corrected;   /* of unconfirmed, returned before */
	} device[RATION_DEVICES];
};

/* departure_add adds a record, under whatever lock. departure_begin comes before the driver
 * is asked; or, under overhead_pause, after it freed them with something else.
 * departure_end comes last, and returns the charges if they are gone. */
void departure_add(struct departure *p, const struct alloc_record *r);
void departure_begin(struct departure *p);
void departure_end(const struct departure *p, bool gone);

#endif
