/* The ledger: docs/protocols.md. */
#include "internal.h"

uint64_t region_ledger_word(const struct region *r, unsigned device) { return load_acquire(&r->m->devices[device].ledger_word); }

bool region_apply(struct region *r, unsigned device, uint64_t w, int64_t delta, unsigned slot, uint64_t seq)
{
	return cas(&r->m->devices[device].ledger_word, w, make_ledger_word(ledger_units(w) + (uint64_t)delta, slot, seq));
}

/* region_note writes down that the change in w happened, before w is overwritten. It returns
 * false where it could not: a process writes over it all the while, which none does that keeps
 * to the protocol, and w must stay. */
bool region_note(struct region *r, unsigned device, uint64_t w)
{
	uint64_t *done = &account(r, device, ledger_slot(w))->done;
	for (unsigned i = 0; i < RATION_REAP_TRIES; i++) {
		/* Acquire: pairs with the swap below, by the process that was faster. */
		uint64_t d = load_acquire(done);
		if (d == short_seq(w))
			return true;
		/* Between reading done and swapping it: without this, a process that was
		 * stopped here would write its old sequence over a newer one. */
		if (region_ledger_word(r, device) != w)
			return true;
		FAILPOINT(NOTE_READ);
		if (cas(done, d, short_seq(w)))
			return true;
	}
	return false;
}

/* region_fence puts a word in the place of w that has never been there, with the same units:
 * a process that read an earlier one, and is about to swap it, fails. */
bool region_fence(struct region *r, unsigned device, uint64_t w)
{
	struct ration_device *d = &r->m->devices[device];
	return cas(&d->ledger_word, w, make_ledger_word(ledger_units(w), RATION_FENCE_SLOT, fetch_add(&d->fences, 1)));
}

/* region_refresh is an owner's own note, made at its first change and now and then, so
 * that done is never so old that the short sequence comes round to it again. */
void region_refresh(const struct region *r, uint64_t claim, uint64_t *done, uint64_t seq)
{
	for (;;) {
		uint64_t d = load_acquire(done);
		/* Between the two, as in region_note: the slot's next owner may rest on done. */
		if (d == short_seq(seq) || !region_owned(r, claim) || cas(done, d, short_seq(seq)))
			return;
	}
}

/* ledger_announce announces delta units as the account's next change, and leaves in used
 * what it is a change of. It returns false where the slot has been taken away. */
static bool ledger_announce(struct region *r, uint64_t claim, struct ration_account *a, int64_t delta, uint64_t *used)
{
	for (;;) {
		uint64_t pend = load_acquire(&a->pend);
		*used = load_acquire(&a->used);
		if (UNLIKELY(!region_owned(r, claim)))
			return false;
		FAILPOINT(CHANGE_READ);
		/* After the last one booked, not the last announced: a long run of refused
		 * charges must not come round to the sequence that the word still shows.
		 * Full order: a process that sees this change in the word or in done, judging us
		 * dead, also sees what it is (pairs with reap_judge, here and in Go); and our next
		 * look at the status comes after it. It fails where the slot is being reaped, or
		 * where its last owner, taken for dead, announces what it will find it cannot apply. */
		if (LIKELY(cas(&a->pend, pend, make_pend(next_seq(used_seq(*used)), delta))))
			return true;
	}
}

/* region_change announces, applies and books delta units for the claim, whose turn the
 * caller has. w is the device's word as seen a moment ago; it becomes the word that was
 * changed, or, where that would pass limit (REGION_REFUSED), the one that stood in the way.
 * A null limit is none. REGION_EVICTED: the slot was taken away, and whatever was applied of
 * this change has been returned with the rest. */
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
		/* Many processes at one word get further by trying less often. */
		for (unsigned i = 0; i < pause; i++)
			cpu_relax();
		pause = pause < 16 ? 2 * pause + 1 : pause;
		/* After the word, and before it is swapped: a reaper condemns the slot, and then
		 * puts a fence into the word. Either is found. */
		if (UNLIKELY(!region_owned(r, claim)))
			return REGION_EVICTED;
		/* After the word, each time round: what is granted fits a limit that held
		 * while the word was this one. */
		uint64_t ceiling = limit ? limit_ceiling(load_acquire(limit)) : RATION_MAX_UNITS;
		int64_t after = (int64_t)ledger_units(*w) + delta;
		if (UNLIKELY((delta > 0 && (uint64_t)after > ceiling) || after < 0)) {
			if (region_ledger_word(r, device) == *w)
				return delta > 0 ? REGION_REFUSED : REGION_DAMAGED;
			continue; /* refuse only by what is so at this moment */
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
	/* A swap: a reaper that found the change applied has booked it, and returned it. */
	if (UNLIKELY(!cas(&a->used, used, make_used(seq, used_units(used) + (uint64_t)delta))))
		return REGION_EVICTED;
	FAILPOINT(CHANGE_BOOKED);
	if (UNLIKELY(seq % RATION_DONE_REFRESH == 0))
		region_refresh(r, claim, &a->done, seq);
	return REGION_OK;
}
