/* The ledger: docs/protocols.md, section 1. */
#include "internal.h"

uint64_t region_ledger_word(const struct region *r, unsigned device) { return load_acquire(&r->m->devices[device].ledger_word); }

bool region_apply(struct region *r, unsigned device, uint64_t w, int64_t delta, unsigned slot, uint64_t seq)
{
	return cas(&r->m->devices[device].ledger_word, w, make_ledger_word(ledger_units(w) + (uint64_t)delta, slot, seq));
}

/* region_note writes down that the change in w happened, before w is overwritten. */
void region_note(struct region *r, unsigned device, uint64_t w)
{
	uint64_t *done = &account(r, device, ledger_slot(w))->done;
	for (;;) {
		/* Acquire: pairs with the swap below, by the process that was faster. */
		uint64_t d = load_acquire(done);
		if (d == short_seq(w))
			return;
		/* Between reading done and swapping it: without this, a process that was
		 * stopped here would write its old sequence over a newer one. */
		if (region_ledger_word(r, device) != w)
			return;
		FAILPOINT(NOTE_READ);
		if (cas(done, d, short_seq(w)))
			return;
	}
}

/* region_refresh is an owner's own note, made at its claim and now and then, so
 * that done is never so old that the short sequence comes round to it again. */
void region_refresh(uint64_t *done, uint64_t seq)
{
	for (;;) {
		uint64_t d = load_acquire(done);
		if (d == short_seq(seq) || cas(done, d, short_seq(seq)))
			return;
	}
}

/* region_change announces, applies and books delta units for slot, whose turn the
 * caller has. w is the device's word as seen a moment ago; it becomes the word
 * that was changed, or, where that would pass limit and false is returned, the one
 * that stood in the way. A null limit is none. */
bool region_change(struct region *r, unsigned device, unsigned slot, struct ration_account *a, const struct region_books *b, int64_t delta,
		   const uint64_t *limit, uint64_t *w)
{
	/* After the last one booked, not the last announced: a long run of refused
	 * charges must not come round to the sequence that the word still shows. */
	uint64_t seq = next_seq(used_seq(b->used));

	/* Release: a process that sees this change in the word or in done, judging us dead,
	 * also sees what it is. Pairs with reap_judge, here and in Go. */
	store_release(&a->pend, make_pend(seq, delta));
	FAILPOINT(CHANGE_ANNOUNCED);
	for (unsigned pause = 0;; *w = region_ledger_word(r, device)) {
		/* Many processes at one word get further by trying less often. */
		for (unsigned i = 0; i < pause; i++)
			cpu_relax();
		pause = pause < 16 ? 2 * pause + 1 : pause;
		/* After the word, each time round: what is granted fits a limit that held
		 * while the word was this one. */
		uint64_t ceiling = limit ? limit_ceiling(load_acquire(limit)) : RATION_MAX_UNITS;
		int64_t after = (int64_t)ledger_units(*w) + delta;
		if (UNLIKELY((delta > 0 && (uint64_t)after > ceiling) || after < 0)) {
			if (region_ledger_word(r, device) == *w)
				return false;
			continue; /* refuse only by what is so at this moment */
		}
		if (ledger_slot(*w) != slot) {
			region_note(r, device, *w);
			FAILPOINT(CHANGE_NOTED);
		}
		if (LIKELY(region_apply(r, device, *w, delta, slot, seq)))
			break;
	}
	FAILPOINT(CHANGE_APPLIED);
	store_release(&a->used, make_used(seq, used_units(b->used) + (uint64_t)delta));
	FAILPOINT(CHANGE_BOOKED);
	if (UNLIKELY(seq % RATION_DONE_REFRESH == 0))
		region_refresh(&a->done, seq);
	return true;
}
