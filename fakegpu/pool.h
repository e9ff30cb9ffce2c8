/* A memory pool: reserved bytes that grow in chunks, and the allocations made from them. */
#ifndef FAKEGPU_POOL_H
#define FAKEGPU_POOL_H

#include <pthread.h>

#include "driver.h"

struct pool {
	struct handle handle;
	pthread_mutex_t lock;
	CUmemPoolProps props;
	unsigned device; /* machine index */
	CUdevice ordinal;
	bool is_default;
	bool imported; /* it belongs to another process: never charged, no allocation from it */
	bool managed;  /* a pool of managed memory: each allocation is charged where it is, not the pool */
	bool doomed;   /* destroyed; ends with its last allocation */
	int reuse[3];
	uint64_t threshold; /* bytes that may stay reserved after a synchronisation */
	uint64_t reserved, reserved_high;
	uint64_t used, used_high; /* bytes as asked for */
	uint64_t taken;           /* the same, rounded */
	uint64_t pending;         /* part of taken: freed, but no thread has waited since (FAKEGPU_LAZY) */
	uint64_t holes;           /* freed, but not usable before a trim (FAKEGPU_FRAGMENTED) */
	unsigned long live;       /* allocations */
	struct pool *next;
};

/* A new pool on a device; NULL if there is no memory. */
struct pool *pool_new(CUdevice ordinal, const CUmemPoolProps *props);
/* Returns the device's default pool, or that of managed memory. It is made on first use. */
struct pool *pool_default(CUdevice ordinal, bool managed);
struct pool *pool_current(CUdevice ordinal);
void pool_set_current(CUdevice ordinal, struct pool *p);
CUresult pool_destroy(struct pool *p);
void pool_trim(struct pool *p, uint64_t keep);
/* Takes the bytes of an allocation from the pool, which grows if necessary; pool_give returns them. */
CUresult pool_take(struct pool *p, uint64_t bytes);

#endif
