#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "driver.h"

static unsigned device_visible[MAX_DEVICES];
static unsigned device_visible_count;

unsigned visible_devices(void) { return device_visible_count; }
unsigned device_index(CUdevice ordinal) { return device_visible[ordinal]; }

/* Returns the machine's index of the device that one entry of CUDA_VISIBLE_DEVICES names, or -1 if
 * it names none. A UUID may be abbreviated if only one device matches. */
static int device_entry_index(const char *entry)
{
	int found = -1;
	char *end;
	unsigned long n = strtoul(entry, &end, 10);

	if (end != entry && *end == '\0' && *entry != '-')
		return n < machine_presents() ? (int)machine_present((unsigned)n) : -1;
	if ((strncasecmp(entry, "GPU-", 4) != 0 && strncasecmp(entry, "MIG-", 4) != 0) || entry[4] == '\0')
		return -1;
	for (unsigned i = 0; i < machine_presents(); i++) {
		char text[UUID_TEXT];
		model_uuid_text(machine_shape()->model, machine_present(i), text);
		if (strncasecmp(text, entry, strlen(entry)) != 0)
			continue;
		if (found >= 0)
			return -1;
		found = (int)machine_present(i);
	}
	return found;
}

static bool device_is_visible(int index)
{
	for (unsigned i = 0; i < device_visible_count; i++)
		if (device_visible[i] == (unsigned)index)
			return true;
	return false;
}

/* Of MIG devices, a process can use one. */
static void device_one_part(void)
{
	if (machine_shape()->model->parts > 0 && device_visible_count > 1)
		device_visible_count = 1;
}

/* An entry that names no device ends the list; naming one twice is an error. */
CUresult devices_load(void)
{
	CUresult r = CUDA_SUCCESS;
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	char *copy, *save = NULL;

	device_visible_count = 0;
	if (list == NULL) {
		while (device_visible_count < machine_presents()) {
			device_visible[device_visible_count] = machine_present(device_visible_count);
			device_visible_count++;
		}
		device_one_part();
		return device_visible_count == 0 ? CUDA_ERROR_NO_DEVICE : r;
	}
	copy = strdup(list);
	for (char *e = copy ? strtok_r(copy, ",", &save) : NULL; e != NULL; e = strtok_r(NULL, ",", &save)) {
		int index;
		e += strspn(e, " ");
		e[strcspn(e, " ")] = '\0';
		index = device_entry_index(e);
		if (index >= 0 && device_is_visible(index))
			r = CUDA_ERROR_INVALID_DEVICE;
		if (index < 0 || r != CUDA_SUCCESS)
			break;
		device_visible[device_visible_count++] = (unsigned)index;
	}
	free(copy);
	device_one_part();
	return r == CUDA_SUCCESS && device_visible_count == 0 ? CUDA_ERROR_NO_DEVICE : r;
}

CUresult device_check(CUdevice ordinal)
{
	TRY(driver_ready());
	return ordinal < 0 || (unsigned)ordinal >= device_visible_count ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice *device, int ordinal)
{
	TRY(device_check(ordinal));
	if (device == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

API cuDeviceGetCount(int *count)
{
	TRY(driver_ready());
	if (count == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*count = (int)device_visible_count;
	return CUDA_SUCCESS;
}

API cuDeviceGetName(char *name, int len, CUdevice device)
{
	TRY(device_check(device));
	if (name == NULL || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)len, "%s", machine_shape()->model->name);
	return CUDA_SUCCESS;
}

API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	TRY(device_check(device));
	if (uuid == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	model_uuid(machine_shape()->model, device_index(device), uuid->bytes);
	return CUDA_SUCCESS;
}

/* The older call has no UUID of a MIG device, and returns that of its GPU. */
API cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	const struct model *m = machine_shape()->model;
	TRY(cuDeviceGetUuid_v2(uuid, device));
	if (m->parts > 0)
		model_gpu_uuid(m, model_gpu(m, device_index(device)), uuid->bytes);
	return CUDA_SUCCESS;
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	TRY(device_check(device));
	if (bytes == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = machine_capacity(device_index(device));
	return CUDA_SUCCESS;
}

API cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
	size_t n;
	TRY(cuDeviceTotalMem_v2(&n, device));
	if (bytes == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = n > UINT32_MAX ? UINT32_MAX : (unsigned)n;
	return CUDA_SUCCESS;
}

API cuDeviceGetPCIBusId(char *text, int len, CUdevice device)
{
	char bus[BUS_TEXT];
	TRY(device_check(device));
	if (text == NULL || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	bus_text(model_gpu(machine_shape()->model, device_index(device)), bus);
	snprintf(text, (size_t)len, "%s", bus + 4); /* CUDA writes four digits of the domain */
	return CUDA_SUCCESS;
}

API cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
	TRY(driver_ready());
	if (device == NULL || text == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < device_visible_count; i++) {
		char bus[BUS_TEXT];
		bus_text(model_gpu(machine_shape()->model, device_visible[i]), bus);
		if (strcasecmp(bus, text) == 0 || strcasecmp(bus + 4, text) == 0) {
			*device = (CUdevice)i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

API cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
	TRY(device_check(device));
	if (major == NULL || minor == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*major = machine_shape()->model->major;
	*minor = machine_shape()->model->minor;
	return CUDA_SUCCESS;
}

API cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	TRY(device_check(device));
	TRY(device_check(peer));
	if (can == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*can = device != peer;
	return CUDA_SUCCESS;
}

API cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice device, CUdevice peer)
{
	TRY(device_check(device));
	TRY(device_check(peer));
	if (value == NULL || attribute < 1 || attribute > 4 || device == peer)
		return CUDA_ERROR_INVALID_VALUE;
	*value = attribute == 1 ? 0 : 1;
	return CUDA_SUCCESS;
}
