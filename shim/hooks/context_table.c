#include "hooks/context_table.h"

#include <sys/mman.h>

#include "charge.h"
#include "hooks/departure.h"
#include "log.h"
#include "overhead.h"

/* The table, in blocks that are mapped when needed and never move. A context's number is not
 * reused before the charges of all objects that ended with the context have been returned. */
enum { CONTEXT_BLOCK = 256, CONTEXT_BLOCKS = 256 };
static struct context context_first_block[CONTEXT_BLOCK], *context_blocks[CONTEXT_BLOCKS] = {context_first_block};
static unsigned context_count; /* entries that were ever used; atomic */
static mutex context_lock;     /* LOCK_CONTEXT_TABLE: protects used, context_count and adding */

struct alloc_table context_addresses, context_arrays, context_modules, context_limits, context_managed;

static struct context *context_at(unsigned i) { return &context_blocks[i / CONTEXT_BLOCK][i % CONTEXT_BLOCK]; }

struct context *context_find(CUcontext handle)
{
	/* Acquire: pairs with the release in context_add, of the count and of the handle. */
	unsigned n = __atomic_load_n(&context_count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++)
		if (__atomic_load_n(&context_at(i)->handle, __ATOMIC_ACQUIRE) == handle)
			return context_at(i);
	return NULL;
}

/* contexts_next returns the next context from *i on that has a handle and records of its own, or NULL. */
static struct context *contexts_next(unsigned *i)
{
	for (unsigned n = __atomic_load_n(&context_count, __ATOMIC_ACQUIRE); *i < n;) {
		struct context *c = context_at((*i)++);
		if (__atomic_load_n(&c->handle, __ATOMIC_ACQUIRE) && c->records == c->number)
			return c;
	}
	return NULL;
}

CUcontext contexts_any(void)
{
	unsigned i = 0;
	const struct context *c = contexts_next(&i);
	return c ? __atomic_load_n(&c->handle, __ATOMIC_ACQUIRE) : NULL;
}

bool contexts_synchronise(void)
{
	CUcontext handle, popped;
	bool done = true;
	struct context *c;
	for (unsigned i = 0; (c = contexts_next(&i)); hold_drop(&c->waiting)) {
		hold_take(&c->waiting);
		handle = __atomic_load_n(&c->handle, __ATOMIC_SEQ_CST);
		if (!handle || REAL(cuCtxPushCurrent_v2, handle) != CUDA_SUCCESS)
			continue;
		done &= REAL(cuCtxSynchronize) != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		REAL(cuCtxPopCurrent_v2, &popped);
	}
	return done;
}

/* context_place returns a free entry, or NULL if there is no memory for one. The caller holds
 * LOCK_CONTEXT_TABLE. */
