/* What can be told from a module's image without a compiler. */
#ifndef FAKEGPU_IMAGE_H
#define FAKEGPU_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image {
	bool is_text; /* PTX: its kernels and variables are known by name */
	const char *text;
	uint64_t size;    /* bytes of the image itself */
	uint64_t globals; /* bytes of the variables it declares, less managed ones */
};

/* Reads an image: PTX text, a cubin (ELF), or a fat binary with or without its
 * wrapper. False if it is none of them. */
bool image_read(const void *data, struct image *out);

bool image_has_kernel(const struct image *i, const char *name);
/* Whether its kernels call malloc, as far as can be told. */
bool image_allocates(const struct image *i);
/* The size of a variable of a PTX image, a managed one or one that is not, or 0. */
uint64_t image_variable(const struct image *i, const char *name, bool managed);

#endif
