#include "hooks/context_table.h"

#include <sys/mman.h>

#include "charge.h"
#include "log.h"
#include "overhead.h"

/* The table, in blocks that are mapped when they are needed and never move. A context's
 * number is not given out again before all that ended with the context has been returned. */
enum { CONTEXT_BLOCK = 256, CONTEXT_BLOCKS = 256 };
static struct context context_first_block[CONTEXT_BLOCK], *context_blocks[CONTEXT_BLOCKS] = {context_first_block};
static unsigned context_count; /* places that were ever used; atomic */
static mutex context_lock;     /* LOCK_CONTEXT_TABLE: over used, count and adding */

struct alloc_table context_addresses, context_arrays, context_modules;

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

/* context_place returns a free place, or NULL where there is no memory for one. Under the
 * lock. */
static struct context *context_place(void)
{
	unsigned n = context_count;
	for (unsigned i = 0; i < n; i++)
		if (!context_at(i)->used)
			return context_at(i);
	if (n == CONTEXT_BLOCK * CONTEXT_BLOCKS)
		return NULL;
	if (!context_blocks[n / CONTEXT_BLOCK]) {
		void *block = mmap(NULL, CONTEXT_BLOCK * sizeof(struct context), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (block == MAP_FAILED)
			return NULL;
		context_blocks[n / CONTEXT_BLOCK] = block;
	}
	context_at(n)->number = n + 1;
	return context_at(n);
}

static struct context *context_add(CUcontext handle, struct device *d)
{
	mutex_lock(&context_lock, LOCK_CONTEXT_TABLE);
	struct context *c = context_find(handle);
	if (!c && (c = context_place())) {
		c->used = true;
		c->device = d;
		__atomic_store_n(&c->handle, handle, __ATOMIC_RELEASE);
		if (c->number > context_count)
			__atomic_store_n(&context_count, c->number, __ATOMIC_RELEASE);
	}
	mutex_unlock(&context_lock);
	return c;
}

/* context_target_new finds the target for a current context that is not in the table: it
 * was just made, or before this process was attached. */
static int context_target_new(CUcontext handle, struct alloc_target *t)
{
	CUdevice ordinal;
	if (REAL(cuCtxGetDevice, &ordinal) != CUDA_SUCCESS)
		return 0;
	int found = device_of(ordinal, &t->device);
	if (found <= 0)
		return found;
	struct context *c = context_add(handle, t->device);
	t->context = c ? c->number : 0;
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
	t->context = c->number;
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
	t->context = c->number;
	return true;
}

struct context *context_hide(CUcontext handle)
{
	struct context *c = handle ? context_find(handle) : NULL;
	if (c)
		__atomic_store_n(&c->handle, NULL, __ATOMIC_RELEASE);
	return c;
}

void context_unhide(struct context *c, CUcontext handle)
{
	if (c)
		__atomic_store_n(&c->handle, handle, __ATOMIC_RELEASE);
}

void context_return(const struct alloc_record *r, unsigned kind)
{
	if (r->flags & RECORD_MANAGED)
		charge_mark_absent(r->device, r->bytes, false);
	charge_return(r->device, kind, r->bytes);
}

void context_replace(struct alloc_table *t, const struct alloc_record *r, struct alloc_record *old)
{
	if (r->flags & RECORD_MANAGED)
		charge_mark_absent(r->device, r->bytes, true);
	if (unlikely(!alloc_table_replace(t, r, old)))
		log_warn("no memory to remember an allocation: it stays counted until this process ends");
}

void context_keep(struct alloc_table *t, const struct alloc_record *r, unsigned kind)
{
	struct alloc_record old;
	context_replace(t, r, &old);
	/* Of a context that has ended: the driver reused the key before context_remove came to
	 * the record. */
	if (unlikely(old.key))
		context_drop(&old, kind);
}

void context_drop(const struct alloc_record *r, unsigned kind)
{
	charge_leaving(r->device, r->bytes);
	context_return(r, kind);
}

struct context_sweep {
	uint32_t context;
	unsigned kind;
};

static bool context_outlived_by(struct alloc_record *r, void *arg)
{
	const struct context_sweep *s = arg;
	/* A pool's memory outlives the context it was allocated in. */
	if (r->context != s->context || r->pool)
		return true;
	context_drop(r, s->kind);
	return false;
}

void context_remove(struct context *c)
{
	struct context_sweep s = {c->number, RATION_DATA};
	alloc_table_sweep(&context_addresses, context_outlived_by, &s);
	alloc_table_sweep(&context_arrays, context_outlived_by, &s);
	s.kind = RATION_MODULE;
	alloc_table_sweep(&context_modules, context_outlived_by, &s);
	mutex_lock(&context_lock, LOCK_CONTEXT_TABLE);
	c->used = false;
	mutex_unlock(&context_lock);
}