static struct context *context_place(void)
{
	unsigned n = context_count;
	for (unsigned i = 0; i < n; i++)
		if (!context_at(i)->used)
			return context_at(i);
	if (n == CONTEXT_BLOCK * CONTEXT_BLOCKS)
		return NULL;
	if (!context_blocks[n / CONTEXT_BLOCK]) {
		void *block =
			mmap(NULL, CONTEXT_BLOCK * sizeof(struct context), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (block == MAP_FAILED)
			return NULL;
		context_blocks[n / CONTEXT_BLOCK] = block;
	}
	context_at(n)->number = n + 1;
	return context_at(n);
}

/* context_add returns the context with a handle, and adds it if necessary. It returns NULL if
 * there is no memory for it. records is 0 for a context that has its own records. */
static struct context *context_add(CUcontext handle, struct device *d, uint32_t records)
{
	mutex_lock(&context_lock, LOCK_CONTEXT_TABLE);
	struct context *c = context_find(handle);
	if (!c && (c = context_place())) {
		c->used = true;
		c->device = d;
		c->records = records ? records : c->number;
		__atomic_store_n(&c->handle, handle, __ATOMIC_RELEASE);
		if (c->number > context_count)
			__atomic_store_n(&context_count, c->number, __ATOMIC_RELEASE);
	}
	mutex_unlock(&context_lock);
	return c;
}

void context_add_green(CUcontext handle, CUcontext primary, struct device *d)
{
	struct context *c = context_add(primary, d, 0);
	if (c)
		context_add(handle, d, c->number);
}

/* Seen on an H200: a context that was destroyed, or in which a kernel has failed, still reports
 * its device, but none of its limits. */
bool context_failed(void)
{
	size_t limit;
	return REAL(cuCtxGetLimit, &limit, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS;
}

/* context_target_new finds the target for a current context that is not in the table: it has
 * just been made, or was made before this process was attached. If it has been destroyed, it
 * returns 0, so that the program gets the driver's error. */
static int context_target_new(CUcontext handle, struct alloc_target *t)
{
	CUdevice ordinal;
	if (REAL(cuCtxGetDevice, &ordinal) != CUDA_SUCCESS || context_failed())
		return 0;
	int found = device_of(ordinal, &t->device);
	if (found <= 0)
		return found;
	struct context *c = context_add(handle, t->device, 0);
	t->context = c ? c->records : 0;
	overhead_watch(t->device);
	return 1;
}

int context_target(struct alloc_target *t)
{
	CUcontext handle = NULL;
	t->device = NULL;
	if (REAL(cuCtxGetCurrent, &handle) != CUDA_SUCCESS || !handle)
		return 0;
	struct context *c = context_find(handle);
	if (unlikely(!c))
		return context_target_new(handle, t);
	t->device = c->device;
	t->context = c->records;
	return 1;
}

bool context_target_of(CUcontext handle, struct alloc_target *t)
{
	struct context *c = context_find(handle);
	if (unlikely(!c)) {
		CUcontext popped;
		t->device = NULL;
		if (REAL(cuCtxPushCurrent_v2, handle) != CUDA_SUCCESS)
			return false;
		bool found = context_target_new(handle, t) == 1;
		REAL(cuCtxPopCurrent_v2, &popped);
		return found;
	}
	t->device = c->device;
	t->context = c->records;
	return true;
}

struct context *context_hide(CUcontext handle)
{
	struct context *c = handle ? context_find(handle) : NULL;
	if (c) {
		__atomic_store_n(&c->handle, NULL, __ATOMIC_SEQ_CST);
		hold_wait(&c->waiting);
	}
	return c;
}

void context_unhide(struct context *c, CUcontext handle)
{
	if (c)
		__atomic_store_n(&c->handle, handle, __ATOMIC_RELEASE);
}

void context_return(const struct alloc_record *r)
{
	struct device *d = unlikely(r->flags & (RECORD_EXPORTED | RECORD_IPC)) && r->bytes ? device_at(r->device) : NULL;
	if (unlikely(r->flags & RECORD_MANAGED))
		charge_mark_managed(r->device, r->bytes, false);
	if (unlikely(d))
		overhead_lend(d, r->bytes, !(r->flags & RECORD_EXPORTED));
	else
		charge_return(r->device, RATION_DATA, r->bytes);
}

void context_replace(struct alloc_table *t, const struct alloc_record *r, struct alloc_record *old)
{
	if (r->flags & RECORD_MANAGED)
		charge_mark_managed(r->device, r->bytes, true);
	if (unlikely(!alloc_table_replace(t, r, old)))
		log_warn("no memory to remember an allocation: it stays counted until this process ends");
}

void context_keep(struct alloc_table *t, const struct alloc_record *r, unsigned kind)
{
	struct alloc_record old;
	context_replace(t, r, &old);
	/* The old record belongs to a context that has ended, or a library that was unloaded:
	 * the driver reused the key before the record was removed. */
	if (unlikely(old.key && !context_unloading(&old)))
		context_drop(&old, kind);
}

void context_drop(const struct alloc_record *r, unsigned kind)
{
	struct departure p = {.kind = kind};
	departure_add(&p, r);
	departure_begin(&p);
	departure_end(&p, true);
}

struct context_sweep {
	uint32_t context;
	bool addresses; /* the table holds addresses, some of them from pools */
	struct departure departure;
};

static bool context_outlived_by(struct alloc_record *r, void *arg)
{
	struct context_sweep *s = arg;
	/* Memory from a pool outlives the context in which it was allocated. */
	if (r->context != s->context || (s->addresses && r->pool) || context_unloading(r))
		return true;
	departure_add(&s->departure, r);
	return false;
}

void context_remove(struct context *c)
{
	static const struct {
		struct alloc_table *table;
		unsigned kind;
	} ends[] = {{&context_addresses, RATION_DATA},
		    {&context_arrays, RATION_DATA},
		    {&context_managed, RATION_DATA},
		    {&context_modules, RATION_MODULE},
		    {&context_limits, RATION_CONTEXT}};
	for (unsigned i = 0; c->records == c->number && i < sizeof ends / sizeof *ends; i++) {
		struct context_sweep s = {c->number, ends[i].table == &context_addresses, {.kind = ends[i].kind}};
		alloc_table_sweep(ends[i].table, context_outlived_by, &s);
		departure_begin(&s.departure);
		departure_end(&s.departure, true);
	}
	mutex_lock(&context_lock, LOCK_CONTEXT_TABLE);
	c->used = false;
	mutex_unlock(&context_lock);
}
