/* Devices as CUDA numbers them in this process, and what the region makes of them. */
#ifndef RATION_DEVICE_H
#define RATION_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"

struct device {
	uint32_t state; /* 0 until it was looked at */
	CUdevice ordinal;
	unsigned index; /* the region's */
	uint64_t total; /* the driver's */
	uint64_t block; /* what the driver rounds large allocations up to */
	char uuid[48];  /* as NVML writes it */
	uint64_t id[2]; /* the same, as the region has it */
	nvmlDevice_t nvml;
	bool seen; /* NVML's list of processes has had this one */
	uint32_t living;  /* contexts that were made here and have not ended */
	uint32_t watched; /* there is a context: its figure is read now and then */
	uint64_t guessed; /* charged by a remembered cost, and not confirmed by a reading yet */
	uint64_t lacking; /* what readings found to be too much of that, */
	uint64_t lacking_since; /* and since when */
	uint64_t less;    /* what was given back of it */
};

/* device_of finds the device with a CUDA ordinal: 1, or 0 where there is none (the
 * driver will say so), or -1 where it cannot be rationed, which has been logged. */
int device_of(CUdevice ordinal, struct device **out);

/* device_takes is what the driver takes of a device for so many bytes: whole blocks where
 * that is more than half of one, while small ones share theirs. */
static inline uint64_t device_takes(const struct device *d, uint64_t bytes)
{
	uint64_t up = bytes + d->block - 1;
	return bytes > d->block / 2 && up > bytes ? up / d->block * d->block : bytes;
}

/* device_at is the device with a region's index, if this process has used it. */
struct device *device_at(unsigned index);

/* devices_several says whether this process uses more than one. */
bool devices_several(void);

/* device_index_of_nvml is the region's index of a device NVML knows, or -1. */
int device_index_of_nvml(nvmlDevice_t device);

/* devices_forget starts anew, in a process that has just attached. */
void devices_forget(void);

#endif
