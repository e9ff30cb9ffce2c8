/* Images of device code: what a program hands the driver to load. */
#ifndef RATION_IMAGE_H
#define RATION_IMAGE_H

#include <stdint.h>

/* image_variables returns how many bytes of device memory the variables of an image take at
 * least: of PTX, and of a cubin. It is 0 for other images, most of which are compressed, and for
 * NULL. The image is read as the driver reads it. */
uint64_t image_variables(const void *image);

#endif
