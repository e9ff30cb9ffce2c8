/* Images of device code, which a program passes to the driver to load. */
#ifndef RATION_IMAGE_H
#define RATION_IMAGE_H

#include <stdint.h>

/* image_variables returns how many bytes of device memory the variables of an image take at
 * least, if it is PTX or a cubin. It returns 0 for other images, most of which are compressed,
 * and for NULL. An image has no length: its end is found from its contents, as the driver does. */
uint64_t image_variables(const void *image);

#endif
