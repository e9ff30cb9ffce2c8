#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attach.h"
#include "differs.h"
#include "hooks.h"
#include "log.h"
#include "place.h"
#include "region/atomics.h"
#include "region/words.h"

enum { DEVICE_MAX = CONFIG_ORDINALS, DEVICE_READY = 1, DEVICE_UNUSABLE = 2 };

static struct device devices[DEVICE_MAX]; /* by ordinal */
static uint32_t device_indexes;           /* the region's indexes that this process uses, one bit each; atomic */
static mutex device_lock;                 /* LOCK_DEVICE: protects both while a device is added */

void devices_reset(void)
{
	memset(devices, 0, sizeof devices);
	device_indexes = 0;
}

static void device_uuid_words(const unsigned char bytes[16], uint64_t words[2])
{
	for (unsigned w = 0; w < 2; w++) {
		words[w] = 0;
		for (unsigned i = 0; i < 8; i++)
			words[w] = words[w] << 8 | bytes[w * 8 + i];
	}
}

/* device_parse_uuid parses a UUID of the form GPU-8-4-4-4-12 or MIG-8-4-4-4-12 into two words.
 * It returns false if the text has another form. */
static bool device_parse_uuid(const char *text, uint64_t words[2])
{
	unsigned char bytes[16];
	unsigned n = 0;
	const char *p = strchr(text, '-');
	for (; p && *p && n < 32; p++) {
		int digit = *p >= '0' && *p <= '9' ? *p - '0' : (*p | 0x20) >= 'a' && (*p | 0x20) <= 'f' ? (*p | 0x20) - 'a' + 10 : -1;
		if (digit < 0 && *p != '-')
			return false;
		if (digit < 0)
			continue;
		bytes[n / 2] = (unsigned char)(n % 2 ? bytes[n / 2] | digit : digit << 4);
		n++;
	}
	if (n == 32)
		device_uuid_words(bytes, words);
	return n == 32;
}

/* device_preferred_index returns the index that a device should get if the region has no index
 * for it yet. If CUDA_VISIBLE_DEVICES lists the device by number, it is that number; if it
 * lists the device by UUID, NVML's index; without CUDA_VISIBLE_DEVICES, CUDA's ordinal. It may
 * start NVML, so the caller must hold no lock. */
static unsigned device_preferred_index(CUdevice ordinal, const char *uuid)
{
	unsigned listed = attach_config()->visible[ordinal], index;
	nvmlDevice_t handle;
	if (listed == CONFIG_UNLISTED)
		return (unsigned)ordinal;
	if (listed != CONFIG_OTHER)
		return listed;
	if (nvml_start() && nvml_handle_of(uuid, &handle) == NVML_SUCCESS && REAL(nvmlDeviceGetIndex, handle, &index) == NVML_SUCCESS)
		return index;
	return RATION_DEVICES; /* let the region choose the free index with the strictest limit */
}

/* device_offer_share converts a limit given in percent to bytes, now that the device's size is
 * known, and offers it to the region. It returns false if that is not possible; the reason has
 * been logged. */
static bool device_offer_share(const struct device *d)
{
	const struct config_limits *l = &attach_config()->limits;
	char mine[SIZE_TEXT], jobs[SIZE_TEXT], advice[DIFFERS_ADVICE];
	if (!l->memory[d->index].share)
		return true;
	uint64_t limit = config_limit(l, d->index, d->total_bytes);
	if (!limit_bytes(limit)) {
		log_error("device %d: a share of no memory (its size is not known; give its limit in bytes)", d->ordinal);
		return false;
	}
	int err = region_offer_limit(attach_region(), d->index, limit);
	uint64_t has = region_limit(attach_region(), d->index);
	if (err)
		log_error("device %d: setting its limit: %s", d->ordinal, region_error_text(err));
	else if (has != limit)
		log_warn("device %u: this process was given a limit of %s, its job has %s, which counts (%s)", d->index,
			 size_text(limit_bytes(limit), mine), limit_bounds(has) ? size_text(limit_bytes(has), jobs) : "none",
			 differs_advice(attach_config(), "--mem", advice));
	return err == 0;
}

/* device_ask_block asks the driver for the granularity of mapped memory, in bytes. If the
 * driver does not tell, it returns the region's unit. */
static uint64_t device_ask_block(CUdevice ordinal)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal}};
	size_t block = 0;
	if (REAL(cuMemGetAllocationGranularity, &block, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS || block < RATION_UNIT ||
	    block % RATION_UNIT)
		return RATION_UNIT;
	return block;
}

/* device_ask_residents returns how many threads the device can run at a time, or 0 if the
 * driver does not tell. The driver reserves a stack for each of them. */
