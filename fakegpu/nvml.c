/* NVML: starting, the system, and finding devices. */
#include "nvml.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "atomics.h"
#include "state.h"

struct nvml_device {
	char unused;
};

static struct nvml_device nvml_devices[MAX_DEVICES];
static struct nvml_device nvml_whole[MAX_DEVICES]; /* GPUs that are divided into MIG devices */
static unsigned nvml_users;
static pthread_mutex_t nvml_lock = PTHREAD_MUTEX_INITIALIZER;

nvmlReturn_t nvml_ready(void) { return load_acquire(&nvml_users) > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED; }

/* The first handle of a device opens a file that stays open, as the real one does. */
nvmlDevice_t nvml_handle(unsigned index)
{
	static uint32_t opened[MAX_DEVICES];
	if (!__atomic_exchange_n(&opened[index], 1, __ATOMIC_RELAXED))
		(void)!open("/dev/null", O_RDWR | O_CLOEXEC);
	return &nvml_devices[index];
}

static unsigned nvml_gpu_of(unsigned index) { return model_gpu(machine_shape()->model, index); }

bool nvml_divided(nvmlDevice_t device, unsigned *gpu)
{
	if (nvml_ready() != NVML_SUCCESS || machine_shape()->model->parts == 0 || device < nvml_whole || device >= nvml_whole + MAX_DEVICES)
		return false;
	*gpu = (unsigned)(device - nvml_whole);
	return true;
}

unsigned nvml_gpus(void)
{
	unsigned n = 0;
	for (unsigned i = 0; i < machine_presents(); i++)
		n += i == 0 || nvml_gpu_of(machine_present(i)) != nvml_gpu_of(machine_present(i - 1));
	return n;
}

nvmlDevice_t nvml_gpu(unsigned number)
{
	for (unsigned i = 0; i < machine_presents(); i++) {
		if (i > 0 && nvml_gpu_of(machine_present(i)) != nvml_gpu_of(machine_present(i - 1)))
			number--;
		if (number == 0)
			return &nvml_whole[nvml_gpu_of(machine_present(i))];
	}
	return NULL;
}

