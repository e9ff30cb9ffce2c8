/* Managed memory is charged in full on the device for which it was allocated, since any of it
 * may move there at any time, and on every other device to which the program sends it. Kernels
 * of another device can also move it there by access; the driver does not tell us about that. */
#ifndef RATION_MANAGED_H
#define RATION_MANAGED_H

#include "hooks/context_table.h"

/* managed_add_variable charges a managed variable of a library, once. It returns CUDA_SUCCESS,
 * or the error that the call must return. */
int managed_add_variable(CUdeviceptr at, size_t bytes, const struct alloc_target *t, CUlibrary library);

/* managed_freed returns the charges on other devices of an allocation that was freed, if it has
 * RECORD_SENT. */
void managed_freed(const struct alloc_record *r);

/* managed_pools_emptied gives back the charges on other devices for addresses from a device's
 * pools. None of these addresses is live. */
void managed_pools_emptied(unsigned device);

#endif
