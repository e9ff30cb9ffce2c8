/* Reaping returns the bytes of a dead process to the job. Several processes may do this at once,
 * and any of them may die in the middle. docs/protocols.md, *The ledger*. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

struct reap_verdict {
	uint64_t pend, used, word;
	bool whole, applied, booked;
};

/* reap_judge reads the account's words in the order that makes a crash decidable. It sets v->whole
 * to false if they changed meanwhile: then they must be read again. It returns false if the slot
 * has a new owner or was freed. */
static bool reap_judge(struct region *r, unsigned device, unsigned slot, uint64_t status, struct reap_verdict *v)
{
	struct ration_account *a = account(r, device, slot);
	/* Acquire, each, in this order: pairs with the releases in region_change,
	 * and with the swap in region_note, which comes before the word moves on. */
	v->pend = load_acquire(&a->pend);
	v->used = load_acquire(&a->used);
	v->word = region_ledger_word(r, device);
	uint64_t done = load_acquire(&a->done);
	v->whole = load_acquire(&a->pend) == v->pend;
	if (load_acquire(&r->m->status[slot]) != status)
		return false;
	uint64_t seq = short_seq(pend_seq(v->pend));
	v->booked = used_seq(v->used) == pend_seq(v->pend);
	v->applied = v->booked || (ledger_slot(v->word) == slot && short_seq(v->word) == seq) || done == seq;
	return true;
}

enum reap_outcome { REAP_SETTLED, REAP_LENT, REAP_TAKEN, REAP_DAMAGED };

/* reap_settle returns the units of a condemned slot's account, except for keep units. It returns
 * REAP_SETTLED if none is left, and REAP_LENT if some are. Each step is one swap from a value
 * that includes a sequence, so that a late step does nothing. It returns REAP_TAKEN if the slot has
 * a new owner or was freed, or if a process that breaks the protocol keeps writing into the
 * account. Then the account is as if this reaper had died, and the next one continues. */
static enum reap_outcome reap_settle(struct region *r, unsigned device, unsigned slot, uint64_t status, uint64_t keep)
{
	struct ration_account *a = account(r, device, slot);
	struct reap_verdict v;
	for (unsigned i = 0; i < RATION_REAP_TRIES && reap_judge(r, device, slot, status, &v); i++) {
		FAILPOINT(REAP_JUDGED);
		if (!v.whole)
			continue;
		uint64_t seq = pend_seq(v.pend), units = used_units(v.used);
		int64_t delta = pend_delta(v.pend);
		if (v.applied && !v.booked) {
			int64_t after = (int64_t)units + delta;
			if (after < 0 || after > (int64_t)RATION_MAX_UNITS)
				return REAP_DAMAGED;
			cas(&a->used, v.used, make_used(seq, (uint64_t)after));
			FAILPOINT(REAP_BOOKED);
			continue;
		}
		if (!v.applied && delta < 0) {
			/* An announced return must be finished and not replaced: another reaper may
			 * be applying it now. */
			if ((int64_t)ledger_units(v.word) + delta < 0)
				return REAP_DAMAGED;
			if (!region_note(r, device, v.word))
				break;
			FAILPOINT(REAP_NOTED);
			bool returned = region_apply(r, device, v.word, delta, slot, seq);
			FAILPOINT(REAP_APPLIED);
			if (returned)
				region_wake(r, device);
			continue;
		}
		if (!v.applied) {
			/* A charge. Its owner may be alive after all, and about to apply it. After
			 * the fence it cannot, so the next step may use its sequence. */
			if (!region_note(r, device, v.word))
				break;
			FAILPOINT(REAP_NOTED);
			if (!region_fence(r, device, v.word))
				continue;
			FAILPOINT(REAP_FENCED);
		}
		if (units <= keep)
			return units ? REAP_LENT : REAP_SETTLED;
		cas(&a->pend, v.pend, make_pend(next_seq(used_seq(v.used)), -(int64_t)(units - keep)));
		FAILPOINT(REAP_ANNOUNCED);
	}
	return REAP_TAKEN;
}

