/* Managed memory counts in full on the device that it was allocated for, since any of it
 * may move there at any time, and on every other one to which the program sends it. What
 * kernels of another device draw over by touching it, the driver tells us nothing about. */
#ifndef RATION_MANAGED_H
#define RATION_MANAGED_H

#include "hooks/context_table.h"

/* managed_add_variable charges for a variable of a library, once: CUDA_SUCCESS, or what the
 * call must return. */
int managed_add_variable(CUdeviceptr at, size_t bytes, const struct alloc_target *t, CUlibrary library);

/* managed_freed returns what an allocation that was freed counted for on other devices, if
 * it has RECORD_SENT. */
void managed_freed(const struct alloc_record *r);

/* managed_pools_emptied returns what the addresses of a device's pools counted for on other
 * devices: none of them is live. */
void managed_pools_emptied(unsigned device);

#endif
