#include "ledger.h"

#include "atomics.h"

/* word: units 30 | slot 10 | sequence 24      pend, used: amount 40 | sequence 24 */
enum { SEQ_BITS = 24, SLOT_BITS = 10 };

/* A slot notes its own change this often, so that a sequence left in done long ago
 * never equals a new one by chance. */
enum { REFRESH_EVERY = 1 << 16 };

#define SEQ_MASK ((1ull << SEQ_BITS) - 1)
#define SLOT_MASK ((1ull << SLOT_BITS) - 1)

static uint64_t ledger_word_pack(uint64_t units, unsigned slot, uint64_t seq)
{
	return units << (SLOT_BITS + SEQ_BITS) | (uint64_t)slot << SEQ_BITS | (seq & SEQ_MASK);
}

static uint64_t ledger_word_units(uint64_t w) { return w >> (SLOT_BITS + SEQ_BITS); }
static unsigned ledger_word_slot(uint64_t w) { return (w >> SEQ_BITS) & SLOT_MASK; }

static uint64_t ledger_account_pack(int64_t amount, uint64_t seq) { return (uint64_t)amount << SEQ_BITS | (seq & SEQ_MASK); }

static int64_t ledger_account_amount(uint64_t v) { return (int64_t)v >> SEQ_BITS; }

/* The sequence of any of the three, and the one after it. */
static uint64_t ledger_sequence(uint64_t v) { return v & SEQ_MASK; }
static uint64_t ledger_sequence_after(uint64_t v) { return (v + 1) & SEQ_MASK; }

/* Records that the change in w happened, before w is overwritten. */
static void ledger_note(const struct ledger *l, uint64_t w)
{
	uint64_t *done = &l->account(ledger_word_slot(w), l->index)->done;
	uint64_t d = load_seq_cst(done);

	while (d != ledger_sequence(w)) {
		/* Between reading done and swapping it: without this, a process that was
         * stopped here would write its old sequence over a newer one. */
		if (load_seq_cst(&l->device->word) != w)
			return;
		if (cas_seq_cst(done, &d, ledger_sequence(w)))
			return;
	}
}

/* Applies the change that slot has announced as seq. False if it exceeds the capacity. */
static bool ledger_apply(const struct ledger *l, unsigned slot, int64_t delta, uint64_t seq)
{
	uint64_t w = load_seq_cst(&l->device->word);
	uint64_t units;

	do {
		units = ledger_word_units(w) + (uint64_t)delta;
		if (delta > 0 && units > load_relaxed(&l->device->capacity))
			return false;
		if (ledger_word_slot(w) != slot)
			ledger_note(l, w);
	} while (!cas_seq_cst(&l->device->word, &w, ledger_word_pack(units, slot, seq)));
	return true;
}

/* The owner's own note of its last change, or that of its reaper. */
static void ledger_refresh(struct ledger_account *a) { store_release(&a->done, ledger_sequence(load_relaxed(&a->used))); }

bool ledger_change(const struct ledger *l, unsigned slot, int64_t delta)
{
	struct ledger_account *a = l->account(slot, l->index);
	uint64_t used = load_relaxed(&a->used);
	/* Use the sequence after the last booked one. Refused announcements share a sequence, so no
	 * number of them can wrap around to the sequence that is still in the word. */
	uint64_t seq = ledger_sequence_after(used);

	/* Release, and before the swap in ledger_apply: pairs with ledger_reap, which reads the
	 * announcement after it has found that sequence applied. */
	store_release(&a->pend, ledger_account_pack(delta, seq));
	if (!ledger_apply(l, slot, delta, seq))
		return false;
	store_release(&a->used, ledger_account_pack(ledger_account_amount(used) + delta, seq));
	if (seq % REFRESH_EVERY == 0)
		ledger_refresh(a);
	return true;
}

/* One step of a dead slot's reaping. False when it holds nothing and owes nothing. */
static bool ledger_reap_step(const struct ledger *l, unsigned slot, struct ledger_account *a)
{
	uint64_t pend = load_seq_cst(&a->pend);
	uint64_t used = load_seq_cst(&a->used);
	/* The word before done: a change that is no longer in the word was noted first. */
	uint64_t w = load_seq_cst(&l->device->word);
	uint64_t done = load_seq_cst(&a->done);
	bool booked = ledger_sequence(pend) == ledger_sequence(used);
	bool applied =
		booked || (ledger_word_slot(w) == slot && ledger_sequence(w) == ledger_sequence(pend)) || done == ledger_sequence(pend);

	if (!booked && applied)
		store_release(&a->used, ledger_account_pack(ledger_account_amount(used) + ledger_account_amount(pend), pend));
	else if (!applied && ledger_account_amount(pend) < 0)
		ledger_apply(l, slot, ledger_account_amount(pend), pend);
	else if (ledger_account_amount(used) != 0)
		store_release(&a->pend, ledger_account_pack(-ledger_account_amount(used), ledger_sequence_after(used)));
	else
		return false;
	return true;
}

void ledger_reap(const struct ledger *l, unsigned slot)
{
	struct ledger_account *a = l->account(slot, l->index);

	while (ledger_reap_step(l, slot, a)) {
	}
	ledger_refresh(a); /* for the slot's next owner */
	for (int k = 0; k < KIND_COUNT; k++)
		store_relaxed(&a->kind[k], 0);
	store_relaxed(&a->contexts, 0);
}

uint64_t ledger_total(const struct ledger *l) { return ledger_word_units(load_seq_cst(&l->device->word)) * LEDGER_UNIT; }

uint64_t ledger_used(const struct ledger *l, unsigned slot)
{
	return (uint64_t)ledger_account_amount(load_seq_cst(&l->account(slot, l->index)->used)) * LEDGER_UNIT;
}