/* reap_condemn marks a slot as a dead process's, for all processes and also for its owner if that
 * is alive after all. Accounts are settled only after that. It returns the slot's new status, or 0
 * if its owner is not dead. It sets *cause. */
static uint64_t reap_condemn(struct region *r, unsigned slot, unsigned *cause)
{
	uint64_t status = load_acquire(&r->m->status[slot]);
	unsigned state = status_state(status);
	*cause = RATION_CAUSE_UNKNOWN;
	if (state == RATION_SLOT_CONDEMNED || state == RATION_SLOT_LENT)
		return status; /* another reaper has condemned it and has not finished, or has left it lent */
	if ((state != RATION_SLOT_ACTIVE && state != RATION_SLOT_JOINING) || !(*cause = region_dead(r, slot, status)))
		return 0;
	if (state == RATION_SLOT_JOINING)
		return status; /* the owner has announced no change yet */
	uint64_t condemned = make_status(status_gen(status), RATION_SLOT_CONDEMNED);
	/* Sequentially consistent: our loads of pend come after it. Pairs with region_owned, which
	 * comes after the owner's swap of pend. */
	if (!cas(&r->m->status[slot], status, condemned))
		return 0;
	FAILPOINT(REAP_CONDEMNED);
	return condemned;
}

bool region_left(const struct region *r, unsigned slot, uint64_t gen) { return load_acquire(&r->m->slots[slot].left) == gen; }

/* reap_describe fills in *d about a dead process. The slot and the usage in its accounts stay
 * readable until the slot is freed. */
static void reap_describe(struct region *r, unsigned slot, uint64_t status, unsigned cause, struct ration_death *d)
{
	const struct ration_slot *s = &r->m->slots[slot];
	memset(d, 0, sizeof *d);
	d->time = now_ns(CLOCK_REALTIME);
	d->slot = slot;
	d->cause = cause;
	if (sleep_state(load_acquire(&r->m->header.sleep)) == RATION_ASLEEP)
		d->cause |= RATION_CAUSE_ASLEEP;
	d->pid = load_acquire(&s->pid);
	d->host_pid = load_acquire(&s->host_pid);
	d->joined = load_acquire(&s->joined);
	d->reaper = (uint64_t)getpid();
	for (unsigned i = 0; i < RATION_NAME_LEN / 8; i++) {
		uint64_t word = load_acquire((const uint64_t *)(const void *)s->name + i);
		memcpy((char *)d->name + 8 * i, &word, 8);
	}
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		struct ration_usage f;
		region_read(account(r, i, slot), status_gen(status), &f);
		d->held[i] = f.total;
	}
}

/* reap_record writes a death into the ring of deaths. */
static void reap_record(struct region *r, const struct ration_death *d)
{
	union {
		struct ration_death entry;
		uint64_t words[sizeof(struct ration_death) / 8];
	} u = {.entry = *d};
	uint64_t ticket = fetch_add(&r->m->header.death_next, 1);
	FAILPOINT(DEATH_TICKET);
	region_ring_write((uint64_t *)&r->m->deaths[ticket % RATION_DEATHS], u.words, sizeof u.words / 8, ticket);
	FAILPOINT(DEATH_WRITTEN);
	if (r->on_death)
		r->on_death(d);
}

/* reap_slot settles a dead process's accounts, frees its slot, and then adds 1 to *slots. A slot
 * whose process has lent memory is not freed, and counts only the first time. A slot with impossible
 * content is put out of use for good: its bytes stay granted, and processes that use other slots get
 * no error. */
