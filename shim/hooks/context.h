/* Contexts: which one is current, and what ends with one. */
#ifndef RATION_CONTEXT_H
#define RATION_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"
#include "device.h"
#include "alloc_table.h"

/* Where an allocation goes: the current context's device. */
struct alloc_target {
	struct device *device;
	uint8_t context; /* a number for what ends with the context; 0 is never ended */
};

/* context_target finds it: 1, or 0 where there is no context (the driver will say
 * so), or -1 where its device cannot be rationed. */
int context_target(struct alloc_target *p);

/* context_target_of is for a context that need not be current; false where there is none. */
bool context_target_of(CUcontext c, struct alloc_target *p);

/* HERE is for hooks that allocate in the current context. */
#define HERE(place, symbol, ...)                                                                                       \
	do {                                                                                                           \
		int here_ = context_target(place);                                                                       \
		if (unlikely(here_ <= 0))                                                                              \
			return here_ < 0 ? CUDA_ERROR_OPERATING_SYSTEM : REAL(symbol, __VA_ARGS__);                    \
	} while (0)

/* Records of what ends with its context: addresses, arrays, modules. */
extern struct alloc_table addresses, arrays, modules;

/* Its bytes may be elsewhere than on the device. */
#define RECORD_MANAGED 1u

/* context_keep remembers what was charged as kind. Where there is no memory for that
 * it stays charged until the process ends. */
void context_keep(struct alloc_table *t, const struct alloc_record *r, unsigned kind);

/* context_gone gives back what a record was charged. */
void context_gone(const struct alloc_record *r, unsigned kind);

#endif
