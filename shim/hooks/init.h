/* The start of a hook: whether this process counts the call. */
#ifndef RATION_INIT_H
#define RATION_INIT_H

#include <stdbool.h>

#include "attach.h"
#include "device.h"
#include "hooks.h"

/* init_join_late joins the job in a process that reached the driver without our cuInit. It
 * returns the same values as init_enter. */
int init_join_late(void);

/* init_enter begins a hook that takes memory. It returns CUDA_SUCCESS, or the error that the
 * call must return without calling the driver. After CUDA_SUCCESS the call is counted if
 * attach_on, and otherwise passed on unchanged. Hooks that take no memory never join the job:
 * they only check attach_on. */
static inline int init_enter(void) { return attach_on() ? CUDA_SUCCESS : init_join_late(); }

/* init_enter_device is init_enter for a call that takes memory of a device. *out is NULL if the
 * call is not counted and only passed on. */
int init_enter_device(CUdevice ordinal, struct device **out);

/* init_read_only maps the region without taking a slot, for calls that only report. It returns
 * whether the region is mapped: it is not in a process that shows the whole machine. */
bool init_read_only(void);

#endif
