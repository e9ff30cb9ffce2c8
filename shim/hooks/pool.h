/* Memory pools: charged by what they have reserved. In calls that take a device it is
 * the region's index, or RATION_DEVICES for all devices. */
#ifndef RATION_POOL_H
#define RATION_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc_table.h"

/* pools_sync_charges makes the charges of a device's pools what they have reserved. */
void pools_sync_charges(unsigned device);

/* pools_synchronised is for when what was freed on streams has been freed: after waiting
 * for the device, or at a context's end. */
void pools_synchronised(unsigned device);

/* pools_shrink_expected reports whether a synchronisation may make a pool smaller. */
extern uint32_t pool_shrink_expected;
static inline bool pools_shrink_expected(void) { return __builtin_expect(__atomic_load_n(&pool_shrink_expected, __ATOMIC_RELAXED), 0); }

/* pools_emptied forgets all addresses from a device's pools: none of them is live. */
void pools_emptied(unsigned device);

/* pool_keep_address records an address that was charged as data, from a pool or not. */
void pool_keep_address(const struct alloc_record *r);

/* pool_freed is for an address that came from a pool, and was freed. waited: by a call that
 * waits for the device. */
void pool_freed(const struct alloc_record *r, bool waited);

#endif
