/* Reads the driver's own figures through NVML: the bytes of this process and of all processes
 * on a device, and the list of processes. To start NVML takes about a tenth of the time of
 * making a context, so it is started when a reading is first needed. */
#ifndef RATION_NVML_H
#define RATION_NVML_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"

/* A device as NVML knows it. */
struct nvml_device {
	char uuid[48];       /* NVML's text form; written once, before the device is used */
	nvmlDevice_t handle; /* NULL until first needed; under LOCK_NVML */
	bool listed;         /* the driver has listed this process at least once; under LOCK_OVERHEAD and LOCK_NVML */
};

/* nvml_start loads and starts NVML, once, and returns whether it can be used. The first call
 * runs the dynamic linker, so the caller must hold no lock. nvml_tried reports whether
 * nvml_start has run, nvml_started whether NVML can be used; neither starts it. */
bool nvml_start(void);
bool nvml_tried(void);
bool nvml_started(void);

/* nvml_handle_of asks NVML for a device's handle, and returns NVML's result. NVML must be
 * started. NVML opens files here, and when it is started; both functions make sure that these
 * do not get the descriptors 0 to 2. */
int nvml_handle_of(const char *uuid, nvmlDevice_t *handle);

/* nvml_pids reads at most max PIDs of the driver's list into pids, and their number into *n. It
 * may start NVML. It returns false if the list cannot be read. */
bool nvml_pids(struct nvml_device *d, uint32_t *pids, unsigned max, unsigned *n);

/* nvml_own_bytes reads how many bytes the driver has for this process. It returns false if the
 * driver has never listed this process, or the list cannot be read. A process that was listed
 * before and is not any more has 0 bytes. */
bool nvml_own_bytes(struct nvml_device *d, uint64_t *bytes);

/* nvml_unlisted_bytes reads how many bytes in use on the device belong to no listed process: an
 * upper bound, as other processes allocate and free meanwhile. It stops at the first reading that
 * shows `enough` bytes. It returns false if the driver does not tell. */
bool nvml_unlisted_bytes(struct nvml_device *d, uint64_t enough, uint64_t *bytes);

/* nvml_uncharged_bytes does the same for the bytes with which other processes of the job are listed, and for
 * which they are not charged, on the device with this index. */
bool nvml_uncharged_bytes(struct nvml_device *d, unsigned index, uint64_t enough, uint64_t *bytes);

/* nvml_device_bytes reads how many bytes all processes together use on a device. It
 * returns false if the driver does not tell. */
bool nvml_device_bytes(struct nvml_device *d, uint64_t *bytes);

/* The driver lists processes by host PIDs, or by PIDs of the PID namespace that reads the list.
 * If the host PID is not known, a process that makes its first context finds out which: it
 * looks for getpid() before and after it makes the context. The region keeps the answer for all
 * processes of the PID namespace.
 *
 * nvml_pid_known: this process knows its PID in the list.
 * nvml_pid_undecided: it does not, and the region has no answer either.
 * nvml_pid_unlisted: before the context: no process is listed as getpid().
 * nvml_decide_pid: after the context: looks for getpid(), and stores the answer in the region.
 * nvml_set_pid: sets the PID, which has been found by other means. */
bool nvml_pid_known(void);
bool nvml_pid_undecided(void);
bool nvml_pid_unlisted(struct nvml_device *d);
void nvml_decide_pid(struct nvml_device *d);
void nvml_set_pid(uint32_t pid);

/* nvml_reset forgets the PID, in a process that has just opened the region. */
void nvml_reset(void);

#endif
