/* The place of a job: the devices that its processes see, if these are only some of the
 * machine's. The page of limits says which are hidden; they also have a limit of 0, so that
 * hiding is a convenience and not what protects them. */
#ifndef RATION_PLACE_H
#define RATION_PLACE_H

#include <stdbool.h>
#include <stddef.h>

#include "region/abi.h"

struct place {
	bool some;      /* some devices are hidden; otherwise nothing else counts */
	unsigned count; /* of devices that are visible */
	struct {
		unsigned index;   /* in the region */
		uint64_t uuid[2]; /* big-endian, as in the region */
	} visible[RATION_DEVICES];
};

enum {
	PLACE_UUID = 41, /* bytes of a UUID as text: GPU-8-4-4-4-12, and the zero */
	/* A list that names a device twice is an error to the driver, so no list need be longer. */
	PLACE_LIST = (RATION_DEVICES + 1) * PLACE_UUID,
};

/* place_add adds the device of an index, by its limits. The caller adds all, in order, to a
 * place that was zero. */
void place_add(struct place *p, unsigned index, const struct ration_device_limits *l);

/* place_uuid_text formats a UUID. */
void place_uuid_text(const uint64_t uuid[2], char out[PLACE_UUID]);

/* place_translate writes the value of CUDA_VISIBLE_DEVICES that shows the driver the devices of
 * a place that list selects; list is the program's value, or NULL. Numbers count the visible
 * devices from 0, and UUIDs may be shortened, both as with the driver. As with the driver, an
 * entry that selects no device ends the list. It returns that entry, or NULL. */
const char *place_translate(const struct place *p, const char *list, char out[PLACE_LIST]);

/* place_set publishes the place of this process's job, for place_getenv. The caller holds
 * LOCK_ATTACH. place_get returns the place that was set last. */
void place_set(const struct place *p);
const struct place *place_get(void);

/* place_hides reports whether the place that was set hides devices. Then the driver must call
 * place_getenv in place of getenv: it returns the list of that place for CUDA_VISIBLE_DEVICES. The
 * program's own environment stays as it is. */
bool place_hides(void);
char *place_getenv(const char *name);

/* place_indexes formats the indexes of the visible devices, as in 0,2; empty if none is hidden. */
void place_indexes(const struct place *p, char *out, size_t size);

#endif
