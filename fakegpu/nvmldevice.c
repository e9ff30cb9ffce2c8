/* NVML: what a device is, what it holds, and for which processes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvml.h"

static nvmlReturn_t nvmldevice_text(nvmlDevice_t device, char *out, unsigned size, const char *value)
{
	unsigned i;
	NVML_TRY(nvml_index(device, &i));
	if (out == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(value) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, value);
	return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned size)
{
	unsigned gpu;
	NVML_TRY(nvml_ready());
	return nvmldevice_text(device, out, size, nvml_divided(device, &gpu) ? machine_shape()->model->gpu : machine_shape()->model->name);
}

NVML_API nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned size)
{
	unsigned char uuid[16];
	char mine[UUID_TEXT];
	unsigned i, gpu;
	NVML_TRY(nvml_index(device, &i));
	model_uuid_text(machine_shape()->model, i, mine);
	if (nvml_divided(device, &gpu)) {
		model_gpu_uuid(machine_shape()->model, gpu, uuid);
		uuid_text(uuid, mine);
	}
	return nvmldevice_text(device, out, size, mine);
}

static nvmlReturn_t nvmldevice_pci(nvmlDevice_t device, const void *out, nvmlPciInfo_t *info)
{
	char bus[BUS_TEXT];
	unsigned i;
	NVML_TRY(nvml_index(device, &i));
	if (out == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	i = model_gpu(machine_shape()->model, i);
	bus_text(i, bus);
	*info = (nvmlPciInfo_t){.bus = bus_number(i), .pciDeviceId = 0x233510de, .pciSubSystemId = 0x18be10de};
	strcpy(info->busId, bus);
	strcpy(info->busIdLegacy, bus + 4);
	return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out)
{
	nvmlPciInfo_t info;
	NVML_TRY(nvmldevice_pci(device, out, &info));
	*out = info;
	return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v1_t *out)
{
	nvmlPciInfo_t info;
	NVML_TRY(nvmldevice_pci(device, out, &info));
	*out = (nvmlPciInfo_v1_t){.domain = info.domain, .bus = info.bus, .device = info.device, .pciDeviceId = info.pciDeviceId};
	memcpy(out->busId, info.busIdLegacy, sizeof out->busId);
	return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v1_t *out) { return nvmlDeviceGetPciInfo(device, out); }

/* A GPU that is divided has its own total, and holds what its MIG devices do. */
static uint64_t nvmldevice_total(nvmlDevice_t device)
{
	unsigned gpu;
	return nvml_divided(device, &gpu) ? machine_shape()->model->gpu_mib << 20 : machine_shape()->bytes;
}

static uint64_t nvmldevice_booked(nvmlDevice_t device, unsigned index)
{
	unsigned gpu, parts = machine_shape()->model->parts;
	uint64_t sum = 0;
	if (!nvml_divided(device, &gpu))
		return machine_booked(index);
	for (unsigned i = gpu * parts; i < (gpu + 1) * parts && i < machine_shape()->devices; i++)
		sum += machine_booked(i);
	return sum;
}

