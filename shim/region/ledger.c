/* The ledger: docs/protocols.md. */
#include "internal.h"

uint64_t region_ledger_word(const struct region *r, unsigned device) { return load_acquire(&r->m->devices[device].ledger_word); }

bool region_apply(struct region *r, unsigned device, uint64_t w, int64_t delta, unsigned slot, uint64_t seq)
{
	return cas(&r->m->devices[device].ledger_word, w, make_ledger_word(ledger_units(w) + (uint64_t)delta, slot, seq));
}

/* region_note records in done that the change in w happened, before w is overwritten. It returns
 * false if it could not, because a process that breaks the protocol keeps overwriting done. Then
 * the caller must leave w in place. */
bool region_note(struct region *r, unsigned device, uint64_t w)
{
	uint64_t *done = &account(r, device, ledger_slot(w))->done;
	for (unsigned i = 0; i < RATION_REAP_TRIES; i++) {
		/* Acquire: pairs with the swap below, by the process that was faster. */
		uint64_t d = load_acquire(done);
		if (d == short_seq(w))
			return true;
		/* Check between reading done and swapping it. Without this, a process that was
		 * stopped here would later write its old sequence over a newer one. */
		if (region_ledger_word(r, device) != w)
			return true;
		FAILPOINT(NOTE_READ);
		if (cas(done, d, short_seq(w)))
			return true;
	}
	return false;
}

/* region_fence replaces w by a word with the same units that was never there before, so that the
 * swap of a process that has read an earlier word fails. It returns true if it replaced w. */
bool region_fence(struct region *r, unsigned device, uint64_t w)
{
	struct ration_device *d = &r->m->devices[device];
	return cas(&d->ledger_word, w, make_ledger_word(ledger_units(w), RATION_FENCE_SLOT, fetch_add(&d->fences, 1)));
}

/* region_refresh writes the owner's sequence seq to its account's done. The owner calls it before
 * its first change and then every RATION_DONE_REFRESH changes. Otherwise done could keep a value
 * for so long that the short sequence wraps around and reaches that value again. */
void region_refresh(const struct region *r, uint64_t claim, uint64_t *done, uint64_t seq)
{
	for (;;) {
		uint64_t d = load_acquire(done);
		/* Check the status between reading done and swapping it: if the slot has a new
		 * owner, done is that owner's, and an old sequence must not overwrite it. */
		if (d == short_seq(seq) || !region_owned(r, claim) || cas(done, d, short_seq(seq)))
			return;
	}
}

/* ledger_announce announces delta units as the account's next change, and sets *used to the value
 * that the change starts from. It returns false if the slot was taken from this process. The caller
 * holds the account's turn. */
static bool ledger_announce(struct region *r, uint64_t claim, struct ration_account *a, int64_t delta, uint64_t *used)
{
	for (;;) {
		uint64_t pend = load_acquire(&a->pend);
		*used = load_acquire(&a->used);
		if (UNLIKELY(!region_owned(r, claim)))
			return false;
		FAILPOINT(CHANGE_READ);
		/* Use the sequence after the last booked one, not after the last announced one:
		 * with the latter, a long run of refused charges could wrap around to the sequence
		 * that is still in the word.
		 *
		 * Sequentially consistent: a reaper that finds this change in the word or in done
		 * also finds the announcement (pairs with reap_judge, here and in Go); and our next
		 * load of the status comes after the swap. The swap fails if the slot is being
		 * reaped, or if its last owner, which was wrongly taken for dead, announces a
		 * change; that owner will find that it cannot apply it. */
		if (LIKELY(cas(&a->pend, pend, make_pend(next_seq(used_seq(*used)), delta))))
			return true;
	}
}

/* region_change announces, applies and books a change of delta units for the claim. The caller
 * holds the account's turn. *w is the device's word as read a moment ago; it becomes the word that
 * was changed, or, on REGION_REFUSED, the word that left no space. limit may be NULL for no limit.
 * REGION_EVICTED: the slot was taken from this process, and a reaper has returned whatever was
 * applied of this change. */
int region_change(struct region *r, unsigned device, uint64_t claim, struct ration_account *a, int64_t delta, const uint64_t *limit,
		  uint64_t *w)
{
	unsigned slot = claim_slot(claim);
	uint64_t used;
	if (UNLIKELY(!ledger_announce(r, claim, a, delta, &used)))
		return REGION_EVICTED;
	uint64_t seq = next_seq(used_seq(used));
	FAILPOINT(CHANGE_ANNOUNCED);
	for (unsigned pause = 0;; *w = region_ledger_word(r, device)) {
		/* Many processes that change one word progress faster if they try less often. */
		for (unsigned i = 0; i < pause; i++)
			cpu_relax();
		pause = pause < 16 ? 2 * pause + 1 : pause;
		/* Check after reading the word and before swapping it. A reaper first condemns the
		 * slot, and then puts a fence into the word: we find one of the two. */
		if (UNLIKELY(!region_owned(r, claim)))
			return REGION_EVICTED;
		/* Read the limit after the word, in each round: then a granted change is within a
		 * limit that was in force while the word had this value. */
		uint64_t ceiling = limit ? limit_ceiling(load_acquire(limit)) : RATION_MAX_UNITS;
		int64_t after = (int64_t)ledger_units(*w) + delta;
		if (UNLIKELY((delta > 0 && (uint64_t)after > ceiling) || after < 0)) {
			if (region_ledger_word(r, device) == *w)
				return delta > 0 ? REGION_REFUSED : REGION_DAMAGED;
			continue; /* refuse only on the state of one instant */
		}
		if (ledger_slot(*w) != slot) {
			if (UNLIKELY(!region_note(r, device, *w)))
				continue;
			FAILPOINT(CHANGE_NOTED);
		}
		if (LIKELY(region_apply(r, device, *w, delta, slot, seq)))
			break;
	}
	FAILPOINT(CHANGE_APPLIED);
	/* This must be a swap: a reaper that found the change applied has booked and returned it. */
	if (UNLIKELY(!cas(&a->used, used, make_used(seq, used_units(used) + (uint64_t)delta))))
		return REGION_EVICTED;
	FAILPOINT(CHANGE_BOOKED);
	if (UNLIKELY(seq % RATION_DONE_REFRESH == 0))
		region_refresh(r, claim, &a->done, seq);
	return REGION_OK;
}
