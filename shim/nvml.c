#include "nvml.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attach.h"
#include "gate.h"
#include "hooks.h"
#include "interpose.h"
#include "log.h"
#include "region/atomics.h"
#include "region/words.h"

/* The longest list of processes of one device that is read. */
#define NVML_LIST 1024

enum { NVML_UNTRIED, NVML_STARTED, NVML_FAILED };

static mutex nvml_lock;              /* LOCK_NVML: protects the list and the devices' handles */
static nvmlProcessInfo_t *nvml_list; /* mapped at the first reading */
static uint64_t nvml_listed_pid;     /* this process's PID in the list; 0: not known. Atomic */

static uint32_t *nvml_state(void) { return &__atomic_load_n(&attach_page, __ATOMIC_ACQUIRE)->nvml; }

bool nvml_tried(void) { return __atomic_load_n(nvml_state(), __ATOMIC_ACQUIRE) != NVML_UNTRIED; }

bool nvml_started(void) { return __atomic_load_n(nvml_state(), __ATOMIC_ACQUIRE) == NVML_STARTED; }

bool nvml_start(void)
{
	if (nvml_tried())
		return nvml_started();
	/* Two threads may both start it: NVML counts its users. */
	unsigned low = region_take_low_fds();
	bool good = interpose_load_nvml() && REAL(nvmlInit_v2) == NVML_SUCCESS;
	region_free_low_fds(low);
	if (!good)
		log_info("NVML cannot be used: driver overhead is not counted");
	__atomic_store_n(nvml_state(), good ? NVML_STARTED : NVML_FAILED, __ATOMIC_RELEASE);
	return good;
}

void nvml_set_pid(uint32_t pid) { __atomic_store_n(&nvml_listed_pid, pid, __ATOMIC_RELAXED); }

void nvml_reset(void) { nvml_set_pid(0); }

int nvml_handle_of(const char *uuid, nvmlDevice_t *handle)
{
	unsigned low = region_take_low_fds();
	int result = REAL(nvmlDeviceGetHandleByUUID, uuid, handle);
	region_free_low_fds(low);
	return result;
}

/* nvml_find_handle fills in the device's handle, and returns whether there is one. The caller
 * holds LOCK_NVML. */
static bool nvml_find_handle(struct nvml_device *d)
{
	if (d->handle)
		return true;
	if (nvml_handle_of(d->uuid, &d->handle) == NVML_SUCCESS)
		return true;
	/* A MIG part of a divided device has another prefix. */
	char mig[sizeof d->uuid];
	memcpy(mig, d->uuid, sizeof mig);
	memcpy(mig, "MIG", 3);
	return nvml_handle_of(mig, &d->handle) == NVML_SUCCESS;
}

/* nvml_read_list reads the driver's list into nvml_list, and its length into *n. It returns
 * false if the list cannot be read. The caller holds LOCK_NVML. */