static void reap_slot(struct region *r, unsigned slot, unsigned *slots)
{
	unsigned state = RATION_SLOT_FREE, damaged = 0, cause;
	uint64_t status = reap_condemn(r, slot, &cause);
	struct ration_death death;
	if (!status)
		return;
	bool was_lent = status_state(status) == RATION_SLOT_LENT;
	bool expected = region_left(r, slot, status_gen(status)) ||
			told_counts(load_acquire(&r->m->slots[slot].told), status_gen(status), now_ns(CLOCK_REALTIME) / 1000000000u);
	for (unsigned d = 0; d < RATION_DEVICES; d++) {
		region_cap_settle(r, d, slot, status);
		/* Ask after the slot is condemned: before that its owner may still export. */
		enum reap_outcome o = reap_settle(r, d, slot, status, region_lent_units(r, d, slot, status));
		if (o == REAP_TAKEN)
			return;
		if (o == REAP_LENT && state == RATION_SLOT_FREE)
			state = RATION_SLOT_LENT;
		if (o == REAP_DAMAGED)
			state = RATION_SLOT_DAMAGED, damaged = d;
	}
	FAILPOINT(REAP_SETTLED);
	if (was_lent && state == RATION_SLOT_LENT)
		return;
	reap_describe(r, slot, status, cause, &death);
	if (!cas(&r->m->status[slot], status, make_status(status_gen(status), state)))
		return;
	FAILPOINT(REAP_FREED);
	if (state == RATION_SLOT_DAMAGED) {
		fetch_add(&r->m->header.counters.damaged, 1);
		if (r->on_damage)
			r->on_damage(slot, damaged);
		return;
	}
	++*slots;
	if (expected || was_lent)
		return; /* neither an orderly end nor one that was asked for is a death; and a death is recorded once */
	fetch_add(&r->m->header.counters.reaped, 1);
	if (cause != RATION_CAUSE_JOINING) /* then the slot still describes the owner before it */
		reap_record(r, &death);
}

/* region_reap_former_self returns the bytes that this process held before an exec. Its PID and
 * start time are still the same, so no other process can know. It is called at the first change and
 * not at the claim, because it looks at every slot in use. */
void region_reap_former_self(struct region *r)
{
	struct region_identity me;
	unsigned slots = 0;
	region_identify(&me);
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		const struct ration_slot *s = &r->m->slots[slot];
		if (load_acquire(&s->pid) == me.pid && load_acquire(&s->pidns) == me.pidns)
			reap_slot(r, slot, &slots);
	}
	__atomic_store_n(&r->former, 1, __ATOMIC_RELEASE);
}

int region_reap(struct region *r, unsigned *slots)
{
	*slots = 0;
	if (!region_whole(r))
		return REGION_DAMAGED;
	for (unsigned slot = 0; slot < region_high_water(r); slot++)
		reap_slot(r, slot, slots);
	return REGION_OK;
}

bool region_reap_slot(struct region *r, unsigned slot)
{
	unsigned slots = 0;
	int cancel;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	reap_slot(r, slot, &slots);
	pthread_setcancelstate(cancel, &cancel);
	return slots > 0;
}

void region_reap_lent(struct region *r)
{
	for (unsigned slot = 0; slot < region_high_water(r); slot++)
		if (UNLIKELY(status_state(load_acquire(&r->m->status[slot])) == RATION_SLOT_LENT))
			region_reap_slot(r, slot);
}

bool region_unlent(struct region *r, uint64_t lock)
{
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		if (!region_lent_by(r, slot, lock))
			continue;
		region_reap_slot(r, slot); /* its owner may have ended, and may not have been reaped */
		if (region_lent_by(r, slot, lock))
			return false;
	}
	return true;
}

/* region_reap_device reaps only slots that may hold bytes on the device, so that a refusal does not
 * ask the kernel about every process. It sets *slots as region_reap does. */
void region_reap_device(struct region *r, unsigned device, unsigned *slots)
{
	/* Disable cancellation: the calls below read files, which is a cancellation point, and our
	 * caller may hold a lock. */
	int cancel;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	*slots = 0;
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		struct ration_account *a = account(r, device, slot);
		uint64_t used = load_acquire(&a->used), pend = load_acquire(&a->pend);
		if (slot == r->slot || (used_units(used) == 0 && used_seq(used) == pend_seq(pend)))
			continue;
		reap_slot(r, slot, slots);
	}
	pthread_setcancelstate(cancel, &cancel);
}
