/* Reaping: what a dead process held goes to the next process that needs it. Any number of
 * processes may do this at once, and die doing it. docs/protocols.md, section 1. */
#include <pthread.h>

#include "internal.h"

struct reap_verdict {
	uint64_t pend, used, word;
	bool applied, booked;
};

/* judge reads the account's words in the order that makes a crash decidable. It
 * returns false where the slot has changed hands. */
static bool reap_judge(struct region *r, unsigned device, unsigned slot, uint64_t status, struct reap_verdict *v)
{
	struct ration_account *a = account(r, device, slot);
	uint64_t again, done;
	do {
		/* Acquire, each, in this order: pairs with the releases in region_change,
		 * and with the swap in region_note, which comes before the word moves on. */
		v->pend = load_acquire(&a->pend);
		v->used = load_acquire(&a->used);
		v->word = region_ledger_word(r, device);
		done = load_acquire(&a->done);
		again = load_acquire(&a->pend);
		if (load_acquire(&r->m->status[slot]) != status)
			return false;
	} while (again != v->pend);
	uint64_t seq = short_seq(pend_seq(v->pend));
	v->booked = used_seq(v->used) == pend_seq(v->pend);
	v->applied = v->booked || (ledger_slot(v->word) == slot && short_seq(v->word) == seq) || done == seq;
	return true;
}

/* settle brings a dead account to zero. Every step is one swap from a value that
 * includes a sequence, so that a step made late does nothing. */
static int reap_settle(struct region *r, unsigned device, unsigned slot, uint64_t status, bool *settled)
{
	struct ration_account *a = account(r, device, slot);
	struct reap_verdict v;
	*settled = false;
	while (reap_judge(r, device, slot, status, &v)) {
		FAILPOINT(REAP_JUDGED);
		uint64_t seq = pend_seq(v.pend), units = used_units(v.used);
		int64_t delta = pend_delta(v.pend);
		if (v.applied && !v.booked) {
			int64_t after = (int64_t)units + delta;
			if (after < 0 || after > (int64_t)RATION_MAX_UNITS)
				return REGION_DAMAGED;
			cas(&a->used, v.used, make_used(seq, (uint64_t)after));
			FAILPOINT(REAP_BOOKED);
		} else if (!v.applied && delta < 0) {
			/* A return that was announced is finished, never replaced: another
			 * reaper may be applying it now. */
			if ((int64_t)ledger_units(v.word) + delta < 0)
				return REGION_DAMAGED;
			region_note(r, device, v.word);
			FAILPOINT(REAP_NOTED);
			region_apply(r, device, v.word, delta, slot, seq);
			FAILPOINT(REAP_APPLIED);
		} else if (units > 0) {
			/* All is booked, or a charge was announced that no process can apply any more. */
			cas(&a->pend, v.pend, make_pend(next_seq(used_seq(v.used)), -(int64_t)units));
			FAILPOINT(REAP_ANNOUNCED);
		} else {
			*settled = true;
			return REGION_OK;
		}
	}
	return REGION_OK;
}

/* reap_slot settles a dead process's accounts and frees its slot. */
static int reap_slot(struct region *r, unsigned slot, unsigned *slots)
{
	uint64_t status = load_acquire(&r->m->status[slot]);
	if (status_state(status) == RATION_SLOT_FREE || !region_dead(r, slot, status))
		return REGION_OK;
	for (unsigned d = 0; d < RATION_DEVICES; d++) {
		bool settled;
		int err = reap_settle(r, d, slot, status, &settled);
		if (err || !settled)
			return err;
	}
	FAILPOINT(REAP_SETTLED);
	if (!cas(&r->m->status[slot], status, make_status(status_gen(status), RATION_SLOT_FREE)))
		return REGION_OK;
	FAILPOINT(REAP_FREED);
	fetch_add(&r->m->header.counters.reaped, 1);
	++*slots;
	return REGION_OK;
}

/* region_reap_former_self gives back what this very process held before it became
 * another program: its PID and start time are still the same, so no other process
 * can tell. */
int region_reap_former_self(struct region *r)
{
	struct region_identity me;
	unsigned slots = 0;
	region_identify(&me);
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		const struct ration_slot *s = &r->m->slots[slot];
		if (load_acquire(&s->pid) != me.pid || load_acquire(&s->pidns) != me.pidns)
			continue;
		int err = reap_slot(r, slot, &slots);
		if (err)
			return err;
	}
	return REGION_OK;
}

int region_reap(struct region *r, unsigned *slots)
{
	*slots = 0;
	if (!region_whole(r))
		return REGION_DAMAGED;
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		int err = reap_slot(r, slot, slots);
		if (err)
			return err;
	}
	return REGION_OK;
}

/* region_reap_device looks only at slots that may hold something of device: a
 * refusal must not cost a question to the kernel for every process there is. */
int region_reap_device(struct region *r, unsigned device, unsigned *slots)
{
	/* It reads files, and our caller may hold a lock: no thread is cancelled here. */
	int cancel, err = REGION_OK;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	*slots = 0;
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		struct ration_account *a = account(r, device, slot);
		uint64_t used = load_acquire(&a->used), pend = load_acquire(&a->pend);
		if (slot == r->slot || (used_units(used) == 0 && used_seq(used) == pend_seq(pend)))
			continue;
		if ((err = reap_slot(r, slot, slots)))
			break;
	}
	pthread_setcancelstate(cancel, &cancel);
	return err;
}
