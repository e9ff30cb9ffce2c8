/* The contexts of this process: which one is current, and the records of what ends with
 * each. */
#ifndef RATION_CONTEXT_TABLE_H
#define RATION_CONTEXT_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc_table.h"
#include "charge.h"
#include "hooks/init.h"

/* Where an allocation goes. */
struct alloc_target {
	struct device *device; /* NULL: the call is not counted */
	uint32_t context;      /* the number of the context that it ends with; 0: with none */
};

/* context_target finds the current context: 1; 0 where there is none, which the driver
 * will say; -1 where its device cannot be rationed. Unless it returns 1, t->device is
 * NULL. context_target_of is for a context that need not be current. */
int context_target(struct alloc_target *t);
bool context_target_of(CUcontext c, struct alloc_target *t);

/* context_enter is init_enter for a call that allocates in the current context: t->device
 * is NULL where the call is passed on. */
static inline int context_enter(struct alloc_target *t)
{
	int denied = init_enter();
	t->device = NULL;
	if (unlikely(denied || !attach_on()))
		return denied;
	return unlikely(context_target(t) < 0) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

/* context_failed reports whether the current context is of no use any more: it was destroyed, or a kernel of it has failed. Then the
 * driver's error is the answer, whether there is room or not. It asks the driver, so it is for refusals. */
bool context_failed(void);

/* A context in the table. */
struct context {
	CUcontext handle;      /* NULL: not found by handle, as it is being ended. Atomic */
	uint32_t number;       /* its place in the table, plus one */
	uint32_t records;      /* the number that its records carry: its own, or the primary context's */
	struct device *device; /* this and records are written before handle */
	bool used;             /* under LOCK_CONTEXT_TABLE */
};

/* context_find returns the context with a handle, or NULL. */
struct context *context_find(CUcontext handle);

/* context_add_green adds the context of a green context: what is allocated in it is the
 * primary context's, and ends with that. */
void context_add_green(CUcontext handle, CUcontext primary, struct device *d);

/* context_hide makes a context unfindable, before the driver is asked to end it: its
 * handle may be another context's as soon as it has ended. It returns the context, or
 * NULL. context_unhide is for where the driver said no; c may be NULL. */
struct context *context_hide(CUcontext handle);
void context_unhide(struct context *c, CUcontext handle);

/* context_remove returns the charges of all that ended with a context, and frees its
 * number. Under overhead_pause. */
void context_remove(struct context *c);

/* Records of what ends with its context: by address or handle, of its limits
 * (hooks/limit.c), and of managed memory on other devices than its own (hooks/managed.c). */
extern struct alloc_table context_addresses, context_arrays, context_modules, context_limits, context_managed;

/* context_keep records what was charged as kind. Where there is no memory for a record,
 * the charge stays until the process ends. context_replace is the same, and leaves to the
 * caller what to do with a record that was there: old->key is 0 where there was none. */
void context_keep(struct alloc_table *t, const struct alloc_record *r, unsigned kind);
void context_replace(struct alloc_table *t, const struct alloc_record *r, struct alloc_record *old);

/* While a library is unloaded its records belong to the thread that does it, which returns
 * what they were charged: `other`, the library until then, is odd. */
static inline bool context_unloading(const struct alloc_record *r) { return r->other & 1; }

/* context_take takes a record out before the driver is asked to free what it names: its
 * key may name another thread's as soon as it is free. The key is 0 where there is no
 * record, or this process does not count. alloc_table_freed completes it. */
static inline struct alloc_record context_take(struct alloc_table *t, uint64_t key)
{
	struct alloc_record r = {.key = 0};
	if (attach_on())
		alloc_table_take(t, key, &r);
	return r;
}

/* context_free_begin and context_free_end are the same for records whose bytes are charged
 * for what they name: not for addresses of a pool, which is charged as a whole. */
static inline struct alloc_record context_free_begin(struct alloc_table *t, uint64_t key)
{
	struct alloc_record r = context_take(t, key);
	if (likely(r.key && !r.pool))
		charge_leaving(r.device, r.bytes);
	return r;
}

static inline bool context_free_end(struct alloc_table *t, const struct alloc_record *r, bool freed)
{
	if (unlikely(!freed && r->key && !r->pool))
		charge_arrived(r->device, r->bytes);
	return alloc_table_freed(t, r, freed);
}

/* context_return returns what an allocation was charged, after charge_leaving; context_drop
 * is for one that is found to be gone. */
void context_return(const struct alloc_record *r);
void context_drop(const struct alloc_record *r, unsigned kind);

#endif
