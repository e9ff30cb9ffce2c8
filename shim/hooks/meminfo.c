/* The memory sizes that the job sees. Total is the limit, used is the memory that the whole job
 * holds, and free is what is left of the limit or of the device, whichever is less. */
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "charge.h"
#include "gate.h"
#include "hooks/context_table.h"
#include "hooks/graph.h"
#include "hooks/pool.h"
#include "overhead.h"
#include "region/atomics.h"
#include "region/words.h"

/* meminfo_reap returns the charges of dead processes, at most ten times a second: to ask the
 * kernel about each process takes time. */
static void meminfo_reap(void)
{
	static uint64_t last;
	struct timespec t;
	unsigned slots = 0;
	clock_gettime(CLOCK_MONOTONIC, &t);
	uint64_t now = (uint64_t)t.tv_sec * 100 + (uint64_t)t.tv_nsec / 10000000 + 10, before = load_relaxed(&last);
	if (now - before >= 10 && cas(&last, before, now))
		region_reap(attach_region(), &slots);
	if (slots)
		overhead_read_soon(); /* the driver may count for this process what a dead importer had open, too */
}

struct meminfo {
	uint64_t total, used, free; /* bytes */
};

/* meminfo_limit changes *m from the device's sizes to the job's. It returns false if the device
 * has no limit. */
static bool meminfo_limit(unsigned device, struct meminfo *m)
{
	struct region *r = attach_region();
	uint64_t limit = region_limit(r, device);
	if (!limit_bounds(limit))
		return false;
	meminfo_reap();
	uint64_t total = limit_bytes(limit) < m->total ? limit_bytes(limit) : m->total;
	uint64_t used = region_used(r, device), left = total > used ? total - used : 0;
	m->total = total;
	m->free = left < m->free ? left : m->free;
	m->used = used < total ? used : total;
	return true;
}

/* meminfo_current does the work of cuMemGetInfo, with 64-bit sizes. It returns the driver's
 * result. */
static int meminfo_current(struct meminfo *m)
{
	struct alloc_target t;
	size_t free_bytes = 0, total = 0;
	gate_pass(GATE_WAITS); /* the driver may wait, and the job's memory is not counted meanwhile */
	int result = REAL(cuMemGetInfo_v2, &free_bytes, &total);
	*m = (struct meminfo){total, total - free_bytes, free_bytes};
	if (result != CUDA_SUCCESS || context_target(&t) != 1)
		return result;
	pools_sync_charges(t.device->index);
	graph_sync(t.device);
	meminfo_limit(t.device->index, m);
	return result;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	struct meminfo m;
	if (!attach_on())
		return REAL(cuMemGetInfo_v2, free_bytes, total);
	int result = meminfo_current(&m);
	if (result == CUDA_SUCCESS && free_bytes)
		*free_bytes = m.free;
	if (result == CUDA_SUCCESS && total)
		*total = m.total;
	return result;
}

static unsigned meminfo_clamp(uint64_t n) { return n > UINT32_MAX ? UINT32_MAX : (unsigned)n; }

int cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
	struct meminfo m;
	if (!attach_on())
		return REAL(cuMemGetInfo, free_bytes, total);
	int result = meminfo_current(&m);
	if (result == CUDA_SUCCESS && free_bytes)
		*free_bytes = meminfo_clamp(m.free);
	if (result == CUDA_SUCCESS && total)
		*total = meminfo_clamp(m.total);
	return result;
}

static uint64_t meminfo_total(CUdevice ordinal, uint64_t real)
{
	struct device *d;
	if (!attach_on() || device_of(ordinal, &d) != 1)
		return real;
	uint64_t limit = region_limit(attach_region(), d->index);
	if (limit_bounds(limit) && !limit_bytes(limit)) { /* the ration of a job that sleeps may be lent */
		gate_pass(GATE_WAITS);
		limit = region_limit(attach_region(), d->index);
	}
	return limit_bounds(limit) && limit_bytes(limit) < real ? limit_bytes(limit) : real;
}

int cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	int result = REAL(cuDeviceTotalMem_v2, bytes, device);
	if (result == CUDA_SUCCESS)
		*bytes = meminfo_total(device, *bytes);
	return result;
}

int cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
	size_t real;
	int result = REAL(cuDeviceTotalMem, bytes, device);
	if (result == CUDA_SUCCESS && REAL(cuDeviceTotalMem_v2, &real, device) == CUDA_SUCCESS)
		*bytes = meminfo_clamp(meminfo_total(device, real));
	return result;
}

/* Programs that never use CUDA ask NVML: for them the region is only read, and they do not join. */

int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
	int result = REAL(nvmlDeviceGetMemoryInfo, device, out);
	if (result != NVML_SUCCESS || !init_read_only())
		return result;
	struct meminfo m = {out->total, out->used, out->free};
	int index = device_index_of_nvml(device);
	if (index >= 0 && meminfo_limit((unsigned)index, &m))
		*out = (nvmlMemory_t){m.total, m.free, m.used};
	return result;
}

int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
	int result = REAL(nvmlDeviceGetMemoryInfo_v2, device, out);
	if (result != NVML_SUCCESS || !init_read_only())
		return result;
	struct meminfo m = {out->total, out->used, out->free};
	int index = device_index_of_nvml(device);
	if (index >= 0 && meminfo_limit((unsigned)index, &m)) {
		out->total = m.total;
		out->used = m.used;
		out->free = m.free;
		out->reserved = m.total - m.used - m.free; /* memory of the job's part that processes outside the job use */
	}
	return result;
}

/* meminfo_own_process reports whether a PID in the driver's list belongs to the job. */
static bool meminfo_own_process(unsigned pid)
{
	const struct region *r = attach_region();
	uint64_t high = load_acquire(&r->m->header.high_water);
	for (unsigned i = 0; i < high && i < RATION_SLOTS; i++)
		if (status_state(load_acquire(&r->m->status[i])) == RATION_SLOT_ACTIVE) {
			uint64_t host = host_pid_of(load_acquire(&r->m->slots[i].host_pid));
			if (pid == (host ? host : load_acquire(&r->m->slots[i].pid)))
				return true;
		}
	return false;
}

enum { MEMINFO_LIST = 4096 };

/* All these calls have the same parameters, except the type of an entry, which begins with the
 * PID. */
typedef int (*meminfo_list_call)(nvmlDevice_t device, unsigned *count, void *out);

/* meminfo_list returns a list of only the job's processes. It asks the driver with space for
 * all processes, so that only the job's own count decides whether out is too small. */
static int meminfo_list(enum ration_call call, nvmlDevice_t device, unsigned *count, void *out, size_t entry)
{
	meminfo_list_call real = (meminfo_list_call)ration_real(call);
	unsigned all = MEMINFO_LIST, n = 0;
	if (!real)
		return ration_absent(call);
	char *list = count && init_read_only()
			     ? mmap(NULL, MEMINFO_LIST * entry, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
			     : MAP_FAILED;
	if (list == MAP_FAILED)
		return real(device, count, out);
	int result = real(device, &all, list);
	for (unsigned i = 0; result == NVML_SUCCESS && i < all; i++)
		if (meminfo_own_process(*(const unsigned *)(list + i * entry)))
			memmove(list + n++ * entry, list + i * entry, entry);
	if (result == NVML_SUCCESS && n > *count)
		result = NVML_ERROR_INSUFFICIENT_SIZE;
	if (result == NVML_SUCCESS && out)
		memcpy(out, list, n * entry);
	if (result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE)
		*count = n;
	munmap(list, MEMINFO_LIST * entry);
	return result;
}

#define MEMINFO_LIST_HOOK(symbol, type) \
	int symbol(nvmlDevice_t device, unsigned *count, type *out) { return meminfo_list(CALL_##symbol, device, count, out, sizeof *out); }

MEMINFO_LIST_HOOK(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
MEMINFO_LIST_HOOK(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t)
MEMINFO_LIST_HOOK(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
MEMINFO_LIST_HOOK(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
MEMINFO_LIST_HOOK(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t)
MEMINFO_LIST_HOOK(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
MEMINFO_LIST_HOOK(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
MEMINFO_LIST_HOOK(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t)
MEMINFO_LIST_HOOK(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)
