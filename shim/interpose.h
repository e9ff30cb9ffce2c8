/* Reaching the driver, and being reached: docs in reach.c. */
#ifndef RATION_REACH_H
#define RATION_REACH_H

#include <stdbool.h>

/* ration_driver_loaded says whether libcuda is in the process. */
bool ration_driver_loaded(void);

/* ration_load_nvml makes the calls of NVML available, loading it if need be. Not
 * under a lock: the dynamic linker may run other libraries' code. */
bool ration_load_nvml(void);

#endif
