/* What the job sees: the ration is the device. Total is the limit, used is what the
 * whole job holds, free is what is left of it and of the device. */
#include <sys/mman.h>
#include <time.h>

#include "charge.h"
#include "region/atomics.h"
#include "hooks/context.h"
#include "hooks/graph.h"
#include "attach.h"
#include "hooks/pool.h"
#include "region/words.h"

/* What dead processes held is not used; asking the kernel about each costs enough
 * not to do it each time. */
static void reap(void)
{
	static uint64_t last;
	struct timespec t;
	unsigned slots;
	clock_gettime(CLOCK_MONOTONIC, &t);
	uint64_t now = (uint64_t)t.tv_sec * 100 + (uint64_t)t.tv_nsec / 10000000 + 10, before = load_relaxed(&last);
	if (now - before >= 10 && cas(&last, before, now))
		region_reap(attach_region(), &slots);
}

struct view {
	uint64_t total, used, free;
};

/* ration makes a view of the device into one of the ration; false where the device
 * has no limit. */
static bool ration(unsigned device, struct view *v)
{
	struct region *r = attach_region();
	uint64_t limit = region_limit(r, device);
	if (!limit_bounds(limit))
		return false;
	reap();
	uint64_t total = limit_bytes(limit) < v->total ? limit_bytes(limit) : v->total;
	uint64_t used = region_used(r, device), left = total > used ? total - used : 0;
	v->total = total;
	v->free = left < v->free ? left : v->free;
	v->used = used < total ? used : total;
	return true;
}

/* info is cuMemGetInfo's answer, in full. */
static int info(struct view *v)
{
	struct alloc_target at;
	size_t free_bytes = 0, total = 0;
	int result = REAL(cuMemGetInfo_v2, &free_bytes, &total);
	*v = (struct view){total, total - free_bytes, free_bytes};
	if (result != CUDA_SUCCESS || attach_state() != ATTACH_ON || context_target(&at) != 1)
		return result;
	pools_sync_charges(at.device->index);
	graph_sync(at.device);
	ration(at.device->index, v);
	return result;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	struct view v;
	LEAVE_ALONE(cuMemGetInfo_v2, free_bytes, total);
	int result = info(&v);
	if (result == CUDA_SUCCESS && free_bytes)
		*free_bytes = v.free;
	if (result == CUDA_SUCCESS && total)
		*total = v.total;
	return result;
}

static unsigned clamp(uint64_t n) { return n > UINT32_MAX ? UINT32_MAX : (unsigned)n; }

int cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
	struct view v;
	LEAVE_ALONE(cuMemGetInfo, free_bytes, total);
	int result = info(&v);
	if (result == CUDA_SUCCESS && free_bytes)
		*free_bytes = clamp(v.free);
	if (result == CUDA_SUCCESS && total)
		*total = clamp(v.total);
	return result;
}

static uint64_t device_total(CUdevice ordinal, uint64_t real)
{
	struct device *d;
	if (attach_state() != ATTACH_ON || device_of(ordinal, &d) != 1)
		return real;
	uint64_t limit = region_limit(attach_region(), d->index);
	return limit_bounds(limit) && limit_bytes(limit) < real ? limit_bytes(limit) : real;
}

int cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	int result = REAL(cuDeviceTotalMem_v2, bytes, device);
	if (result == CUDA_SUCCESS)
		*bytes = device_total(device, *bytes);
	return result;
}

int cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
	size_t real;
	int result = REAL(cuDeviceTotalMem, bytes, device);
	if (result == CUDA_SUCCESS && REAL(cuDeviceTotalMem_v2, &real, device) == CUDA_SUCCESS)
		*bytes = clamp(device_total(device, real));
	return result;
}

/* NVML is asked by programs that never use CUDA: they look, and do not join. */

int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
	int result = REAL(nvmlDeviceGetMemoryInfo, device, out);
	if (result != NVML_SUCCESS || !attach_read_only())
		return result;
	struct view v = {out->total, out->used, out->free};
	int index = device_index_of_nvml(device);
	if (index >= 0 && ration((unsigned)index, &v))
		*out = (nvmlMemory_t){v.total, v.free, v.used};
	return result;
}

int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
	int result = REAL(nvmlDeviceGetMemoryInfo_v2, device, out);
	if (result != NVML_SUCCESS || !attach_read_only())
		return result;
	struct view v = {out->total, out->used, out->free};
	int index = device_index_of_nvml(device);
	if (index >= 0 && ration((unsigned)index, &v)) {
		out->total = v.total;
		out->used = v.used;
		out->free = v.free;
		out->reserved = v.total - v.used - v.free; /* what others have taken of the job's part */
	}
	return result;
}

/* own_process says whether a PID, as the driver has it, is one of the job's. */
static bool own_process(unsigned pid)
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

/* LIST_OF answers with the job's own processes. The driver is asked with room for
 * all there can be, so that what is left over decides whether out is too small. */
enum { MOST = 4096 };

#define LIST_OF(type, symbol)                                                                                          \
	do {                                                                                                           \
		unsigned all = MOST, n = 0;                                                                            \
		if (!count || !attach_read_only())                                                                            \
			return REAL(symbol, device, count, out);                                                       \
		type *list = mmap(NULL, MOST * sizeof *list, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); \
		if ((void *)list == MAP_FAILED)                                                                        \
			return REAL(symbol, device, count, out);                                                       \
		int result = REAL(symbol, device, &all, list);                                                         \
		for (unsigned i = 0; result == NVML_SUCCESS && i < all; i++)                                           \
			if (own_process(list[i].pid))                                                                  \
				list[n++] = list[i];                                                                   \
		if (result == NVML_SUCCESS && n > *count)                                                              \
			result = NVML_ERROR_INSUFFICIENT_SIZE;                                                         \
		for (unsigned i = 0; result == NVML_SUCCESS && out && i < n; i++)                                      \
			out[i] = list[i];                                                                              \
		if (result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE)                                  \
			*count = n;                                                                                    \
		munmap(list, MOST * sizeof *list);                                                                     \
		return result;                                                                                         \
	} while (0)

#define LISTS(name)                                                                                                    \
	int name(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *out) { LIST_OF(nvmlProcessInfo_v1_t, name); } \
	int name##_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out) { LIST_OF(nvmlProcessInfo_t, name##_v2); } \
	int name##_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out) { LIST_OF(nvmlProcessInfo_t, name##_v3); }

LISTS(nvmlDeviceGetComputeRunningProcesses)
LISTS(nvmlDeviceGetGraphicsRunningProcesses)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses)
