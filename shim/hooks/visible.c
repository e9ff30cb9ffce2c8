/* The devices that NVML shows in a job that has only some of the machine's: these, numbered from
 * 0, in the order of the machine's numbers. */
#include "hooks/init.h"
#include "place.h"
#include "region/atomics.h"

/* visible_place returns whether devices are hidden from this process; then *out has the others. */
static bool visible_place(struct place *out)
{
	*out = (struct place){.some = false};
	if (!init_read_only())
		return false;
	for (unsigned d = 0; d < RATION_DEVICES; d++) {
		const struct ration_device_limits *on = &attach_region()->limits->device[d];
		/* The UUIDs of a placed job are written before a process can open it. */
		struct ration_device_limits l = {.hidden = load_acquire(&on->hidden), .uuid[1] = load_acquire(&on->uuid[1])};
		l.uuid[0] = load_acquire(&on->uuid[0]);
		place_add(out, d, &l);
	}
	return out->some;
}

/* visible_number returns the number of NVML's handle among the visible devices, or -1 if it is
 * hidden. */
static int visible_number(const struct place *p, nvmlDevice_t device)
{
	int index = device_named_by_nvml(device);
	for (unsigned i = 0; i < p->count; i++)
		if ((int)p->visible[i].index == index)
			return (int)i;
	return -1;
}

/* visible_or_none returns the result of a call that found a device, or that there is none. */
static int visible_or_none(int result, nvmlDevice_t *out)
{
	struct place p;
	if (result != NVML_SUCCESS || !visible_place(&p) || visible_number(&p, *out) >= 0)
		return result;
	*out = NULL;
	return NVML_ERROR_NOT_FOUND;
}

/* visible_count changes the number of devices that a call returned. */
static int visible_count(int result, unsigned *count)
{
	struct place p;
	if (result == NVML_SUCCESS && visible_place(&p))
		*count = p.count;
	return result;
}

int nvmlDeviceGetCount(unsigned *count) { return visible_count(REAL(nvmlDeviceGetCount, count), count); }

int nvmlDeviceGetCount_v2(unsigned *count) { return visible_count(REAL(nvmlDeviceGetCount_v2, count), count); }

/* visible_handle finds a device by its number. */
static int visible_handle(const struct place *p, unsigned number, nvmlDevice_t *out)
{
	char uuid[PLACE_UUID];
	if (number >= p->count)
		return NVML_ERROR_INVALID_ARGUMENT;
	place_uuid_text(p->visible[number].uuid, uuid);
	return REAL(nvmlDeviceGetHandleByUUID, uuid, out);
}

int nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *out)
{
	struct place p;
	return visible_place(&p) ? visible_handle(&p, index, out) : REAL(nvmlDeviceGetHandleByIndex, index, out);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out)
{
	struct place p;
	return visible_place(&p) ? visible_handle(&p, index, out) : REAL(nvmlDeviceGetHandleByIndex_v2, index, out);
}

int nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
	struct place p;
	int result = REAL(nvmlDeviceGetIndex, device, index), number;
	if (result == NVML_SUCCESS && visible_place(&p) && (number = visible_number(&p, device)) >= 0)
		*index = (unsigned)number;
	return result;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
	return visible_or_none(REAL(nvmlDeviceGetHandleByUUID, uuid, out), out);
}

int nvmlDeviceGetHandleByUUIDV(const void *uuid, nvmlDevice_t *out)
{
	return visible_or_none(REAL(nvmlDeviceGetHandleByUUIDV, uuid, out), out);
}

int nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *out)
{
	return visible_or_none(REAL(nvmlDeviceGetHandleByPciBusId, id, out), out);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *out)
{
	return visible_or_none(REAL(nvmlDeviceGetHandleByPciBusId_v2, id, out), out);
}

int nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *out)
{
	return visible_or_none(REAL(nvmlDeviceGetHandleBySerial, serial, out), out);
}
