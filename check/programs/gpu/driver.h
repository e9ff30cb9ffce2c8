/* Calls of the driver, and what to do about their results. */
#ifndef DRIVER_H
#define DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_api.h"
#include "steps.h"

/* MUST makes a call that succeeds if the calls before it did. CAN makes a call that some
 * devices or drivers do not support: the program is skipped then. */
#define MUST(call, ...) driver_must(call(__VA_ARGS__), #call)
#define CAN(call, ...) driver_can(call(__VA_ARGS__), #call)

static inline void driver_must(CUresult result, const char *call)
{
	if (result != CUDA_SUCCESS)
		fail("%s: %d", call, result);
}

static inline void driver_can(CUresult result, const char *call)
{
	if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_FOUND)
		skip("%s: not supported here (%d)", call, result);
	driver_must(result, call);
}

/* driver_start initialises the driver and makes the primary context of device 0 current. */
static inline CUdevice driver_start(void)
{
	CUdevice device;
	CUcontext primary;
	MUST(cuInit, 0);
	MUST(cuDeviceGet, &device, 0);
	MUST(cuDevicePrimaryCtxRetain, &primary, device);
	MUST(cuCtxSetCurrent, primary);
	return device;
}

/* driver_use writes to memory and waits, so that the driver has really allocated it. */
static inline void driver_use(CUdeviceptr at, uint64_t bytes)
{
	MUST(cuMemsetD8_v2, at, 0xa5, bytes);
	MUST(cuCtxSynchronize, );
}

#endif
