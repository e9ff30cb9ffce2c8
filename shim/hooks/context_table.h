/* The contexts of this process: which one is current, and the records of the objects that end
 * with each. */
#ifndef RATION_CONTEXT_TABLE_H
#define RATION_CONTEXT_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc_table.h"
#include "charge.h"
#include "hold.h"
#include "hooks/init.h"

/* The device and the context to which an allocation belongs. */
struct alloc_target {
	struct device *device; /* NULL: the call is not counted */
	uint32_t context;      /* the number of the context with which the allocation ends; 0: with none */
};

/* context_target finds the target of an allocation in the current context. It returns 1; 0 if
 * there is no usable context (the driver's own call will report the error); -1 if the device
 * cannot be rationed. Unless it returns 1, t->device is NULL. context_target_of does the same
 * for a context that need not be current, and returns whether there is a target. */
int context_target(struct alloc_target *t);
bool context_target_of(CUcontext c, struct alloc_target *t);

/* context_enter is init_enter for a call that allocates in the current context. t->device is
 * NULL if the call is not counted and only passed on. */
static inline int context_enter(struct alloc_target *t)
{
	int denied = init_enter();
	t->device = NULL;
	if (unlikely(denied || !attach_on()))
		return denied;
	return unlikely(context_target(t) < 0) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

/* context_failed reports whether the current context cannot be used any more: it was destroyed,
 * or one of its kernels has failed. Then the program must get the driver's error, even if the
 * request exceeds the limit. It calls the driver, so use it only before a refusal. */
bool context_failed(void);

/* A context in the table. */
struct context {
	CUcontext handle;      /* NULL while the context is being ended, so that it is not found. Atomic */
	uint32_t number;       /* its index in the table, plus one */
	uint32_t records;      /* the number in its records: its own, or the primary context's */
	struct device *device; /* this and records are written before handle */
	bool used;             /* under LOCK_CONTEXT_TABLE */
	hold waiting;          /* threads that wait for its work */
};

/* context_find returns the context with a handle, or NULL. */
struct context *context_find(CUcontext handle);

/* contexts_any returns the handle of a context that has records of its own, or NULL; the caller makes sure
 * that none ends meanwhile. contexts_synchronise waits for the work of all of them, and returns whether no
 * capture kept it from that. */
CUcontext contexts_any(void);
bool contexts_synchronise(void);

/* context_add_green adds the CUcontext of a green context: memory allocated in it belongs to
 * the primary context, and ends with that. */
void context_add_green(CUcontext handle, CUcontext primary, struct device *d);

/* context_hide makes a context unfindable, before the driver is asked to end it: as soon as it
 * has ended, its handle may belong to another context. It waits for threads that wait for the
 * context's work, for a second at most. It returns the context, or NULL. If the driver does not end the context, context_unhide makes it findable again; c may be NULL. */
struct context *context_hide(CUcontext handle);
void context_unhide(struct context *c, CUcontext handle);

/* context_remove returns the charges of all objects that ended with a context, and frees its
 * number. Call it between overhead_pause and overhead_resume. */
void context_remove(struct context *c);

/* Records of objects that end with their context: by address or handle, for its limits
 * (hooks/limit.c), and for managed memory on other devices (hooks/managed.c). */
extern struct alloc_table context_addresses, context_arrays, context_modules, context_limits, context_managed;

/* context_keep stores a record of a charge of this kind. If there is no memory for it, the
 * charge stays until the process ends. It drops a record that was there under the same key.
 * context_replace stores r too, but leaves the old record to the caller: old->key is 0 if there
 * was none. */
void context_keep(struct alloc_table *t, const struct alloc_record *r, unsigned kind);
void context_replace(struct alloc_table *t, const struct alloc_record *r, struct alloc_record *old);

/* While a library is being unloaded, its records belong to the thread that unloads it, which
 * returns their charges. `other`, until then the library's handle, is odd meanwhile. */
static inline bool context_unloading(const struct alloc_record *r) { return r->other & 1; }

/* context_take moves a record out of the table, before the driver is asked to free its object:
 * as soon as the object is free, its key may belong to another thread's object. The key is 0 if
 * there is no record, or this process is not attached. The caller must call alloc_table_freed
 * afterwards. */
static inline struct alloc_record context_take(struct alloc_table *t, uint64_t key)
{
	struct alloc_record r = {.key = 0};
	if (attach_on())
		alloc_table_take(t, key, &r);
	return r;
}

/* context_free_begin and context_free_end do the same for records with a charge of their own,
 * and count the bytes as leaving. Addresses from a pool have none: the pool is charged as a
 * whole. */
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

/* context_return returns the charge of an allocation, after charge_leaving. Exported memory may
 * still be used by other processes: it becomes lent (overhead_lend). context_drop
 * returns the charge of an object that is already gone, and calls charge_leaving itself. */
void context_return(const struct alloc_record *r);
void context_drop(const struct alloc_record *r, unsigned kind);

#endif
