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
	char uuid[48];  /* as NVML writes it */
	nvmlDevice_t nvml;
	bool seen; /* NVML's list of processes has had this one */
};

/* device_of finds the device with a CUDA ordinal: 1, or 0 where there is none (the
 * driver will say so), or -1 where it cannot be rationed, which has been logged. */
int device_of(CUdevice ordinal, struct device **out);

/* device_at is the device with a region's index, if this process has used it. */
struct device *device_at(unsigned index);

/* device_index_of_nvml is the region's index of a device NVML knows, or -1. */
int device_index_of_nvml(nvmlDevice_t device);

/* devices_forget starts anew, in a process that has just attached. */
void devices_forget(void);

#endif
