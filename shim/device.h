/* Devices: CUDA's ordinals for them in this process, the region's indexes, and the data that
 * the library keeps for each. */
#ifndef RATION_DEVICE_H
#define RATION_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"
#include "nvml.h"
#include "region/abi.h"

struct device {
	uint32_t state;       /* 0 until the device is first used; atomic, written under LOCK_DEVICE */
	CUdevice ordinal;     /* CUDA's ordinal. This and the next five are written once, before state */
	unsigned index;       /* the region's index */
	uint64_t total_bytes; /* as the driver reports; 0: not known */
	uint64_t block_bytes; /* the driver rounds large allocations up to whole blocks */
	uint64_t residents;   /* how many threads the device can run at a time; 0: not known */
	uint64_t uuid[2];     /* in the region's format */
	struct nvml_device nvml;

	/* Contexts of this process that were made and have not ended. Atomic; hooks/context.c */
	uint32_t contexts_alive;
	uint32_t contexts_making; /* calls under way that make a context; it counts in contexts_alive first */

	/* The rest is owned by overhead.c. has_context is atomic: there is or was a context, so
	 * readings are worth taking. further_cost is atomic, too: the bytes that a second or
	 * later context takes, as measured here; 0: not known. The others are under
	 * LOCK_OVERHEAD. */
	uint32_t has_context;
	uint32_t making;        /* calls under way that make or end an object whose size no call tells */
	uint32_t measured;      /* how many of these calls have measured; it wraps */
	uint32_t loading;       /* loads that have taken their turn and not left it: see overhead_take_turn */
	uint32_t turn;          /* counts the loads that have left, and how often waiters stopped waiting for the others; it wraps */
	uint32_t passed;        /* the value of turn when waiters last stopped waiting for the loads under way */
	bool inexact;           /* a call measured beside others, and no reading was taken since the last such call ended */
	uint64_t loading_bytes; /* bytes that the loads under way may take */
	uint64_t largest_load;  /* bytes of the largest load that was measured */
	uint64_t further_cost;
	uint64_t deferred_bytes;                  /* charged for memory that the driver takes at first use */
	uint64_t unseen_bytes;                    /* part of deferred_bytes: absent, as no reading has shown it yet */
	uint64_t estimated_bytes[RATION_KINDS];   /* charged for live records with RECORD_UNCONFIRMED */
	uint64_t unconfirmed_bytes[RATION_KINDS]; /* part of estimated_bytes: not confirmed by an exact reading */
	uint64_t corrected_bytes[RATION_KINDS];   /* part of estimated_bytes: returned since, but still in the records */
	uint64_t lent_bytes;                      /* exported memory that was released here, and may still be used by other processes */
	uint64_t lent_ipc_bytes;                  /* part of lent_bytes: of which only IPC handles were made */
	uint64_t read_driver;                     /* the driver's bytes for this process at the last reading */
	bool exact;                               /* the last reading was exact */
	uint64_t read_device;                     /* bytes in use on the device, by all processes, at the last reading that was due */
	uint64_t read_moved;                      /* charge_moved at that reading */
	bool settled;                             /* that reading was exact, and the same as the one before it */
	uint32_t unchanged;                       /* readings that were left out since then */
	uint64_t lowered_bytes;                   /* charged for contexts' stacks that were lowered, which the driver frees at any time */
};

/* device_of finds the device with a CUDA ordinal. It returns 1, or 0 if there is no such device
 * (the driver's own call will report the error), or -1 if the device cannot be rationed, which
 * has been logged. *out is NULL unless it returns 1. It may start NVML, so the caller must hold
 * no lock. */
int device_of(CUdevice ordinal, struct device **out);

/* device_at returns the device with a region's index, or NULL if this process has not
 * used it. */
struct device *device_at(unsigned index);

/* device_rounded returns how many bytes the driver takes for an allocation: whole blocks if it
 * is larger than half a block. Smaller allocations share a block, and are not rounded. */
static inline uint64_t device_rounded(const struct device *d, uint64_t bytes)
{
	uint64_t up = bytes + d->block_bytes - 1;
	return bytes > d->block_bytes / 2 && up > bytes ? up / d->block_bytes * d->block_bytes : bytes;
}

/* devices_several reports whether this process uses more than one device. */
bool devices_several(void);

/* device_named_by_nvml returns the region's index of the device with the UUID of NVML's handle, or
 * -1 if the region has no device of that UUID. */
int device_named_by_nvml(nvmlDevice_t device);

/* device_index_of_nvml returns the region's index of a device given by NVML's handle, or -1. */
int device_index_of_nvml(nvmlDevice_t device);

/* devices_reset forgets all devices, in a process that has just opened the region. */
void devices_reset(void);

#endif
