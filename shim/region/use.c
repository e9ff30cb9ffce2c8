/* What a process shows of its use of the devices to the process that puts its job to sleep:
 * shim/PROTOCOLS.md, *The gate*. */
#include "internal.h"

/* use_slot returns this process's slot, or NULL if it has none. As for region_own_account: if this
 * process is taken for dead in the next instant, its caller writes into the next owner's slot. That
 * one writes used_at again at its next call, and stays awake for one bit too many at most. */
static struct ration_slot *use_slot(struct region *r)
{
	uint64_t claim = load_acquire(&r->claim);
	return claim && region_owned(r, claim) ? &r->m->slots[claim_slot(claim)] : NULL;
}

void region_show_use(struct region *r, uint64_t us)
{
	struct ration_slot *s = use_slot(r);
	if (s)
		/* Sequentially consistent: afterwards the caller reads whether the job sleeps. */
		__atomic_store_n(&s->used_at, us - (uint64_t)((int64_t)region_clock(r) / 1000), __ATOMIC_SEQ_CST);
}

void region_show_cannot(struct region *r, uint64_t bits)
{
	struct ration_slot *s = use_slot(r);
	if (s)
		/* The same. */
		__atomic_store_n(&s->cannot, bits, __ATOMIC_SEQ_CST);
}
