/* The ring of refusals, for people to read. A writer that dies leaves an odd seq, and two writers
 * in one entry break its sum: readers skip both. No process waits. */
#include <string.h>
#include <unistd.h>

#include "internal.h"

/* refusal_waits returns true if a request of the process that owns the slot waits for memory. */
static bool refusal_waits(const struct region *r, unsigned slot, uint64_t status)
{
	for (unsigned i = 0; i < RATION_WAITERS; i++) {
		uint64_t place = load_acquire(&r->m->header.waiters[i].place);
		if (place_owner(place) == slot + 1 && place_of(place, status))
			return true;
	}
	return false;
}

/* refusal_holders fills in how many bytes this process holds on a device, and which processes hold
 * most. */
static void refusal_holders(struct region *r, unsigned device, struct region_refusal *why)
{
	uint64_t mine = load_acquire(&r->claim);
	uint64_t waiting = 0; /* bytes of others that wait, too */
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		uint64_t status = load_acquire(&r->m->status[slot]);
		if (!status_holds(status))
			continue;
		uint64_t bytes = used_units(load_acquire(&account(r, device, slot)->used)) * RATION_UNIT;
		struct region_holder h = {load_acquire(&r->m->slots[slot].pid), bytes, slot, make_claim(slot, status) == mine, REGION_RUNS};
		if (h.itself)
			why->own = bytes;
		else if (bytes && why->waited && refusal_waits(r, slot, status))
			waiting += bytes;
		for (unsigned i = 0; i < RATION_HOLDERS; i++)
			if (h.bytes > why->top[i].bytes) {
				struct region_holder smaller = why->top[i];
				why->top[i] = h;
				h = smaller;
			}
	}
	for (unsigned i = 0; i < RATION_HOLDERS; i++)
		if (why->top[i].bytes && !why->top[i].itself)
			why->top[i].end = region_ending(r, why->top[i].slot);
	why->mutual = waiting && waiting + why->own + why->asked > why->limit;
}

/* region_ring_write writes an entry of n words to a ring. The second word is the XOR of those after
 * it. */
void region_ring_write(uint64_t *to, uint64_t *words, unsigned n, uint64_t ticket)
{
	for (unsigned i = 2; i < n; i++)
		words[1] ^= words[i];
	store_release(&to[0], 2 * ticket + 1);
	for (unsigned i = 1; i < n; i++)
		store_release(&to[i], words[i]);
	/* Release: pairs with the first load of a process that reads the ring. */
	store_release(&to[0], 2 * ticket + 2);
}

void region_refuse(struct region *r, unsigned device, uint64_t bytes, uint64_t w, uint64_t waited_ns, struct region_refusal *why)
{
	struct region_refusal local;
	if (!why)
		why = &local;
	memset(why, 0, sizeof *why);
	why->asked = bytes;
	why->waited = waited_ns;
	why->held = ledger_units(w) * RATION_UNIT;
	why->limit = limit_ceiling(region_limit(r, device)) * RATION_UNIT;
	refusal_holders(r, device, why);

	fetch_add(&r->m->header.counters.refused, 1);
	fetch_add(&r->m->devices[device].refused, 1);
	uint64_t ticket = fetch_add(&r->m->header.refusal_next, 1);
	FAILPOINT(REFUSE_TICKET);

	union {
		struct ration_refusal entry;
		uint64_t words[sizeof(struct ration_refusal) / 8];
	} u;
	memset(&u, 0, sizeof u);
	u.entry.time = now_ns(CLOCK_REALTIME);
	u.entry.slot = r->slot;
	u.entry.device = device;
	u.entry.pid = (uint64_t)getpid();
	u.entry.asked = why->asked;
	u.entry.held = why->held;
	u.entry.limit = why->limit;
	u.entry.own = why->own;
	u.entry.waited = why->waited | (uint64_t)why->mutual << RATION_WAITED_MUTUAL_BIT;
	for (unsigned i = 0; i < RATION_HOLDERS; i++)
		u.entry.top[i] = (struct ration_holder){why->top[i].pid, why->top[i].bytes};
	region_ring_write((uint64_t *)&r->m->refusals[ticket % RATION_REFUSALS], u.words, sizeof u.words / 8, ticket);
	FAILPOINT(REFUSE_WRITTEN);
}