static bool nvml_read_list(struct nvml_device *d, unsigned *n)
{
	if (!nvml_find_handle(d))
		return false;
	if (!nvml_list) {
		void *mem = mmap(NULL, NVML_LIST * sizeof *nvml_list, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (mem == MAP_FAILED)
			return false;
		nvml_list = mem;
	}
	*n = NVML_LIST;
	int result = ration_real(CALL_nvmlDeviceGetComputeRunningProcesses_v3)
			     ? REAL(nvmlDeviceGetComputeRunningProcesses_v3, d->handle, n, nvml_list)
			     : REAL(nvmlDeviceGetComputeRunningProcesses_v2, d->handle, n, nvml_list);
	return result == NVML_SUCCESS;
}

bool nvml_pids(struct nvml_device *d, uint32_t *pids, unsigned max, unsigned *n)
{
	unsigned all;
	if (!nvml_start())
		return false;
	mutex_lock(&nvml_lock, LOCK_NVML);
	bool good = nvml_read_list(d, &all);
	for (*n = 0; good && *n < all && *n < max; ++*n)
		pids[*n] = nvml_list[*n].pid;
	mutex_unlock(&nvml_lock);
	return good;
}

/* nvml_bytes_of adds up the bytes that the list has for a PID. It returns 1, or 0 if the PID is
 * not listed, or -1 if the list could not be read and so the answer is not known. The caller
 * holds LOCK_NVML. */
static int nvml_bytes_of(struct nvml_device *d, uint64_t pid, uint64_t *bytes)
{
	unsigned n;
	int found = 0;
	*bytes = 0;
	if (!nvml_read_list(d, &n))
		return -1;
	for (unsigned i = 0; i < n; i++)
		if (nvml_list[i].pid == pid && nvml_list[i].usedGpuMemory != NVML_VALUE_NOT_AVAILABLE) {
			*bytes += nvml_list[i].usedGpuMemory;
			found = 1;
		}
	return found;
}

/* nvml_bytes_awake does the same for a PID of this process. The list does not have processes that
 * sleep, so an answer counts only if the job was awake all the time: otherwise it asks again when the
 * job is awake. It waits with the caller's locks held, but not with LOCK_NVML. A thread that needs
 * one of those locks is in a CUDA call, and would wait in the driver. */
static int nvml_bytes_awake(struct nvml_device *d, uint64_t pid, uint64_t *bytes)
{
	struct region *r = attach_region();
	for (;;) {
		uint64_t before = load_acquire(&r->m->header.sleep);
		if (unlikely(sleep_state(before) != RATION_AWAKE)) {
			if (gate_ignores())
				return -1;
			region_wait_awake(r);
			continue;
		}
		mutex_lock(&nvml_lock, LOCK_NVML);
		int found = nvml_bytes_of(d, pid, bytes);
		mutex_unlock(&nvml_lock);
		if (likely(load_acquire(&r->m->header.sleep) == before))
			return found;
	}
}

/* nvml_own_pid_listed looks for getpid() in the list, and returns the same values as
 * nvml_bytes_of. */
static int nvml_own_pid_listed(struct nvml_device *d)
{
	uint64_t bytes;
	return nvml_bytes_awake(d, (uint64_t)getpid(), &bytes);
}

/* nvml_pids_word packs, for the region, whether NVML lists the processes of this PID namespace by the
 * PIDs that they have in it (own). */
static uint64_t nvml_pids_word(bool own)
{
	const struct region *r = attach_region();
	return make_nvml_pids(load_acquire(&r->m->slots[r->slot].pidns), own);
}

/* nvml_pid returns this process's PID in the list, or 0 if it is not known. */
static uint64_t nvml_pid(void)
{
	uint64_t pid = attach_host_pid();
	if (!pid)
		pid = load_relaxed(&nvml_listed_pid);
	if (!pid && load_relaxed(&attach_region()->m->header.nvml_pids) == nvml_pids_word(true))
		pid = (uint64_t)getpid();
	return pid;
}

bool nvml_pid_known(void) { return nvml_pid() != 0; }

bool nvml_pid_undecided(void) { return !nvml_pid() && load_relaxed(&attach_region()->m->header.nvml_pids) != nvml_pids_word(false); }

bool nvml_pid_unlisted(struct nvml_device *d) { return nvml_start() && nvml_own_pid_listed(d) == 0; }

void nvml_decide_pid(struct nvml_device *d)
{
	uint64_t *word = &attach_region()->m->header.nvml_pids;
	int found = nvml_own_pid_listed(d);
	if (found == 1)
		nvml_set_pid((uint32_t)getpid());
	/* Release is not needed for other data: readers use this word alone. */
	if (found >= 0 && load_relaxed(word) != nvml_pids_word(found))
		store_release(word, nvml_pids_word(found));
}

bool nvml_own_bytes(struct nvml_device *d, uint64_t *bytes)
{
	uint64_t pid = nvml_pid();
	*bytes = 0;
	int found = pid ? nvml_bytes_awake(d, pid, bytes) : 0;
	mutex_lock(&nvml_lock, LOCK_NVML);
	if (found > 0)
		d->listed = true;
	bool known = found >= 0 && d->listed;
	mutex_unlock(&nvml_lock);
	return known;
}

bool nvml_device_bytes(struct nvml_device *d, uint64_t *bytes)
{
	nvmlMemory_t m;
	mutex_lock(&nvml_lock, LOCK_NVML);
	bool good = nvml_find_handle(d) && REAL(nvmlDeviceGetMemoryInfo, d->handle, &m) == NVML_SUCCESS;
	mutex_unlock(&nvml_lock);
	*bytes = good ? m.used : 0;
	return good;
}

/* nvml_listed_bytes adds up the bytes of the whole list. It returns false if the list cannot be
 * read. The caller holds LOCK_NVML. */
static bool nvml_listed_bytes(struct nvml_device *d, uint64_t *bytes)
{
	unsigned n;
	*bytes = 0;
	if (!nvml_read_list(d, &n))
		return false;
	for (unsigned i = 0; i < n; i++)
		if (nvml_list[i].usedGpuMemory != NVML_VALUE_NOT_AVAILABLE)
			*bytes += nvml_list[i].usedGpuMemory;
	return true;
}

/* The device's bytes and the list cannot be read at one instant. If a process frees and
 * allocates all the time, a pair of readings may have its memory in the list only, and so show
 * too few unlisted bytes. So several pairs are read, and the most bytes of the device are compared
 * with the fewest in the list. */
enum { NVML_LOOKS = 12 };

bool nvml_unlisted_bytes(struct nvml_device *d, uint64_t enough, uint64_t *bytes)
{
	nvmlMemory_v2_t m = {.version = NVML_MEMORY_V2};
	uint64_t used = 0, least = UINT64_MAX, listed;
	bool good = ration_real(CALL_nvmlDeviceGetMemoryInfo_v2);
	*bytes = 0;
	mutex_lock(&nvml_lock, LOCK_NVML);
	for (int i = 0; i < NVML_LOOKS && good && *bytes < enough; i++) {
		good = nvml_listed_bytes(d, &listed) && REAL(nvmlDeviceGetMemoryInfo_v2, d->handle, &m) == NVML_SUCCESS;
		used = m.used > used ? m.used : used;
		least = listed < least ? listed : least;
		*bytes = used > least ? used - least : 0;
	}
	mutex_unlock(&nvml_lock);
	return good;
}

/* The list and the charges cannot be read at one instant either. */
bool nvml_uncharged_bytes(struct nvml_device *d, unsigned index, uint64_t enough, uint64_t *bytes)
{
	bool good = true;
	*bytes = 0;
	mutex_lock(&nvml_lock, LOCK_NVML);
	for (int i = 0; i < NVML_LOOKS && good && *bytes < enough; i++) {
		unsigned n = 0;
		uint64_t sum = 0;
		good = nvml_read_list(d, &n);
		for (unsigned j = 0; good && j < n; j++)
			if (nvml_list[j].usedGpuMemory != NVML_VALUE_NOT_AVAILABLE)
				sum += region_uncharged(attach_region(), index, nvml_list[j].pid, nvml_list[j].usedGpuMemory);
		*bytes = sum > *bytes ? sum : *bytes;
	}
	mutex_unlock(&nvml_lock);
	return good;
}
