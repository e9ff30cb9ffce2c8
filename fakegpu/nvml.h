/* What the files of the NVML half share. */
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

/* Between nvmlInit and the last nvmlShutdown? */
nvmlReturn_t nvml_ready(void);

/* A device's number among those that are present, and its number on the machine; NVML knows no CUDA_VISIBLE_DEVICES. */
nvmlReturn_t nvml_number(nvmlDevice_t device, unsigned *number);
nvmlReturn_t nvml_index(nvmlDevice_t device, unsigned *index);
nvmlDevice_t nvml_handle(unsigned index);

#endif
