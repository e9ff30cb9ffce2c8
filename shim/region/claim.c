/* Slots: docs/protocols.md, *Liveness*. */
#include <string.h>
#include <unistd.h>

#include "internal.h"

/* claim_raise_high makes sure that scans include a slot, before the slot is claimed. */
static void claim_raise_high(struct region *r, unsigned slot)
{
	for (;;) {
		uint64_t high = load_acquire(&r->m->header.high_water);
		if (high > slot || cas(&r->m->header.high_water, high, slot + 1))
			return;
	}
}

/* claim_join fills in a claimed slot and makes it visible to readers. It returns false if the slot
 * was taken from this process meanwhile, because it had lost its lock. */
static bool claim_join(struct region *r, unsigned slot, uint64_t gen, const char *name)
{
	FAILPOINT(CLAIM_JOINING);
	struct region_identity me;
	region_identify(&me);
	struct ration_slot *s = &r->m->slots[slot];
	store_release(&s->pid, me.pid);
	store_release(&s->start, me.start);
	store_release(&s->pidns, me.pidns);
	store_release(&s->host_pid, make_host_pid(gen, me.pidns == REGION_INIT_PIDNS ? me.pid : 0));
	store_release(&s->uid, geteuid());
	store_release(&s->joined, now_ns(CLOCK_REALTIME));
	store_release(&s->turns, make_turns(gen, 0));
	store_release(&s->cannot, 0);
	store_release(&s->lane, make_lane(gen, 0, 0, RATION_LANE_NONE));

	uint64_t words[RATION_NAME_LEN / 8] = {0};
	size_t len = strnlen(name, RATION_NAME_LEN - 1);
	memcpy(words, name, len);
	for (unsigned i = 0; i < RATION_NAME_LEN / 8; i++)
		store_release((uint64_t *)(void *)s->name + i, words[i]);

	FAILPOINT(CLAIM_FILLED);
	store32_release(&r->slot, slot);
	uint64_t active = make_status(gen, RATION_SLOT_ACTIVE);
	/* Release: a reader that finds the slot active finds all of the above. */
	if (!cas(&r->m->status[slot], make_status(gen, RATION_SLOT_JOINING), active)) {
		region_let_go(slot, gen);
		return false;
	}
	store_release(&r->status, active);
	/* Release: a thread that loads this claim also sees that the slot is this process's. */
	store_release(&r->claim, make_claim(slot, active));
	FAILPOINT(CLAIM_ACTIVE);
	fetch_add(&r->m->header.counters.claims, 1);
	if (r->role == ROLE_FAST_PATH)
		fetch_add(&r->m->header.counters.fast, 1);
	return true;
}

/* claim_look returns a slot's status. If the owner announced its orderly end and has ended, it
 * first frees the slot, so that a job that starts many processes uses few slots. */
static uint64_t claim_look(struct region *r, unsigned slot)
{
	uint64_t status = load_acquire(&r->m->status[slot]);
	if (status_state(status) == RATION_SLOT_ACTIVE && region_left(r, slot, status_gen(status)) && region_reap_slot(r, slot))
		status = load_acquire(&r->m->status[slot]);
	return status;
}

/* claim_free claims a free slot. It searches a small window of slots first, so that later scans of
 * the slots in use stay short, and then larger ones. */
