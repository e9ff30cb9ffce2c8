/* How a hook begins: whether this process counts the call. */
#ifndef RATION_INIT_H
#define RATION_INIT_H

#include <stdbool.h>

#include "attach.h"
#include "device.h"
#include "hooks.h"

/* init_join_late joins the job of a process that reached the driver without our cuInit;
 * see init_enter. */
int init_join_late(void);

/* init_enter begins a hook that takes memory. It returns CUDA_SUCCESS, or the error that
 * the call must return without asking the driver. After CUDA_SUCCESS the call is counted
 * if attach_on, and otherwise passed on as it is. Hooks that take no memory never join:
 * they look at attach_on only. */
static inline int init_enter(void) { return attach_on() ? CUDA_SUCCESS : init_join_late(); }

/* init_enter_device is init_enter for a call that takes memory of a device. *out is NULL
 * where the call is passed on. */
int init_enter_device(CUdevice ordinal, struct device **out);

/* init_read_only maps the region without joining, for calls that only report. */
bool init_read_only(void);

#endif
