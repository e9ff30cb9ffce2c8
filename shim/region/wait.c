/* Requests that wait for memory of their job, in turn: shim/PROTOCOLS.md, *Waiting for memory*. */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

uint64_t region_wait_alloc(const struct region *r) { return wait_alloc_of(load_acquire(&r->limits->wait_alloc)); }

static uint64_t wait_now(struct region *r) { return now_ns(CLOCK_MONOTONIC) - region_clock(r); }

/* wait_counts returns true if other requests wait for this one: its process has the slot, and it has
 * looked for room lately. A beat may be a little ahead, as it is read after the time. */
static bool wait_counts(const struct region *r, const struct ration_waiter *e, uint64_t place, uint64_t now)
{
	unsigned slot = (unsigned)(place_owner(place) - 1);
	int64_t age = (int64_t)(now - load_acquire(&e->beat));
	return slot < RATION_SLOTS && place_of(place, load_acquire(&r->m->status[slot])) && age < (int64_t)RATION_WAIT_STALE_NS &&
	       age > -(int64_t)RATION_WAIT_STALE_NS;
}

/* wait_take gives the request an entry. Without one (all are taken) it waits behind all that have
 * one. */
static void wait_take(struct region *r, struct region_waiter *w, uint64_t now)
{
	uint64_t claim = load_acquire(&r->claim);
	if (!w->since) {
		w->since = now_ns(CLOCK_REALTIME);
		w->ticket = fetch_add(&r->m->header.wait_next, 1);
	}
	w->place = 0;
	if (!claim)
		return;
	uint64_t place = make_place(claim_slot(claim), status_gen(claim_status(claim)), w->device, w->ticket);
	for (unsigned i = 0; i < RATION_WAITERS; i++) {
		struct ration_waiter *e = &r->m->header.waiters[i];
		uint64_t has = load_acquire(&e->place);
		if (has && wait_counts(r, e, has, now))
			continue;
		if (has && !cas(&e->place, has, 0))
			continue;
		/* First the beat: without one, others would remove the entry. If another request
		 * takes the entry now, this beat is right for that one, too. */
		store_release(&e->beat, now);
		if (!cas(&e->place, 0, place))
			continue;
		store_release(&e->units, units_for(w->bytes));
		store_release(&e->since, w->since);
		w->entry = i;
		w->place = place;
		FAILPOINT(WAIT_PLACED);
		return;
	}
}

uint32_t region_wait_arm(struct region *r, struct region_waiter *w)
{
	struct ration_waiter *e = &r->m->header.waiters[w->entry];
	uint32_t *word = &r->m->devices[w->device].wake;
	uint64_t now = wait_now(r);
	/* Another request removes an entry whose request was stopped for a while, or whose process
	 * has lost its slot. This one then takes another entry, with its old turn. */
	if (!w->place || load_acquire(&e->place) != w->place)
		wait_take(r, w, now);
	else
		store_release(&e->beat, now), store_release(&e->units, units_for(w->bytes));
	/* Sequentially consistent, before the caller looks for room: a process that returns memory
	 * changes the ledger's word first, and then reads this one. One of the two sees the other. */
	uint32_t armed = __atomic_or_fetch(word, RATION_WAKE_WAITING, __ATOMIC_SEQ_CST);
	fence_all();
	FAILPOINT(WAIT_ARMED);
	return armed;
}

unsigned region_wait_rank(struct region *r, struct region_waiter *w)
{
	uint64_t now = wait_now(r);
	uint32_t first = 0;
	unsigned rank = 0;
	for (unsigned i = 0; i < RATION_WAITERS; i++) {
		struct ration_waiter *e = &r->m->header.waiters[i];
		uint64_t place = load_acquire(&e->place);
		if (!place || place == w->place || place_device(place) != w->device)
			continue;
		/* Tickets wrap around: compare by difference. */
		if (w->place && (int32_t)(place_ticket(place) - (uint32_t)w->ticket) > 0)
			continue;
		if (!wait_counts(r, e, place, now)) {
			cas(&e->place, place, 0);
			continue;
		}
		if (!rank || (int32_t)(place_ticket(place) - first) < 0) {
			first = place_ticket(place);
			w->ahead = (unsigned)(place_owner(place) - 1);
		}
		rank++;
	}
	return rank;
}

bool region_wait_sleep(struct region *r, const struct region_waiter *w, uint32_t armed, uint64_t ns)
{
	struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
	return syscall(SYS_futex, &r->m->devices[w->device].wake, FUTEX_WAIT, armed, &t, NULL, 0) == 0 || errno != ETIMEDOUT;
}

void region_wait_look(struct region *r, const struct region_waiter *w, unsigned rank)
{
	unsigned freed;
	if (rank)
		region_reap_slot(r, w->ahead);
	else
		region_reap_device(r, w->device, &freed);
}

void region_wait_leave(struct region *r, struct region_waiter *w)
{
	if (w->place)
		cas(&r->m->header.waiters[w->entry].place, w->place, 0);
	w->place = 0;
	FAILPOINT(WAIT_LEFT);
	/* The next one may find room now. */
	if (w->since)
		region_wake(r, w->device);
}

uint64_t region_own_bytes(struct region *r, unsigned device)
{
	uint64_t claim = load_acquire(&r->claim);
	const struct ration_account *a = account(r, device, claim_slot(claim));
	if (!claim || load_acquire(&a->gen) != status_gen(claim_status(claim)))
		return 0;
	return used_units(load_acquire(&a->used)) * RATION_UNIT;
}
