/* cuCtxSetLimit sets how much memory the kernels of a context have for their stacks and for
 * malloc. A program may ask for any size.
 *
 * The driver allocates stacks during the call, for as many threads as the device can run. When
 * the limit is lowered, it frees stacks at any time later: they stay charged until a reading
 * shows that they are gone. The heap is allocated with the first kernel that uses malloc, when
 * it is too late to refuse it: it is charged when the limit is set. Other limits take no
 * memory, or little: printf's buffer is in host memory. */
#include "charge.h"
#include "hooks/context_table.h"
#include "overhead.h"
#include "region/words.h"

/* limit_take removes the record of the charge for a limit of a context, or makes an empty one.
 * While a thread sets the limit, the record belongs to that thread. */
static struct alloc_record limit_take(const struct alloc_target *t, int limit)
{
	struct alloc_record r, none = {.key = (uint64_t)t->context << 8 | (unsigned)limit << 1 | 1,
				       .device = (uint8_t)t->device->index,
				       .context = t->context};
	return alloc_table_take(&context_limits, none.key, &r) ? r : none;
}

/* limit_keep puts the record back, unless it is empty. */
static void limit_keep(const struct alloc_record *r)
{
	if (r->bytes)
		context_keep(&context_limits, r, RATION_CONTEXT);
}

/* limit_stacks returns how many bytes all stacks of a context take, without the first KiB of
 * each, which is part of the context's cost. No stack is larger than half a MiB. */
static uint64_t limit_stacks(const struct device *d, size_t value)
{
	enum { FIRST = 1024, MOST = 512 << 10 };
	return value <= FIRST ? 0 : d->residents * ((value < MOST ? value : MOST) - FIRST);
}

/* limit_lower_stack makes the charge of lowered stacks subject to readings, since the driver
 * may free them from now on. If no reading will be taken, it returns their charge at once. */
static void limit_lower_stack(struct device *d, struct alloc_record *r, uint64_t less)
{
	if (overhead_lower(d, less))
		return;
	less = less / RATION_UNIT * RATION_UNIT;
	r->bytes -= less;
	context_drop(&(struct alloc_record){.bytes = less, .device = r->device, .flags = r->flags}, RATION_CONTEXT);
}

/* limit_set_stack charges stacks before the driver is asked: on an H200 a stack that was
 * refused afterwards, and set back, was not freed. The charge is unconfirmed, so the next
 * reading corrects it. It returns the result of the hooked call. */
static int limit_set_stack(const struct alloc_target *t, size_t value)
{
	struct device *d = t->device;
	size_t old = 0;
	/* A destroyed context has no limits: the driver reports the error. */
	bool known = REAL(cuCtxGetLimit, &old, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS;
	uint64_t now = limit_stacks(d, old), then = limit_stacks(d, value);
	uint64_t more = known && then > now ? units_for(then - now) * RATION_UNIT : 0;
	int result = more ? charge_add(d->index, RATION_CONTEXT, more) : CUDA_SUCCESS;
	if (result != CUDA_SUCCESS)
		return result;
	struct alloc_record r = limit_take(t, CU_LIMIT_STACK_SIZE);
	result = REAL(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, value);
	if (result == CUDA_SUCCESS) {
		charge_arrived(d->index, more);
		overhead_add_unconfirmed(d, RATION_CONTEXT, more, 0);
		r.bytes += more;
		r.flags |= RECORD_UNCONFIRMED;
		if (known && then < now)
			limit_lower_stack(d, &r, now - then < r.bytes ? now - then : r.bytes);
	} else if (more) {
		charge_return(d->index, RATION_CONTEXT, more);
	}
	limit_keep(&r);
	overhead_refresh(d);
	return result;
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
