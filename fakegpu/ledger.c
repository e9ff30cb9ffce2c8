#include "ledger.h"

#include "atomics.h"

/* word: units 30 | slot 10 | sequence 24      pend, used: amount 40 | sequence 24 */
enum { SEQ_BITS = 24, SLOT_BITS = 10 };

/* A slot that nobody disturbs raises its own done this often, so that done never
 * falls behind by half the range of sequences. */
enum { RAISE_EVERY = 1 << 20 };

#define SEQ_MASK ((1ull << SEQ_BITS) - 1)
#define SLOT_MASK ((1ull << SLOT_BITS) - 1)

static uint64_t word_pack(uint64_t units, unsigned slot, uint64_t seq)
{
    return units << (SLOT_BITS + SEQ_BITS) | (uint64_t)slot << SEQ_BITS | (seq & SEQ_MASK);
}

static uint64_t word_units(uint64_t w) { return w >> (SLOT_BITS + SEQ_BITS); }
static unsigned word_slot(uint64_t w) { return (w >> SEQ_BITS) & SLOT_MASK; }

static uint64_t pack(int64_t amount, uint64_t seq)
{
    return (uint64_t)amount << SEQ_BITS | (seq & SEQ_MASK);
}

static int64_t amount(uint64_t v) { return (int64_t)v >> SEQ_BITS; }
static uint64_t sequence(uint64_t v) { return v & SEQ_MASK; }

/* Sequences wrap: a is newer than b if it is ahead by less than half the range. */
static bool newer(uint64_t a, uint64_t b)
{
    uint64_t ahead = (a - b) & SEQ_MASK;
    return ahead != 0 && ahead < (SEQ_MASK + 1) / 2;
}

static void raise_done(struct ledger_account *a, uint64_t seq)
{
    uint64_t done = load_seq_cst(&a->done);
    while (newer(seq, done) && !cas_seq_cst(&a->done, &done, seq)) {
    }
}

static bool enter(const struct ledger *l, unsigned slot, int64_t delta, uint64_t seq)
{
    uint64_t w = load_seq_cst(&l->device->word);
    uint64_t next;
    do {
        uint64_t units = word_units(w) + (uint64_t)delta;
        if (delta > 0 && units > l->device->capacity)
            return false;
        next = word_pack(units, slot, seq);
        /* Before the word that names it can be overwritten: this is what lets a
         * reaper tell an announcement that was applied from one that was not. */
        if (word_slot(w) != slot || seq % RAISE_EVERY == 0)
            raise_done(l->account(word_slot(w), l->index), sequence(w));
    } while (!cas_seq_cst(&l->device->word, &w, next));
    return true;
}

bool ledger_change(const struct ledger *l, unsigned slot, int64_t delta)
{
    struct ledger_account *a = l->account(slot, l->index);
    uint64_t held = load_relaxed(&a->used);
    /* A refused announcement stays in pend, so the next number goes on from there. */
    uint64_t seq = sequence(load_relaxed(&a->pend)) + 1;

    /* Announced before it enters and booked after: the exchange in enter() is a
     * release for the one, and these releases order what came before them. They pair
     * with the loads in ledger_reap(). */
    store_release(&a->pend, pack(delta, seq));
    if (!enter(l, slot, delta, seq)) {
        store_release(&a->used, pack(amount(held), seq)); /* booked as nothing */
        return false;
    }
    store_release(&a->used, pack(amount(held) + delta, seq));
    return true;
}

void ledger_reap(const struct ledger *l, unsigned slot)
{
    struct ledger_account *a = l->account(slot, l->index);
    uint64_t pend = load_seq_cst(&a->pend);
    uint64_t used = load_seq_cst(&a->used);

    if (sequence(pend) != sequence(used)) {
        /* The word before done: one that stopped naming us raised done first. */
        uint64_t w = load_seq_cst(&l->device->word);
        bool named = word_slot(w) == slot && sequence(w) == sequence(pend);
        bool applied = named || load_seq_cst(&a->done) == sequence(pend);
        used = pack(amount(used) + (applied ? amount(pend) : 0), sequence(pend));
        store_release(&a->used, used);
    }
    if (amount(used) != 0)
        ledger_change(l, slot, -amount(used));
    for (int k = 0; k < KIND_COUNT; k++)
        store_relaxed(&a->kind[k], 0);
    store_relaxed(&a->contexts, 0);
}

uint64_t ledger_total(const struct ledger *l)
{
    return word_units(load_seq_cst(&l->device->word)) * LEDGER_UNIT;
}

uint64_t ledger_used(const struct ledger *l, unsigned slot)
{
    return (uint64_t)amount(load_seq_cst(&l->account(slot, l->index)->used)) * LEDGER_UNIT;
}
