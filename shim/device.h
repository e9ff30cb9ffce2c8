/* Devices: the ordinals by which CUDA numbers them in this process, the indexes by which
 * the region does, and what the library keeps about each. */
#ifndef RATION_DEVICE_H
#define RATION_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"
#include "nvml.h"
#include "region/abi.h"

struct device {
	uint32_t state;       /* 0 until the device is first used; atomic, written under LOCK_DEVICE */
	CUdevice ordinal;     /* CUDA's. This and the next five are written once, before state */
	unsigned index;       /* the region's */
	uint64_t total_bytes; /* by the driver; 0: not known */
	uint64_t block_bytes; /* the driver rounds large allocations up to whole blocks */
	uint64_t residents;   /* how many threads the device can run at a time; 0: not known */
	uint64_t uuid[2];     /* as the region has it */
	struct nvml_device nvml;

	/* Contexts of this process that were made and have not ended. Atomic; hooks/context.c */
	uint32_t contexts_alive;
	uint32_t contexts_making; /* calls under way that make one; such a context is alive before it is taken out here */

	/* overhead.c's. has_context is atomic: there is, or was, a context, so readings are
	 * worth taking. further_cost is, too: what a context beside another takes, in bytes, as
	 * it was measured here; 0: not known. The others are under LOCK_OVERHEAD. */
	uint32_t has_context;
	uint32_t making;        /* calls under way that make or end what no call tells the size of */
	uint32_t measured;      /* how many of them have measured; it wraps */
	uint32_t loading;       /* loads that have taken their turn, and not left: see overhead_take_turn */
	uint32_t turn;          /* counts loads that have left, and times that the others were passed over; it wraps */
	uint32_t passed;        /* turn, when the loads that were under way then were passed over */
	bool inexact;           /* one that is making or has made has measured beside others, and none has read since the last has ended */
	uint64_t loading_bytes; /* what those that are loading may take */
	uint64_t largest_load;  /* bytes of the largest that was measured */
	uint64_t further_cost;
	uint64_t deferred_bytes;                  /* charged for what the driver takes when it is first used */
	uint64_t unseen_bytes;                    /* of that, absent: no reading has shown it */
	uint64_t estimated_bytes[RATION_KINDS];   /* of living records with RECORD_UNCONFIRMED */
	uint64_t unconfirmed_bytes[RATION_KINDS]; /* of that, no exact reading has confirmed */
	uint64_t corrected_bytes[RATION_KINDS];   /* of that, returned since, and still part of records */
	uint64_t lent_bytes;                      /* of exported memory that was released here, and may be reachable elsewhere */
	uint64_t lowered_bytes;                   /* of contexts: of stacks that were lowered, which the driver frees when it likes */
};

/* device_of finds the device with a CUDA ordinal: 1; 0 where there is none, which the
 * driver will say; -1 where it cannot be rationed, which has been logged. Unless it
 * returns 1, *out is NULL. */
int device_of(CUdevice ordinal, struct device **out);

/* device_at returns the device with a region's index, or NULL if this process has not
 * used it. */
struct device *device_at(unsigned index);

/* device_rounded returns what the driver takes of a device for an allocation: whole
 * blocks where it is more than half of one, while smaller ones share a block. */
static inline uint64_t device_rounded(const struct device *d, uint64_t bytes)
{
	uint64_t up = bytes + d->block_bytes - 1;
	return bytes > d->block_bytes / 2 && up > bytes ? up / d->block_bytes * d->block_bytes : bytes;
}

/* devices_several reports whether this process uses more than one. */
bool devices_several(void);

/* device_index_of_nvml returns the region's index of a device that NVML knows, or -1. */
int device_index_of_nvml(nvmlDevice_t device);

/* devices_reset forgets all devices, in a process that has just opened the region. */
void devices_reset(void);

#endif
