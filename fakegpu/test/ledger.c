/* The ledger at every point where its owner can die. It is included rather than
 * linked, to reach the words it packs. */
#include "../ledger.c"

#include "check.h"

enum { SLOTS = 4 };

static struct ledger_word device;
static struct ledger_account accounts[SLOTS];

/* Called once by the next look at an account, before that looks: another process's
 * steps in the middle of ours. */
static void (*meanwhile)(void);

static struct ledger_account *account_of(unsigned slot, unsigned d)
{
	void (*now)(void) = meanwhile;
	(void)d;
	if (now != NULL && slot == 1) {
		meanwhile = NULL;
		now();
	}
	return &accounts[slot];
}

static const struct ledger l = {&device, account_of, 0};

static void fresh(uint64_t capacity)
{
	memset(&device, 0, sizeof device);
	memset(accounts, 0, sizeof accounts);
	device.capacity = capacity;
}

static uint64_t units(void) { return ledger_word_units(device.word); }

static void announce(unsigned slot, int64_t delta)
{
	accounts[slot].pend = ledger_account_pack(delta, ledger_sequence_after(accounts[slot].used));
}

/* Announces and applies, without booking. */
static void apply_only(unsigned slot, int64_t delta)
{
	announce(slot, delta);
	CHECK(ledger_apply(&l, slot, delta, accounts[slot].pend));
}

static void ordinary(void)
{
	fresh(100);
	CHECK(ledger_change(&l, 1, 60));
	CHECK(!ledger_change(&l, 2, 41));
	CHECK(ledger_change(&l, 2, 40));
	CHECK(ledger_change(&l, 1, -10));
	EQ(units(), 90);
	EQ(ledger_used(&l, 1), 50 * LEDGER_UNIT);
	EQ(ledger_used(&l, 2), 40 * LEDGER_UNIT);
	ledger_reap(&l, 1);
	EQ(units(), 40);
	ledger_reap(&l, 1);
	EQ(units(), 40);
}

/* Death after each step of a charge (+10) and a return (-10), with and without
 * others' changes on top of it. */
static void deaths(void)
{
	for (int sign = -1; sign <= 1; sign += 2)
		for (int step = 0; step < 3; step++)
			for (int others = 0; others < 3; others++) {
				fresh(1000);
				CHECK(ledger_change(&l, 1, 50));
				if (step == 0)
					announce(1, sign * 10);
				else if (step == 1)
					apply_only(1, sign * 10);
				else
					CHECK(ledger_change(&l, 1, sign * 10));
				for (int i = 0; i < others; i++)
					CHECK(ledger_change(&l, 2, 7));
				ledger_reap(&l, 1);
				EQ(units(), others * 7);
				EQ(ledger_used(&l, 1), 0);
				CHECK(ledger_change(&l, 1, 3)); /* the slot's next owner */
				EQ(units(), others * 7 + 3);
			}
}

static void refused_and_dead(void)
{
	fresh(100);
	CHECK(ledger_change(&l, 1, 50));
	announce(1, 60); /* refused, and killed before it could say so */
	CHECK(ledger_change(&l, 2, 50));
	ledger_reap(&l, 1);
	EQ(units(), 50);
}

/* A reaper that dies leaves what a dying owner leaves. */
static void dead_reaper(void)
{
	for (int step = 0; step < 2; step++) {
		fresh(100);
		CHECK(ledger_change(&l, 1, 50));
		if (step == 0)
			announce(1, -50);
		else
			apply_only(1, -50);
		CHECK(ledger_change(&l, 2, 5));
		ledger_reap(&l, 1);
		EQ(units(), 5);
	}
}

/* A sequence left in done says nothing about others, older or newer. */
static void old_notes(void)
{
	for (uint64_t left = 2; left < SEQ_MASK; left += SEQ_MASK / 8) {
		fresh(1000);
		accounts[1].done = left;
		apply_only(1, 10);
		CHECK(ledger_change(&l, 2, 100));
		ledger_reap(&l, 1);
		EQ(units(), 100);
	}
}

/* The word names slot 1 as the helper reads it, and has moved on before it notes that. */
static void overtake(void)
{
	CHECK(ledger_sequence(accounts[2].pend) != ledger_sequence(accounts[2].used)); /* announced before it is applied */
	CHECK(ledger_change(&l, 3, 1));
	apply_only(1, 10);
	CHECK(ledger_change(&l, 3, 1));
}

static void overtaken_helper(void)
{
	fresh(1000);
	CHECK(ledger_change(&l, 1, 50));
	meanwhile = overtake;
	CHECK(ledger_change(&l, 2, 100));
	CHECK(meanwhile == NULL);
	ledger_reap(&l, 1);
	EQ(units(), 102);
}

/* Sequences wrap. A slot that worked alone for long is still judged rightly. */
static void wrapping(void)
{
	fresh(1000);
	for (uint64_t i = 0; i < SEQ_MASK; i++)
		if (!ledger_change(&l, 1, i % 2 == 0 ? 1 : -1))
			abort();
	EQ(units(), 1);
	announce(1, 10); /* with the sequence that done began with */
	ledger_reap(&l, 1);
	EQ(units(), 0);
	apply_only(1, 10);
	CHECK(ledger_change(&l, 2, 100));
	ledger_reap(&l, 1);
	EQ(units(), 100);
}

/* However many charges are refused, the last is not taken for one that was granted. */
static void refusals(void)
{
	fresh(100);
	CHECK(ledger_change(&l, 1, 50));
	CHECK(ledger_change(&l, 2, 10)); /* notes slot 1's first */
	CHECK(ledger_change(&l, 1, 1));
	for (uint64_t i = 0; i < SEQ_MASK; i++)
		if (ledger_change(&l, 1, 60))
			abort();
	ledger_reap(&l, 1);
	EQ(units(), 10);
}

/* A slot's next owner does not begin with a note of long ago. */
static void next_owner(void)
{
	fresh(1000);
	CHECK(ledger_change(&l, 1, 50));
	accounts[1].done = 3;
	ledger_reap(&l, 1); /* its second */
	announce(1, 10);
	EQ(ledger_sequence(accounts[1].pend), 3);
	ledger_reap(&l, 1);
	EQ(units(), 0);
}

int main(void)
{
	ordinary();
	deaths();
	refused_and_dead();
	dead_reaper();
	old_notes();
	overtaken_helper();
	wrapping();
	refusals();
	next_owner();
	return FINISH();
}
