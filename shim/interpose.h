/* How programs reach the hooks, and how the hooks reach the driver: see interpose.c. */
#ifndef RATION_INTERPOSE_H
#define RATION_INTERPOSE_H

#include <stdbool.h>

/* interpose_load_nvml loads NVML if it is not loaded, and returns whether its functions can be
 * called. The caller must hold no lock: the dynamic linker may run code of other libraries. */
bool interpose_load_nvml(void);

/* interpose_ioctl returns the next ioctl in lookup order after this library's; never NULL. If
 * libcuda.so.1 defines ioctl, it returns that one: such a libcuda is a stand-in driver, and no
 * kernel knows its calls. */
void *interpose_ioctl(void);

/* interpose_in_driver binds libcuda's own references to a function of the C library to another
 * function. It returns false if there are none. name is one of interpose_substitutes. References of
 * the program and of other libraries stay as they are. */
bool interpose_in_driver(const char *name, void *to);

/* interpose_find returns the function that a name means in this program, or NULL. The caller must
 * hold no lock. */
void *interpose_find(const char *name);

#endif
