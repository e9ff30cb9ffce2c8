/* What the driver itself reports, through NVML: the bytes of this process and of all
 * processes on a device, and the list of processes. Starting NVML takes about a tenth of
 * the time of making a context, so it is started when a reading is first needed. */
#ifndef RATION_NVML_H
#define RATION_NVML_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"

/* A device as NVML knows it. */
struct nvml_device {
	char uuid[48];       /* as NVML writes it; written once, before the device is used */
	nvmlDevice_t handle; /* NULL until it is first needed; under LOCK_NVML */
	bool listed;         /* the driver's list has had this process; under LOCK_OVERHEAD and LOCK_NVML */
};

/* nvml_start loads and starts NVML, once, and returns whether it can be used. The first
 * call runs the dynamic linker: not under a lock. nvml_tried and nvml_started start
 * nothing. */
bool nvml_start(void);
bool nvml_tried(void);
bool nvml_started(void);

/* nvml_handle_of asks NVML, which is started, for a device's handle. NVML opens the device
 * there, and others when it is started: never as one of the program's descriptors 0 to 2. */
int nvml_handle_of(const char *uuid, nvmlDevice_t *handle);

/* nvml_pids reads the PIDs of the driver's list, at most max of them; false where the
 * list cannot be read. */
bool nvml_pids(struct nvml_device *d, uint32_t *pids, unsigned max, unsigned *n);

/* nvml_own_bytes reads what the driver has for this process; false where the list does
 * not show this process. One that was listed before and is no longer has 0 bytes. */
bool nvml_own_bytes(struct nvml_device *d, uint64_t *bytes);

/* nvml_device_bytes reads what all processes have of a device. */
/* nvml_unlisted_bytes reads the most that the device can have that no process is listed with. False where the driver does not say, or
 * its list changed meanwhile. */
bool nvml_unlisted_bytes(struct nvml_device *d, uint64_t *bytes);

bool nvml_device_bytes(struct nvml_device *d, uint64_t *bytes);

/* The driver lists processes by PIDs of its own choice: the host's, or those of the PID
 * namespace that reads the list. Where the host PID is not known, a process that makes
 * its first context finds out which by looking for getpid() before and after it, and the
 * region remembers the answer for all processes of the PID namespace.
 *
 * nvml_pid_known: the PID that the list has for this process is known.
 * nvml_pid_undecided: it is not, and the region does not say either.
 * nvml_pid_unlisted: before the context, no process is listed as getpid().
 * nvml_decide_pid: after the context, looks for getpid() and tells the region.
 * nvml_set_pid: the PID has been found by other means. */
bool nvml_pid_known(void);
bool nvml_pid_undecided(void);
bool nvml_pid_unlisted(struct nvml_device *d);
void nvml_decide_pid(struct nvml_device *d);
void nvml_set_pid(uint32_t pid);

/* nvml_reset forgets the PID, in a process that has just opened the region. */
void nvml_reset(void);

#endif