static uint64_t device_ask_residents(CUdevice ordinal)
{
	int processors = 0, each = 0;
	if (REAL(cuDeviceGetAttribute, &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal) != CUDA_SUCCESS ||
	    REAL(cuDeviceGetAttribute, &each, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, ordinal) != CUDA_SUCCESS ||
	    processors < 0 || each < 0)
		return 0;
	return (uint64_t)processors * (unsigned)each;
}

/* device_add fills in a device that is used for the first time, and returns its state:
 * DEVICE_READY or DEVICE_UNUSABLE. The caller holds LOCK_DEVICE. */
static uint32_t device_add(struct device *d, CUdevice ordinal, const uint64_t uuid[2], const char *text, unsigned preferred)
{
	size_t total = 0;
	d->ordinal = ordinal;
	memcpy(d->uuid, uuid, sizeof d->uuid);
	memcpy(d->nvml.uuid, text, sizeof d->nvml.uuid);
	if (REAL(cuDeviceTotalMem_v2, &total, ordinal) != CUDA_SUCCESS)
		total = 0;
	d->total_bytes = total;
	d->block_bytes = device_ask_block(ordinal);
	d->residents = device_ask_residents(ordinal);
	int index = region_assign_device(attach_region(), uuid, total, preferred, device_indexes);
	if (index < 0) {
		log_error("device %d: the region has no room for another device (it has %u)", ordinal, RATION_DEVICES);
		return DEVICE_UNUSABLE;
	}
	d->index = (unsigned)index;
	__atomic_store_n(&device_indexes, device_indexes | 1u << index, __ATOMIC_RELAXED);
	if (!device_offer_share(d))
		return DEVICE_UNUSABLE;
	if (load_acquire(&attach_region()->limits->device[index].hidden))
		log_warn("device %d (%s) is not one of this job's devices: a program gets no memory of it (ration policy show)", ordinal,
			 text);
	log_info("device %d (%s) is the job's device %d", ordinal, text, index);
	return DEVICE_READY;
}

static int device_found(struct device *d, uint32_t state, struct device **out)
{
	if (state != DEVICE_READY)
		return -1;
	*out = d;
	return 1;
}

int device_of(CUdevice ordinal, struct device **out)
{
	CUuuid id = {{0}};
	uint64_t words[2] = {0, 0};
	char uuid[sizeof devices[0].nvml.uuid] = "";
	*out = NULL;
	if (ordinal < 0 || ordinal >= DEVICE_MAX)
		return 0;
	struct device *d = &devices[ordinal];
	uint32_t state = __atomic_load_n(&d->state, __ATOMIC_ACQUIRE);
	if (likely(state))
		return device_found(d, state, out);
	/* The newer call gives each MIG part of a divided device its own UUID. */
	int result = REAL(cuDeviceGetUuid_v2, &id, ordinal);
	if (result == CUDA_ERROR_NOT_FOUND)
		result = REAL(cuDeviceGetUuid, &id, ordinal);
	if (result == CUDA_SUCCESS) {
		device_uuid_words(id.bytes, words);
		place_uuid_text(words, uuid);
	} else if (result != CUDA_ERROR_NOT_FOUND) {
		return 0;
	}
	unsigned preferred = device_preferred_index(ordinal, uuid);
	mutex_lock(&device_lock, LOCK_DEVICE);
	if (!d->state)
		__atomic_store_n(&d->state, device_add(d, ordinal, words, uuid, preferred), __ATOMIC_RELEASE);
	state = d->state;
	mutex_unlock(&device_lock);
	return device_found(d, state, out);
}

bool devices_several(void)
{
	uint32_t t = __atomic_load_n(&device_indexes, __ATOMIC_RELAXED);
	return t & (t - 1);
}

struct device *device_at(unsigned index)
{
	for (unsigned i = 0; i < DEVICE_MAX; i++)
		if (__atomic_load_n(&devices[i].state, __ATOMIC_ACQUIRE) == DEVICE_READY && devices[i].index == index)
			return &devices[i];
	return NULL;
}

int device_named_by_nvml(nvmlDevice_t device)
{
	char text[96];
	uint64_t words[2];
	if (REAL(nvmlDeviceGetUUID, device, text, sizeof text) != NVML_SUCCESS || !device_parse_uuid(text, words))
		return -1;
	return region_find_device(attach_region(), words);
}

int device_index_of_nvml(nvmlDevice_t device)
{
	unsigned index;
	int found = device_named_by_nvml(device);
	if (found >= 0)
		return found;
	/* No process of the job has used this device: it will get NVML's number if that is free. */
	if (REAL(nvmlDeviceGetIndex, device, &index) != NVML_SUCCESS || index >= RATION_DEVICES ||
	    load_acquire(&attach_region()->limits->device[index].uuid[1]))
		return -1;
	return (int)index;
}
