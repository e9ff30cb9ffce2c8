/* How programs reach the hooks, and the hooks the driver: see interpose.c. */
#ifndef RATION_INTERPOSE_H
#define RATION_INTERPOSE_H

#include <stdbool.h>

/* interpose_load_nvml makes the calls of NVML available, loading it if need be. Not
 * under a lock: the dynamic linker may run other libraries' code. */
bool interpose_load_nvml(void);

/* interpose_ioctl returns the ioctl that a library behind us would have bound to; never
 * NULL. One that libcuda.so.1 defines itself comes first: that is no driver's, but a
 * stand-in's, whose calls no kernel knows. */
void *interpose_ioctl(void);

#endif
