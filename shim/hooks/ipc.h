/* Memory that is shared with other processes by cuIpc calls: a process that takes part in that
 * cannot sleep. */
#ifndef RATION_IPC_H
#define RATION_IPC_H

#include <stdbool.h>

#include "cuda.h"

/* ipc_free_begin is called before the driver is asked to free the memory at an address: as soon as it
 * is free, the address may belong to another thread's memory. If it returns true, ipc_free_end must
 * follow. */
bool ipc_free_begin(CUdeviceptr at);
void ipc_free_end(CUdeviceptr at, bool freed);

#endif
