#include "nvml.h"

#include <sys/mman.h>
#include <unistd.h>

#include "region/atomics.h"
#include "hooks.h"
#include "attach.h"
#include "log.h"
#include "interpose.h"
#include "region/words.h"

/* The most processes of one device that we look for ourselves among. */
#define LIST 1024

enum { UNTRIED, STARTED, FAILED };

/* Over the list, handles and what was seen. No call into the dynamic linker is made
 * under it, and no other lock of ours is taken. */
static mutex lock;
static nvmlProcessInfo_t *list;

/* Our PID, where the driver's list has us by it. */
static uint64_t own_name;

static uint32_t *state(void) { return &__atomic_load_n(&attach_page, __ATOMIC_ACQUIRE)->nvml; }

bool nvml_tried(void) { return __atomic_load_n(state(), __ATOMIC_ACQUIRE) != UNTRIED; }

bool nvml_started(void) { return __atomic_load_n(state(), __ATOMIC_ACQUIRE) == STARTED; }

bool nvml_start(void)
{
	uint32_t s = __atomic_load_n(state(), __ATOMIC_ACQUIRE);
	if (s != UNTRIED)
		return s == STARTED;
	/* Twice does no harm: NVML counts its users. */
	bool good = ration_load_nvml() && REAL(nvmlInit_v2) == NVML_SUCCESS;
	if (!good)
		log_info("NVML cannot be used: driver overhead is not counted");
	__atomic_store_n(state(), good ? STARTED : FAILED, __ATOMIC_RELEASE);
	return good;
}

void nvml_set_pid(uint32_t pid) { __atomic_store_n(&own_name, pid, __ATOMIC_RELAXED); }

void nvml_reset(void) { __atomic_store_n(&own_name, 0, __ATOMIC_RELAXED); }

static bool handle(struct device *d)
{
	if (d->nvml)
		return true;
	if (REAL(nvmlDeviceGetHandleByUUID, d->uuid, &d->nvml) == NVML_SUCCESS)
		return true;
	/* Part of a divided device. */
	char mig[sizeof d->uuid];
	__builtin_memcpy(mig, d->uuid, sizeof mig);
	__builtin_memcpy(mig, "MIG", 3);
	return REAL(nvmlDeviceGetHandleByUUID, mig, &d->nvml) == NVML_SUCCESS;
}

static int read_list(struct device *d, unsigned *n)
{
	if (!list) {
		void *mem = mmap(NULL, LIST * sizeof *list, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (mem == MAP_FAILED)
			return NVML_ERROR_INSUFFICIENT_SIZE;
		list = mem;
	}
	*n = LIST;
	if (ration_real(CALL_nvmlDeviceGetComputeRunningProcesses_v3))
		return REAL(nvmlDeviceGetComputeRunningProcesses_v3, d->nvml, n, list);
	return REAL(nvmlDeviceGetComputeRunningProcesses_v2, d->nvml, n, list);
}

bool nvml_pids(struct device *d, uint32_t *pids, unsigned most, unsigned *n)
{
	unsigned all;
	if (!nvml_start())
		return false;
	mutex_lock(&lock);
	bool good = handle(d) && read_list(d, &all) == NVML_SUCCESS;
	for (*n = 0; good && *n < all && *n < most; ++*n)
		pids[*n] = list[*n].pid;
	mutex_unlock(&lock);
	return good;
}

/* listed sums up what the driver's list has under a PID: 1, or 0 where it is not
 * there, or -1 where the list could not be read, which says nothing. Under the
 * lock. */
static int listed(struct device *d, uint64_t pid, uint64_t *bytes)
{
	unsigned n;
	int found = 0;
	*bytes = 0;
	if (!handle(d) || read_list(d, &n) != NVML_SUCCESS)
		return -1;
	for (unsigned i = 0; i < n; i++)
		if (list[i].pid == pid && list[i].usedGpuMemory != NVML_VALUE_NOT_AVAILABLE) {
			*bytes += list[i].usedGpuMemory;
			found = 1;
		}
	return found;
}

static uint64_t names(bool own)
{
	const struct region *r = attach_region();
	return make_nvml_pids(load_acquire(&r->m->slots[r->slot].pidns), own);
}

/* name is our PID in the driver's list, or 0. */
static uint64_t name(void)
{
	uint64_t pid = attach_host_pid();
	if (!pid)
		pid = load_relaxed(&own_name);
	if (!pid && load_relaxed(&attach_region()->m->header.nvml_pids) == names(true))
		pid = (uint64_t)getpid();
	return pid;
}

bool nvml_pid_known(void) { return name() != 0; }

bool nvml_pid_undecided(void) { return !name() && load_relaxed(&attach_region()->m->header.nvml_pids) != names(false); }

bool nvml_pid_unlisted(struct device *d)
{
	uint64_t figure;
	if (!nvml_start())
		return false;
	mutex_lock(&lock);
	bool unlisted = listed(d, (uint64_t)getpid(), &figure) == 0;
	mutex_unlock(&lock);
	return unlisted;
}

void nvml_decide_pid(struct device *d)
{
	uint64_t figure;
	mutex_lock(&lock);
	int found = listed(d, (uint64_t)getpid(), &figure);
	mutex_unlock(&lock);
	if (found == 1)
		__atomic_store_n(&own_name, (uint64_t)getpid(), __ATOMIC_RELAXED);
	/* Nothing else is read by this word. */
	if (found >= 0 && load_relaxed(&attach_region()->m->header.nvml_pids) != names(found))
		store_release(&attach_region()->m->header.nvml_pids, names(found));
}

bool nvml_own_bytes(struct device *d, uint64_t *bytes)
{
	uint64_t pid = name();
	*bytes = 0;
	mutex_lock(&lock);
	int found = pid ? listed(d, pid, bytes) : 0;
	if (found > 0)
		d->seen = true;
	bool known = found >= 0 && d->seen;
	mutex_unlock(&lock);
	if (known)
		region_set_driver_bytes(attach_region(), d->index, *bytes);
	return known;
}

bool nvml_device_used(struct device *d, uint64_t *bytes)
{
	nvmlMemory_t m;
	mutex_lock(&lock);
	bool good = handle(d) && REAL(nvmlDeviceGetMemoryInfo, d->nvml, &m) == NVML_SUCCESS;
	mutex_unlock(&lock);
	*bytes = good ? m.used : 0;
	return good;
}