nvmlReturn_t nvml_number(nvmlDevice_t device, unsigned *number)
{
	unsigned gpu;
	NVML_TRY(nvml_ready());
	for (unsigned i = 0; i < machine_presents(); i++)
		if (device == &nvml_devices[machine_present(i)] || (nvml_divided(device, &gpu) && nvml_gpu_of(machine_present(i)) == gpu)) {
			*number = i;
			return NVML_SUCCESS;
		}
	return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvml_index(nvmlDevice_t device, unsigned *index)
{
	unsigned number;
	NVML_TRY(nvml_number(device, &number));
	*index = machine_present(number);
	return state_lost(*index) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

/* Unlike CUDA, NVML goes on in the child of a fork, over a mapping of its own. */
static void nvml_child_of_fork(void)
{
	machine_forked();
	pthread_mutex_init(&nvml_lock, NULL);
	if (nvml_users > 0 && machine_attach(false) != 0)
		nvml_users = 0;
}

NVML_API nvmlInitWithFlags(unsigned flags)
{
	static bool at_fork;
	nvmlReturn_t r = NVML_SUCCESS;
	(void)flags;

	pthread_mutex_lock(&nvml_lock);
	if (!at_fork)
		at_fork = pthread_atfork(NULL, NULL, nvml_child_of_fork) == 0;
	if (nvml_users == 0 && machine_attach(false) != 0)
		r = NVML_ERROR_DRIVER_NOT_LOADED;
	else
		store_release(&nvml_users, nvml_users + 1);
	pthread_mutex_unlock(&nvml_lock);
	return r;
}

NVML_API nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
NVML_API nvmlInit(void) { return nvmlInitWithFlags(0); }

NVML_API nvmlShutdown(void)
{
	nvmlReturn_t r = NVML_ERROR_UNINITIALIZED;
	pthread_mutex_lock(&nvml_lock);
	if (nvml_users > 0) {
		store_release(&nvml_users, nvml_users - 1);
		r = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&nvml_lock);
	return r;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t r)
{
	switch (r) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
	case NVML_ERROR_NOT_FOUND: return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
	default: return "Unknown Error";
	}
}

static nvmlReturn_t nvml_text(char *out, unsigned size, const char *value)
{
	if (out == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(value) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, value);
	return NVML_SUCCESS;
}

NVML_API nvmlSystemGetDriverVersion(char *out, unsigned size)
{
	NVML_TRY(nvml_ready());
	return nvml_text(out, size, DRIVER_VERSION_TEXT);
}

NVML_API nvmlSystemGetNVMLVersion(char *out, unsigned size) { return nvml_text(out, size, "13." DRIVER_VERSION_TEXT); }

NVML_API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	if (version == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = 13000;
	return NVML_SUCCESS;
}

NVML_API nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

NVML_API nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size)
{
	static struct process_info list[MAX_PROCESSES];
	static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
	nvmlReturn_t r = NVML_ERROR_NOT_FOUND;

	NVML_TRY(nvml_ready());
	if (out == NULL || size == 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	pthread_mutex_lock(&list_lock);
	for (unsigned d = 0; d < machine_shape()->devices && r == NVML_ERROR_NOT_FOUND; d++) {
		unsigned n = machine_processes(d, list, MAX_PROCESSES);
		for (unsigned i = 0; i < n && r == NVML_ERROR_NOT_FOUND; i++)
			if (list[i].pid == pid) {
				snprintf(out, size, "%s", list[i].name);
				r = NVML_SUCCESS;
			}
	}
	pthread_mutex_unlock(&list_lock);
	return r;
}

NVML_API nvmlDeviceGetCount_v2(unsigned *count)
{
	NVML_TRY(nvml_ready());
	if (count == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = machine_shape()->model->parts > 0 ? nvml_gpus() : machine_presents();
	return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

NVML_API nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	NVML_TRY(nvml_ready());
	bool divided = machine_shape()->model->parts > 0;
	if (device == NULL || index >= (divided ? nvml_gpus() : machine_presents()))
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = divided ? nvml_gpu(index) : nvml_handle(machine_present(index));
	return !divided && state_lost(machine_present(index)) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

NVML_API nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }

NVML_API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	NVML_TRY(nvml_ready());
	if (uuid == NULL || device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; machine_shape()->model->parts > 0 && i < nvml_gpus(); i++) {
		unsigned char bytes[16];
		char mine[UUID_TEXT];
		model_gpu_uuid(machine_shape()->model, (unsigned)(nvml_gpu(i) - nvml_whole), bytes);
		uuid_text(bytes, mine);
		if (strcasecmp(mine, uuid) == 0) {
			*device = nvml_gpu(i);
			return NVML_SUCCESS;
		}
	}
	for (unsigned i = 0; i < machine_presents(); i++) {
		char mine[UUID_TEXT];
		model_uuid_text(machine_shape()->model, machine_present(i), mine);
		if (strcasecmp(mine, uuid) == 0) {
			*device = nvml_handle(machine_present(i));
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device)
{
	NVML_TRY(nvml_ready());
	if (bus == NULL || device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < machine_presents(); i++) {
		char mine[BUS_TEXT];
		bus_text(nvml_gpu_of(machine_present(i)), mine);
		if (strcasecmp(mine, bus) == 0 || strcasecmp(mine + 4, bus) == 0) {
			bool divided = machine_shape()->model->parts > 0;
			*device = divided ? &nvml_whole[nvml_gpu_of(machine_present(i))] : nvml_handle(machine_present(i));
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlDeviceGetHandleByPciBusId(const char *bus, nvmlDevice_t *device) { return nvmlDeviceGetHandleByPciBusId_v2(bus, device); }
