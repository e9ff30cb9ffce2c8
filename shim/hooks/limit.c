/* cuCtxSetLimit: the memory that the kernels of a context have for their stacks and for
 * malloc, which a program may ask for in any size.
 *
 * Stacks are there when the call returns, for as many threads as the device can run. No
 * call tells how much that is: it is measured like a context, and set back where it does
 * not fit. The heap comes with the first kernel that allocates, when it is too late to
 * refuse it: it is charged when it is asked for. Other limits take nothing, or little:
 * printf's buffer is the host's. */
#include "charge.h"
#include "hooks/context_table.h"
#include "overhead.h"
#include "region/words.h"

/* limit_take takes out the record of what a limit of a context was charged, or makes one of
 * nothing: while a thread sets the limit, its bytes are that thread's. */
static struct alloc_record limit_take(const struct alloc_target *t, int limit)
{
	struct alloc_record r, none = {.key = (uint64_t)t->context << 8 | (unsigned)limit << 1 | 1,
				       .device = (uint8_t)t->device->index,
				       .context = t->context};
	return alloc_table_take(&context_limits, none.key, &r) ? r : none;
}

/* limit_keep puts it back. */
static void limit_keep(const struct alloc_record *r)
{
	if (r->bytes)
		context_keep(&context_limits, r, RATION_CONTEXT);
}

static int limit_set_stack(const struct alloc_target *t, size_t value)
{
	struct device *d = t->device;
	struct overhead_making m;
	uint64_t more = 0;
	size_t old;
	bool known = REAL(cuCtxGetLimit, &old, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS;
	struct alloc_record r = limit_take(t, CU_LIMIT_STACK_SIZE);
	overhead_begin(&m, d, RATION_CONTEXT);
	int result = REAL(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, value);
	int refused = result == CUDA_SUCCESS ? overhead_charge(&m, !known, &more) : CUDA_SUCCESS;
	if (m.refused) {
		REAL(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, old);
		more = 0;
	}
	/* A lower limit shows in the next reading, which returns what is no longer there of
	 * what is unconfirmed. */
	overhead_doubt(d, RATION_CONTEXT, r.bytes);
	if (m.exact)
		overhead_add_unconfirmed(d, RATION_CONTEXT, more, 0);
	r.bytes += more;
	r.flags |= RECORD_UNCONFIRMED;
	limit_keep(&r);
	overhead_end(&m);
	overhead_refresh(d);
	return result ? result : refused;
}

static int limit_set_heap(const struct alloc_target *t, size_t value)
{
	struct device *d = t->device;
	struct alloc_record r = limit_take(t, CU_LIMIT_MALLOC_HEAP_SIZE);
	uint64_t bytes = units_for(value) * RATION_UNIT, more = bytes > r.bytes ? bytes - r.bytes : 0;
	int result = more ? charge_add(d->index, RATION_CONTEXT, more) : CUDA_SUCCESS;
	if (result == CUDA_SUCCESS) {
		r.flags = RECORD_DEFERRED;
		r.bytes += more;
		overhead_add_deferred(d, more);
		charge_arrived(d->index, more);
		result = REAL(cuCtxSetLimit, CU_LIMIT_MALLOC_HEAP_SIZE, value);
		uint64_t less = result != CUDA_SUCCESS ? more : r.bytes - bytes;
		r.bytes -= less;
		context_drop(&(struct alloc_record){.bytes = less, .device = r.device, .flags = r.flags}, RATION_CONTEXT);
	}
	limit_keep(&r);
	return result;
}

int cuCtxSetLimit(int limit, size_t value)
{
	struct alloc_target t;
	int denied = context_enter(&t);
	if (!denied && t.device && limit == CU_LIMIT_STACK_SIZE)
		return limit_set_stack(&t, value);
	if (!denied && t.device && limit == CU_LIMIT_MALLOC_HEAP_SIZE)
		return limit_set_heap(&t, value);
	return REAL_UNLESS(denied, cuCtxSetLimit, limit, value);
}
