/* The ledger at every point where its owner can die. It is included rather than
 * linked, to reach the words it packs. */
#include "../ledger.c"

#include "check.h"

enum { SLOTS = 4 };

static struct ledger_word device;
static struct ledger_account accounts[SLOTS];

static struct ledger_account *account_of(unsigned slot, unsigned d)
{
    (void)d;
    return &accounts[slot];
}

static const struct ledger l = {&device, account_of, 0};

static void fresh(uint64_t capacity)
{
    memset(&device, 0, sizeof device);
    memset(accounts, 0, sizeof accounts);
    device.capacity = capacity;
}

static uint64_t units(void) { return word_units(device.word); }

static void announce(unsigned slot, int64_t delta)
{
    accounts[slot].pend = pack(delta, sequence(accounts[slot].pend) + 1);
}

/* Announces and enters, without booking. */
static void enter_only(unsigned slot, int64_t delta)
{
    announce(slot, delta);
    CHECK(enter(&l, slot, delta, sequence(accounts[slot].pend)));
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
                    enter_only(1, sign * 10);
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
            enter_only(1, -50);
        CHECK(ledger_change(&l, 2, 5));
        ledger_reap(&l, 1);
        EQ(units(), 5);
    }
}

/* Sequences wrap; a slot that worked alone for long is still judged rightly. */
static void wrapping(void)
{
    fresh(1000);
    for (uint64_t i = 0; i < (1u << SEQ_BITS) + 5; i++)
        if (!ledger_change(&l, 1, i % 2 == 0 ? 1 : -1))
            abort();
    EQ(units(), 1);
    enter_only(1, 10);
    CHECK(ledger_change(&l, 2, 100)); /* must raise done of slot 1 */
    ledger_reap(&l, 1);
    EQ(units(), 100);
    announce(1, 10);
    ledger_reap(&l, 1);
    EQ(units(), 100);
}

int main(void)
{
    ordinary();
    deaths();
    refused_and_dead();
    dead_reaper();
    wrapping();
    return FINISH();
}
