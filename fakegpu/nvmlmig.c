/* NVML: GPUs that are divided into MIG devices. All MIG devices of the stand-in are of one profile, and a GPU has as many as
 * it can have, as long as the machine has so many devices. */
#include "nvml.h"

NVML_API nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index); /* nvmldevice.c */

static nvmlReturn_t nvmlmig_number(nvmlDevice_t device, unsigned *out, unsigned whole, unsigned part)
{
	unsigned i, gpu;
	NVML_TRY(nvml_index(device, &i));
	if (out == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = nvml_divided(device, &gpu) ? whole : part;
	return NVML_SUCCESS;
}

/* Whether a GPU is divided, and whether it will be after a restart. */
NVML_API nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *now, unsigned *later)
{
	NVML_TRY(nvmlmig_number(device, now, 1, 0));
	return nvmlmig_number(device, later, 1, 0);
}

NVML_API nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
	NVML_TRY(nvml_ready());
	return nvmlmig_number(device, count, machine_shape()->model->parts, 0);
}

NVML_API nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is)
{
	NVML_TRY(nvml_ready());
	return nvmlmig_number(device, is, 0, machine_shape()->model->parts > 0);
}

NVML_API nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *part)
{
	unsigned gpu, parts;
	NVML_TRY(nvml_ready());
	parts = machine_shape()->model->parts;
	if (part == NULL || !nvml_divided(device, &gpu) || index >= parts)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < machine_presents(); i++)
		if (machine_present(i) == gpu * parts + index) {
			*part = nvml_handle(machine_present(i));
			return NVML_SUCCESS;
		}
	return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t part, nvmlDevice_t *device)
{
	unsigned i, gpu;
	NVML_TRY(nvml_index(part, &i));
	if (device == NULL || machine_shape()->model->parts == 0 || nvml_divided(part, &gpu))
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned n = 0; n < nvml_gpus(); n++)
		if (nvml_divided(nvml_gpu(n), &gpu) && gpu == model_gpu(machine_shape()->model, i))
			*device = nvml_gpu(n);
	return NVML_SUCCESS;
}

/* NVIDIA's numbers of instances of the smallest profile begin with 7. */
NVML_API nvmlDeviceGetGpuInstanceId(nvmlDevice_t part, unsigned *id)
{
	unsigned index;
	NVML_TRY(nvmlDeviceGetIndex(part, &index));
	return nvmlmig_number(part, id, 0, index + 7);
}

NVML_API nvmlDeviceGetComputeInstanceId(nvmlDevice_t part, unsigned *id) { return nvmlmig_number(part, id, 0, 0); }
