/* Memory pools: charged by what they have reserved. */
#ifndef RATION_POOL_H
#define RATION_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc_table.h"

extern uint32_t pools_any;

/* pools_used says whether this process has pools or graphs that hold memory. */
static inline bool pools_used(void) { return __atomic_load_n(&pools_any, __ATOMIC_RELAXED); }

/* pools_sync_charges brings the charges of a device's pools up to date; RATION_DEVICES stands
 * for all devices, here and below. */
void pools_sync_charges(unsigned device);

/* pools_synchronised is for when what was freed has been freed: after waiting for
 * the device, or at a context's end. */
void pools_synchronised(unsigned device);

/* pools_relieve makes them let go of what nobody uses. Without wait those that are
 * in use are left out: the caller holds a lock. */
void pools_relieve(unsigned device, bool wait);

/* pools_emptied is for when nothing that a device's pools handed out lives on. */
void pools_emptied(unsigned device);

/* pool_forget is for such an address, and is part of pool_freed. */
void pool_forget(const struct alloc_record *r);

/* pool_freed is for an address that came from a pool, and was freed. */
void pool_freed(const struct alloc_record *r);

#endif
