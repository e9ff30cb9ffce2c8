/* The ledger, by its words (docs/protocols.md): what a process writes down before it overwrites
 * another one's change, and where a limit is. Claims of this process take turns. */
#include "../region/internal.h"
#include "held.h"

/* The limit is exact: what fills it is granted, and one unit more is not. */
static void fills(const char *path)
{
	struct region r;
	struct region_limits own = {.memory = {[1] = make_limit(10 * RATION_UNIT)}};
	EQ(region_open(&r, path, &own), REGION_OK);
	EQ(region_claim(&r, "fills"), REGION_OK);
	EQ(region_charge(&r, 1, RATION_DATA, 9 * RATION_UNIT, NULL), REGION_OK);
	EQ(region_charge(&r, 1, RATION_DATA, RATION_UNIT + 1, NULL), REGION_REFUSED);
	EQ(region_charge(&r, 1, RATION_DATA, RATION_UNIT, NULL), REGION_OK);
	EQ(region_charge(&r, 1, RATION_DATA, 1, NULL), REGION_REFUSED);
	EQ(region_used(&r, 1), 10 * RATION_UNIT);
}

/* In a job that is not awake no owner gets a turn to change its account, and none is counted. */
static void turns(const char *path)
{
	struct region r;
	static const struct region_limits none;
	EQ(region_open(&r, path, &none), REGION_OK);
	EQ(region_claim(&r, "turns"), REGION_OK);
	uint64_t *sleep = &r.m->header.sleep, *counted = &r.m->slots[r.slot].turns, before = *counted;
	for (unsigned state = RATION_FALLING; state <= RATION_RESTORING; state++) {
		store_release(sleep, state);
		EQ(region_take(&r, 1, r.claim, false), REGION_BUSY);
		EQ(*counted, before);
	}
	store_release(sleep, RATION_AWAKE);
	EQ(region_take(&r, 1, r.claim, false), REGION_OK);
	EQ(*counted, before + 1);
	region_yield(&r, 1, r.claim);
	EQ(*counted, before);
}

int main(void)
{
	struct region one, two;
	static const struct region_limits none;
	const char *path = getenv("RATION_REGION");
	EQ(region_open(&one, path, &none), REGION_OK);
	EQ(region_open(&two, path, &none), REGION_OK);
	EQ(region_claim(&one, "one"), REGION_OK);
	EQ(region_claim(&two, "two"), REGION_OK);
	CHECK(one.slot != two.slot);
	uint64_t *done = &account(&one, 0, one.slot)->done;

	EQ(region_charge(&one, 0, RATION_DATA, MIB, NULL), REGION_OK);
	uint64_t old = region_ledger_word(&one, 0);
	EQ(region_charge(&one, 0, RATION_DATA, MIB, NULL), REGION_OK);
	uint64_t last = region_ledger_word(&one, 0);
	EQ(ledger_slot(last), one.slot);
	EQ(region_charge(&two, 0, RATION_DATA, MIB, NULL), REGION_OK);
	EQ(*done, short_seq(last));

	/* A process that stopped before it noted the first change does not overwrite the later note. */
	CHECK(short_seq(old) != short_seq(last));
	EQ(region_note(&two, 0, old), true);
	EQ(*done, short_seq(last));
	fills(path);
	turns(path);
	return FINISH();
}
