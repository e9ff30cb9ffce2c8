/* Declarations that the files of the NVML half share. */
#ifndef FAKEGPU_NVML_H
#define FAKEGPU_NVML_H

#include "machine.h"
#include "nvml_abi.h"

#define NVML_API __attribute__((visibility("default"))) nvmlReturn_t

#define DRIVER_VERSION_TEXT "580.159.04"

#define NVML_TRY(expression)                      \
	do {                                      \
		nvmlReturn_t try_ = (expression); \
		if (try_ != NVML_SUCCESS)         \
			return try_;              \
	} while (0)

/* Returns NVML_SUCCESS between nvmlInit and the last nvmlShutdown. */
nvmlReturn_t nvml_ready(void);

/* nvml_number sets *number to a device's number among those that are present, nvml_index sets
 * *index to its number on the machine. NVML ignores CUDA_VISIBLE_DEVICES. */
nvmlReturn_t nvml_number(nvmlDevice_t device, unsigned *number);
nvmlReturn_t nvml_index(nvmlDevice_t device, unsigned *index);
nvmlDevice_t nvml_handle(unsigned index);

/* nvml_divided returns whether a handle is that of a GPU that is divided into MIG devices, and its number on the machine.
 * Other calls take such a handle for the GPU's first MIG device. */
bool nvml_divided(nvmlDevice_t device, unsigned *gpu);
/* nvml_gpus returns how many such GPUs there are, and nvml_gpu the handle of one. */
unsigned nvml_gpus(void);
nvmlDevice_t nvml_gpu(unsigned number);

#endif