/* The first call has no word for what the driver reserves, and calls it used. */
NVML_API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
	unsigned i;
	NVML_TRY(nvml_index(device, &i));
	if (out == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	out->total = nvmldevice_total(device);
	out->used = nvmldevice_booked(device, i) + machine_reserved(i);
	out->free = out->total - out->used;
	return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
	unsigned i;
	NVML_TRY(nvml_index(device, &i));
	if (out == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != NVML_MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	out->total = nvmldevice_total(device);
	out->reserved = machine_reserved(i);
	out->used = nvmldevice_booked(device, i);
	out->free = out->total - out->used - out->reserved;
	return NVML_SUCCESS;
}

/* Calls put for each process; with too little room only says how many there are. */
static nvmlReturn_t nvmldevice_processes(nvmlDevice_t device, unsigned *count, void *out,
					 void (*put)(void *out, unsigned at, const struct process_info *p))
{
	struct process_info *list;
	unsigned i, n, gpu, parts;

	NVML_TRY(nvml_index(device, &i));
	parts = machine_shape()->model->parts;
	if (count == NULL || (*count > 0 && out == NULL))
		return NVML_ERROR_INVALID_ARGUMENT;
	list = malloc(MAX_PROCESSES * sizeof *list);
	if (list == NULL)
		return NVML_ERROR_UNKNOWN;
	n = machine_processes(i, list, MAX_PROCESSES);
	if (nvml_divided(device, &gpu))
		for (unsigned k = gpu * parts, first = i; k < (gpu + 1) * parts && k < machine_shape()->devices; k++)
			n += k != first ? machine_processes(k, list + n, MAX_PROCESSES - n) : 0;
	for (unsigned k = 0; n <= *count && k < n; k++)
		put(out, k, &list[k]);
	free(list);
	i = *count;
	*count = n;
	return n <= i ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

static void nvmldevice_put_v1(void *out, unsigned at, const struct process_info *p)
{
	((nvmlProcessInfo_v1_t *)out)[at] = (nvmlProcessInfo_v1_t){p->pid, p->used + p->hidden};
}

static void nvmldevice_put(void *out, unsigned at, const struct process_info *p)
{
	((nvmlProcessInfo_t *)out)[at] =
		(nvmlProcessInfo_t){p->pid, p->used + p->hidden, (unsigned)NVML_NO_INSTANCE, (unsigned)NVML_NO_INSTANCE};
}

NVML_API nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_v1_t *out)
{
	return nvmldevice_processes(d, n, out, nvmldevice_put_v1);
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *out)
{
	return nvmldevice_processes(d, n, out, nvmldevice_put);
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *out)
{
	return nvmldevice_processes(d, n, out, nvmldevice_put);
}

static nvmlReturn_t nvmldevice_no_processes(nvmlDevice_t device, unsigned *count)
{
	unsigned i;
	NVML_TRY(nvml_index(device, &i));
	if (count == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

#define NO_PROCESSES(name)                                    \
	NVML_API name(nvmlDevice_t d, unsigned *n, void *out) \
	{                                                     \
		(void)out;                                    \
		return nvmldevice_no_processes(d, n);         \
	}

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)

/* nvmldevice_working reads the PIDs in the file that FAKEGPU_WORKING names, at most so many, and
 * returns how many it has read. */
static unsigned nvmldevice_working(unsigned *pids, unsigned most)
{
	const char *path = getenv("FAKEGPU_WORKING");
	FILE *f = path != NULL ? fopen(path, "re") : NULL;
	unsigned count = 0;
	while (f != NULL && count < most && fscanf(f, "%u", &pids[count]) == 1)
		count++;
	if (f != NULL)
		fclose(f);
	return count;
}

/* No kernel ever runs: what was sampled is what FAKEGPU_WORKING says. */
NVML_API nvmlDeviceGetProcessUtilization(nvmlDevice_t d, nvmlProcessUtilizationSample_t *out, unsigned *n, unsigned long long since)
{
	unsigned pids[64], size = n != NULL ? *n : 0;
	unsigned found = nvmldevice_working(pids, sizeof pids / sizeof *pids);
	struct timespec now;
	NVML_TRY(nvmldevice_no_processes(d, n));
	if (found == 0)
		return NVML_ERROR_NOT_FOUND;
	*n = found;
	if (out == NULL || size < found)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	clock_gettime(CLOCK_REALTIME, &now);
	for (unsigned i = 0; i < found; i++)
		out[i] = (nvmlProcessUtilizationSample_t){
			.pid = pids[i], .timeStamp = (unsigned long long)now.tv_sec * 1000000 + (unsigned)now.tv_nsec / 1000, .smUtil = 50};
	return out[0].timeStamp > since ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
	unsigned i;
	NVML_TRY(nvml_index(device, &i));
	if (out == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = (nvmlUtilization_t){0, 0};
	return NVML_SUCCESS;
}

static nvmlReturn_t nvmldevice_number(nvmlDevice_t device, unsigned *out, unsigned value)
{
	unsigned i;
	NVML_TRY(nvml_index(device, &i));
	if (out == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = value;
	return NVML_SUCCESS;
}

/* Calls that answer one number, the same for every device. */
#define NUMBER(name, value) \
	NVML_API name(nvmlDevice_t d, unsigned *out) { return nvmldevice_number(d, out, value); }

NUMBER(nvmlDeviceGetPersistenceMode, 1)
NUMBER(nvmlDeviceGetComputeMode, 0)
NUMBER(nvmlDeviceGetPerformanceState, 0)
NUMBER(nvmlDeviceGetPowerUsage, 75000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, 700000)
NUMBER(nvmlDeviceGetDisplayActive, 0)
NUMBER(nvmlDeviceGetVirtualizationMode, 0)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 16)

static nvmlReturn_t nvmldevice_own_number(nvmlDevice_t device, unsigned *out)
{
	unsigned i;
	NVML_TRY(nvml_index(device, &i));
	return nvmldevice_number(device, out, i);
}

/* Of a MIG device, it is its number in its GPU. */
NVML_API nvmlDeviceGetIndex(nvmlDevice_t d, unsigned *out)
{
	unsigned number, gpu, parts = 0;
	NVML_TRY(nvml_number(d, &number));
	parts = machine_shape()->model->parts;
	if (nvml_divided(d, &gpu))
		for (number = 0; nvml_gpu(number) != d; number++)
			;
	else if (parts > 0)
		number = machine_present(number) % parts;
	return nvmldevice_number(d, out, number);
}

NVML_API nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *out) { return nvmldevice_own_number(d, out); }

/* A setting, and what it will be after a restart. */
static nvmlReturn_t nvmldevice_setting(nvmlDevice_t device, unsigned *now, unsigned *later, unsigned value)
{
	NVML_TRY(nvmldevice_number(device, now, value));
	return nvmldevice_number(device, later, value);
}

NVML_API nvmlDeviceGetEccMode(nvmlDevice_t d, unsigned *now, unsigned *later) { return nvmldevice_setting(d, now, later, 1); }

NVML_API nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *out)
{
	(void)sensor;
	return nvmldevice_number(device, out, 35);
}

NVML_API nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *out)
{
	NVML_TRY(nvmldevice_number(device, out, 0));
	return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	unsigned i;
	NVML_TRY(nvml_index(device, &i));
	if (major == NULL || minor == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*major = machine_shape()->model->major;
	*minor = machine_shape()->model->minor;
	return NVML_SUCCESS;
}
