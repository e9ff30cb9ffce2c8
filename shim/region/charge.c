/* Charging and returning bytes, and reading which process holds how many. */
#include "internal.h"

/* After this many changes an owner takes its lock again: any close of the file in this process
 * drops the lock silently. */
#define RELOCK 4096

/* charge_in_turn makes one change of delta units to the ledger and to the usage. The caller holds
 * the account's turn. */
static int charge_in_turn(struct region *r, unsigned device, unsigned kind, uint64_t claim, int64_t delta, const uint64_t *limit,
			  uint64_t *w)
{
	struct region_turn *t = &r->turns[device];
	struct ration_account *a = account(r, device, claim_slot(claim));
	/* claim_leave clears the claim, and then takes each turn: so nothing is charged after it. */
	if (UNLIKELY(load_acquire(&r->claim) != claim))
		return REGION_EVICTED;
	if (delta < 0 && (uint64_t)-delta * RATION_UNIT > t->usage.kind[kind])
		return REGION_NOT_HELD;
	FAILPOINT(TURN_TAKEN);
	int err = region_change(r, device, claim, a, delta, limit, w);
	if (LIKELY(!err) && UNLIKELY(region_put(t, a, kind, delta * RATION_UNIT) % RELOCK == 0))
		region_lock(r, claim_slot(claim));
	return err;
}

/* charge_change charges (sign 1) or returns (sign -1) bytes. It sets *w to the word that it changed
 * or, on REGION_REFUSED, to the word that left no space. */
static int charge_change(struct region *r, unsigned device, unsigned kind, uint64_t bytes, int sign, const uint64_t *limit, uint64_t *w)
{
	if (UNLIKELY(device >= RATION_DEVICES || kind >= RATION_KINDS || !region_whole(r)))
		return REGION_DAMAGED;
	/* Acquire: pairs with claim_join. */
	uint64_t claim = load_acquire(&r->claim), units = units_for(bytes);
	*w = region_ledger_word(r, device);
	if (!units)
		return REGION_OK;
	if (units > RATION_MAX_UNITS)
		return REGION_REFUSED;
	if (UNLIKELY(!__atomic_load_n(&r->former, __ATOMIC_RELAXED)))
		region_reap_former_self(r);
	int err = region_take(r, device, claim, true);
	if (LIKELY(!err)) {
		err = charge_in_turn(r, device, kind, claim, sign * (int64_t)units, limit, w);
		region_yield(r, device, claim);
		FAILPOINT(TURN_LEFT);
	}
	if (UNLIKELY(err == REGION_EVICTED) && claim)
		region_let_go(claim_slot(claim), status_gen(claim_status(claim)));
	return err;
}

/* charge_keep_peak records the most units that were ever granted at once, for people to see. The
 * peak must not contain the bytes of dead processes, so these are returned before a new peak is
 * written. That asks the kernel about each other process that holds bytes on the device. So while a
 * job grows, the peak is written in steps of RATION_PEAK_STEP, and its last part before bytes are
 * returned. */
__attribute__((cold, noinline)) static void charge_keep_peak(struct region *r, unsigned device, uint64_t units)
{
	uint64_t *peak = &r->m->devices[device].peak, before;
	unsigned freed;
	region_reap_device(r, device, &freed);
	uint64_t now = ledger_units(region_ledger_word(r, device));
	if (freed && now < units)
		units = now;
	while ((before = load_relaxed(peak)) < units && !cas(peak, before, units))
		;
}

void region_keep_peak(struct region *r, unsigned device)
{
	uint64_t units = ledger_units(region_ledger_word(r, device));
	if (UNLIKELY(units > load_relaxed(&r->m->devices[device].peak)))
		charge_keep_peak(r, device, units);
}

static int charge_raise(struct region *r, unsigned device, unsigned kind, uint64_t bytes, const uint64_t *limit, uint64_t *w)
{
	int err = charge_change(r, device, kind, bytes, 1, limit, w);
	if (err)
		return err;
	uint64_t units = ledger_units(*w) + units_for(bytes), peak = load_relaxed(&r->m->devices[device].peak);
	if (UNLIKELY(units > peak + peak / RATION_PEAK_STEP))
		charge_keep_peak(r, device, units);
	return REGION_OK;
}

static int charge_once(struct region *r, unsigned device, unsigned kind, uint64_t bytes, uint64_t *w)
{
	return charge_raise(r, device, kind, bytes, &r->limits->device[device].memory, w);
}

int region_ask(struct region *r, unsigned device, unsigned kind, uint64_t bytes, uint64_t *w)
{
	int err = charge_once(r, device, kind, bytes, w);
	/* No space: return the bytes of dead processes, and try again as long as that has freed a
	 * slot. */
	while (err == REGION_REFUSED) {
		unsigned freed;
		region_reap_device(r, device, &freed);
		err = charge_once(r, device, kind, bytes, w);
		if (err == REGION_REFUSED && !freed)
			return err;
	}
	return err;
}

int region_charge(struct region *r, unsigned device, unsigned kind, uint64_t bytes, struct region_refusal *why)
{
	uint64_t w;
	int err = region_ask(r, device, kind, bytes, &w);
	if (err == REGION_REFUSED)
		region_refuse(r, device, bytes, w, 0, why);
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
	if (LIKELY(bytes && device < RATION_DEVICES && region_whole(r)))
		region_keep_peak(r, device);
	int err = charge_change(r, device, kind, bytes, -1, NULL, &w);
	if (LIKELY(!err) && region_has_waiters(r, device))
		region_wake(r, device);
	return err;
}

uint64_t region_used(const struct region *r, unsigned device) { return ledger_units(region_ledger_word(r, device)) * RATION_UNIT; }

void region_own_usage(struct region *r, unsigned device, struct ration_usage *f)
{
	uint64_t claim = load_acquire(&r->claim);
	region_read_counted(r, account(r, device, claim_slot(claim)), status_gen(claim_status(claim)), f);
}

void region_set_driver_bytes(struct region *r, unsigned device, uint64_t bytes)
{
	uint64_t claim = load_acquire(&r->claim);
	if (region_take(r, device, claim, true))
		return;
	store_release(&account(r, device, claim_slot(claim))->driver, bytes);
	region_yield(r, device, claim);
}

unsigned region_holdings(struct region *r, unsigned device, struct region_holding *out, unsigned n)
{
	unsigned found = 0;
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		uint64_t status = load_acquire(&r->m->status[slot]);
		if (!status_holds(status))
			continue;
		struct region_holding h = {
			.slot = slot, .pid = load_acquire(&r->m->slots[slot].pid), .lent = status_state(status) == RATION_SLOT_LENT};
		if (h.lent) /* the usage is as it was when the owner died */
			h.usage.total = h.usage.kind[RATION_DATA] = used_units(load_acquire(&account(r, device, slot)->used)) * RATION_UNIT;
		else
			h.best_effort = region_read_counted(r, account(r, device, slot), status_gen(status), &h.usage);
		if (load_acquire(&r->m->status[slot]) != status)
			continue;
		if (found < n)
			out[found] = h;
		found++;
	}
	return found;
}
