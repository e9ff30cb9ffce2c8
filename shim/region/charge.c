/* Charging and returning bytes, and reading who holds what. */
#include "internal.h"

/* How many turns pass before an owner makes sure that its lock is still there:
 * any close of the file in this process drops it silently. */
#define RELOCK 4096

/* change makes one change of the ledger and of the usage. w is the word it
 * changed, or on refusal the one that stood in the way. */
static int charge_change(struct region *r, unsigned device, unsigned kind, uint64_t bytes, int sign, const uint64_t *limit, uint64_t *w)
{
	if (UNLIKELY(device >= RATION_DEVICES || kind >= RATION_KINDS || !region_whole(r)))
		return REGION_DAMAGED;
	/* Acquire: pairs with claim_join. */
	uint64_t claim = load_acquire(&r->claim), units = units_for(bytes);
	struct ration_account *a = account(r, device, claim_slot(claim));
	struct region_books b;
	*w = region_ledger_word(r, device);
	if (!units)
		return REGION_OK;
	if (units > RATION_MAX_UNITS)
		return REGION_REFUSED;
	/* Before the turn, so that the load need not wait for it: a slot is only ever
	 * taken away from a process that has lost its lock. */
	if (UNLIKELY(!claim || load_acquire(&r->m->status[claim_slot(claim)]) != claim_status(claim)))
		return REGION_EVICTED;
	if (UNLIKELY(load_acquire(&a->gen) != status_gen(claim_status(claim))) && !region_enter(r, a, claim)) {
		region_let_go(claim_slot(claim), status_gen(claim_status(claim)));
		return REGION_EVICTED;
	}
	int64_t delta = sign * (int64_t)units;
	if (!region_take(a, kind, &b, true))
		return REGION_DAMAGED;
	int err = REGION_OK;
	/* Under the turn, which leaving takes as well: nothing is charged after it. */
	if (UNLIKELY(load_acquire(&r->claim) != claim))
		err = REGION_EVICTED;
	else if (delta < 0 && units * RATION_UNIT > b.bytes)
		err = REGION_NOT_HELD;
	if (err) {
		region_turn_end(a, b.turn);
		return err;
	}
	FAILPOINT(TURN_TAKEN);
	if (!region_change(r, device, claim_slot(claim), a, &b, delta, limit, w)) {
		region_turn_end(a, b.turn);
		return delta > 0 ? REGION_REFUSED : REGION_DAMAGED;
	}
	if (UNLIKELY(b.turn / RATION_PHASES % RELOCK == 0))
		region_lock(r, claim_slot(claim));
	region_put(a, &b, kind, delta * RATION_UNIT);
	return REGION_OK;
}

/* raise makes a charge, and keeps the most that was ever granted at once, for
 * people. */
static int charge_raise(struct region *r, unsigned device, unsigned kind, uint64_t bytes, const uint64_t *limit, uint64_t *w)
{
	int err = charge_change(r, device, kind, bytes, 1, limit, w);
	if (err)
		return err;
	uint64_t *peak = &r->m->devices[device].peak, units = ledger_units(*w) + units_for(bytes), before;
	while ((before = load_relaxed(peak)) < units && !cas(peak, before, units))
		;
	return REGION_OK;
}

static int charge_once(struct region *r, unsigned device, unsigned kind, uint64_t bytes, uint64_t *w)
{
	return charge_raise(r, device, kind, bytes, &r->limits->device[device].memory, w);
}

int region_charge(struct region *r, unsigned device, unsigned kind, uint64_t bytes, struct region_refusal *why)
{
	uint64_t w;
	int err = charge_once(r, device, kind, bytes, &w);
	/* No room: take back what the dead hold, and try again for as long as that
	 * brought something. */
	while (err == REGION_REFUSED) {
		unsigned freed;
		if ((err = region_reap_device(r, device, &freed)))
			return err;
		err = charge_once(r, device, kind, bytes, &w);
		if (err == REGION_REFUSED && !freed) {
			region_refuse(r, device, bytes, w, why);
			return err;
		}
	}
	return err;
}

int region_charge_forced(struct region *r, unsigned device, unsigned kind, uint64_t bytes)
{
	uint64_t w;
	return charge_raise(r, device, kind, bytes, NULL, &w);
}

int region_return(struct region *r, unsigned device, unsigned kind, uint64_t bytes)
{
	uint64_t w;
	return charge_change(r, device, kind, bytes, -1, NULL, &w);
}

uint64_t region_used(const struct region *r, unsigned device) { return ledger_units(region_ledger_word(r, device)) * RATION_UNIT; }

uint64_t region_limit(const struct region *r, unsigned device) { return load_acquire(&r->limits->device[device].memory); }

struct charge_setting {
	unsigned device;
	uint64_t limit;
};

static int charge_set_limit(struct ration_limits *page, const void *arg)
{
	const struct charge_setting *s = arg;
	store_release(&page->device[s->device].memory, s->limit);
	FAILPOINT(LIMIT_SET);
	fetch_add(&page->changes, 1);
	return REGION_OK;
}

int region_set_limit(struct region *r, unsigned device, uint64_t limit)
{
	return region_limits_with(r, charge_set_limit, &(struct charge_setting){device, limit});
}

void region_own_usage(struct region *r, unsigned device, struct ration_usage *f)
{
	uint64_t claim = load_acquire(&r->claim);
	region_read(account(r, device, claim_slot(claim)), status_gen(claim_status(claim)), f);
}

void region_set_driver_bytes(struct region *r, unsigned device, uint64_t bytes)
{
	uint64_t claim = load_acquire(&r->claim);
	struct ration_account *a = account(r, device, claim_slot(claim));
	if (region_enter(r, a, claim))
		store_release(&a->driver, bytes);
}

unsigned region_holdings(struct region *r, unsigned device, struct region_holding *out, unsigned n)
{
	unsigned found = 0;
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		uint64_t status = load_acquire(&r->m->status[slot]);
		if (status_state(status) != RATION_SLOT_ACTIVE)
			continue;
		struct region_holding h = {.slot = slot, .pid = load_acquire(&r->m->slots[slot].pid)};
		h.best_effort = region_read(account(r, device, slot), status_gen(status), &h.usage) == RATION_READ_TRIES;
		if (load_acquire(&r->m->status[slot]) != status)
			continue;
		if (found < n)
			out[found] = h;
		found++;
	}
	return found;
}
