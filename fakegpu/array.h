/* Arrays and mipmapped arrays. */
#ifndef FAKEGPU_ARRAY_H
#define FAKEGPU_ARRAY_H

#include "driver.h"

struct array {
	struct handle handle;
	CUDA_ARRAY3D_DESCRIPTOR desc;
	uint64_t charged;
	struct mipmap *level_of; /* this array is a level of that mipmap, and ends with it */
};

enum { MAX_LEVELS = 32 };

struct mipmap {
	struct handle handle;
	CUDA_ARRAY3D_DESCRIPTOR desc;
	uint64_t charged;
	unsigned levels;
	struct array *level[MAX_LEVELS];
};

/* If charge is false, the memory belongs to another API and is not charged. */
CUresult mipmap_new(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels, bool charge);

#endif