static int claim_free(struct region *r, const char *name)
{
	uint64_t ticket = fetch_add(&r->m->header.ticket, 1);
	unsigned locked_slot = 0;
	for (unsigned window = RATION_CLAIM_WINDOW; window <= RATION_SLOTS; window *= 2) {
		r->locked = 0;
		for (unsigned n = 0; n < window; n++) {
			unsigned slot = (unsigned)((ticket + n) % window);
			uint64_t status = claim_look(r, slot);
			if (status_state(status) != RATION_SLOT_FREE || slot == RATION_FENCE_SLOT)
				continue;
			/* Take the lock before the claim: then a claimed slot without a lock has a
			 * dead owner. */
			int err = region_lock(r, slot);
			if (err == REGION_SYSTEM)
				return err;
			if (err) { /* another process is about to claim the slot, or has just freed it */
				r->locked++;
				locked_slot = slot;
				continue;
			}
			if (region_kept(r, slot)) { /* by a process that left and is ending, or by its fork children */
				region_unlock(r, slot);
				continue;
			}
			uint64_t gen = status_gen(status) + 1;
			region_hold(slot, gen);
			claim_raise_high(r, slot);
			FAILPOINT(CLAIM_LOCKED);
			if (cas(&r->m->status[slot], status, make_status(gen, RATION_SLOT_JOINING))) {
				if (claim_join(r, slot, gen, name))
					return REGION_OK;
				continue;
			}
			region_let_go(slot, gen);
			region_unlock(r, slot);
		}
	}
	/* The process may also never claim the slot: then it has locked a byte that it does not
	 * use. Report it. */
	r->locked_by = r->locked ? region_locked_by(r, locked_slot) : 0;
	return r->locked ? REGION_LOCKED : REGION_FULL;
}

int region_claim(struct region *r, const char *name)
{
	unsigned reaped;
	if (!region_whole(r))
		return REGION_DAMAGED;
	int err = claim_free(r, name);
	if ((err != REGION_FULL && err != REGION_LOCKED) || (err = region_reap(r, &reaped)))
		return err;
	return claim_free(r, name);
}

/* claim_return_all returns all units that the slot holds on a device, as the ledger has them, so
 * that none is left behind. If there are any and freed is false (the driver still has the memory),
 * it changes nothing and returns REGION_HELD. */
static int claim_return_all(struct region *r, unsigned device, uint64_t claim, bool freed)
{
	struct region_turn *t = &r->turns[device];
	struct ration_account *a = account(r, device, claim_slot(claim));
	if (load_acquire(&a->gen) != status_gen(claim_status(claim)))
		return REGION_OK; /* this process never used the account */
	region_keep_peak(r, device);
	int err = region_take(r, device, claim, false);
	if (err)
		return err;
	uint64_t w = region_ledger_word(r, device), units = used_units(load_acquire(&a->used));
	if (units && !freed)
		err = REGION_HELD;
	else if (units)
		err = region_change(r, device, claim, a, -(int64_t)units, NULL, &w);
	if (!err)
		region_clear(t, a);
	region_yield(r, device, claim);
	region_wake(r, device);
	return err;
}

/* claim_leave returns the slot's bytes and frees the slot. freed: the driver has freed all memory
 * of this process. */
static int claim_leave(struct region *r, bool freed)
{
	/* Only the first of several callers gets the claim. */
	uint64_t claim = __atomic_exchange_n(&r->claim, 0, __ATOMIC_ACQ_REL);
	unsigned slot = claim_slot(claim);
	uint64_t status = claim_status(claim);
	if (!claim)
		return REGION_EVICTED;
	store_release(&r->status, 0);
	if (!region_whole(r))
		return REGION_DAMAGED;
	if (load_acquire(&r->m->status[slot]) != status) {
		region_let_go(slot, status_gen(status));
		return REGION_EVICTED;
	}
	if (!freed)
		store_release(&r->m->slots[slot].left, status_gen(status));
	for (unsigned d = 0; d < RATION_DEVICES; d++)
		region_cap_settle(r, d, slot, status);
	for (unsigned d = 0; d < RATION_DEVICES; d++) {
		int err = claim_return_all(r, d, claim, freed);
		if (err)
			return err;
	}
	FAILPOINT(LEAVE_RETURNED);
	cas(&r->m->status[slot], status, make_status(status_gen(status), RATION_SLOT_FREE));
	FAILPOINT(LEAVE_FREED);
	region_let_go(slot, status_gen(status));
	region_unlock(r, slot);
	FAILPOINT(LEAVE_UNLOCKED);
	return REGION_OK;
}

int region_leave(struct region *r) { return claim_leave(r, true); }

int region_end(struct region *r) { return claim_leave(r, false); }
