/* How programs reach the hooks, and how the hooks reach the driver: see interpose.c. */
#ifndef RATION_INTERPOSE_H
#define RATION_INTERPOSE_H

#include <stdbool.h>

/* interpose_load_nvml loads NVML if it is not loaded, and returns whether its functions can be
 * called. The caller must hold no lock: the dynamic linker may run code of other libraries. */
bool interpose_load_nvml(void);

/* interpose_ioctl returns the ioctl to which a library after this one would have bound; never
 * NULL. If libcuda.so.1 itself defines ioctl, that one is returned: such a libcuda is a
 * stand-in driver, whose calls no kernel knows. */
void *interpose_ioctl(void);

#endif
