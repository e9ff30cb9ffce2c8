/* The usage of an account, kept in two copies so that no reader waits. docs/protocols.md, *The
 * sequence lock*. */
#include "internal.h"

/* seqlock_idle returns an idle phase to continue from, whatever the word contains: a dead owner may
 * have left it odd. */
static uint64_t seqlock_idle(const struct ration_account *a)
{
	uint64_t p = load_acquire(&a->phase), value = p % RATION_PHASES;
	return value == RATION_PHASE_IDLE ? p : p - value + RATION_PHASES;
}

static void seqlock_store(struct ration_usage *to, const struct ration_usage *f)
{
	/* Release, each store: a reader that sees one of them must also see the phase before it, so
	 * that its second load of phase finds a change. Pairs with region_read, and with read in
	 * Go. */
	store_release(&to->total, f->total);
	for (unsigned k = 0; k < RATION_KINDS; k++)
		store_release(&to->kind[k], f->kind[k]);
}

/* seqlock_publish writes the turn's usage to the account for readers. It writes all of it each
 * time, so that nothing lasts of the values that a process wrote which was wrongly taken for dead.
 * It returns how often the account has been changed. The caller holds the turn. */
static uint64_t seqlock_publish(const struct region_turn *t, struct ration_account *a)
{
	uint64_t idle = seqlock_idle(a);
	store_release(&a->phase, idle + RATION_PHASE_B);
	seqlock_store(&a->b, &t->usage);
	FAILPOINT(SEQLOCK_B);
	store_release(&a->phase, idle + RATION_PHASE_A);
	FAILPOINT(SEQLOCK_TURNED);
	seqlock_store(&a->a, &t->usage);
	FAILPOINT(SEQLOCK_A);
	if (t->peak != load_relaxed(&a->peak))
		store_release(&a->peak, t->peak);
	store_release(&a->phase, idle + RATION_PHASES);
	return idle / RATION_PHASES;
}

/* region_put adds delta bytes of a kind to this process's usage, and publishes it. It returns how
 * often the account has been changed. The caller holds the turn. */
uint64_t region_put(struct region_turn *t, struct ration_account *a, unsigned kind, int64_t delta)
{
	t->usage.total += (uint64_t)delta;
	t->usage.kind[kind] += (uint64_t)delta;
	if (t->usage.total > t->peak)
		t->peak = t->usage.total;
	return seqlock_publish(t, a);
}

/* region_clear publishes that this process holds nothing. The caller holds the turn. */
void region_clear(struct region_turn *t, struct ration_account *a)
{
	t->usage = (struct ration_usage){0};
	seqlock_publish(t, a);
}

/* seqlock_enter prepares an account for the claim before its first change there: zero usage and an
 * idle phase, whatever the last owner left. Readers ignore the account until gen is set. It runs
 * again if a process that was wrongly taken for dead has overwritten gen. The caller holds the
 * turn. */
static void seqlock_enter(struct region *r, struct region_turn *t, struct ration_account *a, uint64_t claim)
{
	region_refresh(r, claim, &a->done, used_seq(load_acquire(&a->used)));
	if (t->claim != claim) {
		t->claim = claim;
		t->peak = 0;
		t->usage = (struct ration_usage){0};
		store_release(&a->driver, 0);
		store_release(&a->work, 0);
		store_release(&a->slice, 0);
		store_release(&a->time_used, 0);
		store_release(&a->time_waited, 0);
		store_release(&a->uncharged, 0);
		store_release(&a->export_lock, 0);
		store_release(&a->exported, 0);
	}
	seqlock_publish(t, a);
	/* Release: pairs with the load of gen in region_read, and with read in Go. */
	store_release(&a->gen, status_gen(claim_status(claim)));
}

/* seqlock_wait takes the turn, waiting for another thread, and reports the wait (on_wait). */
__attribute__((cold, noinline)) static void seqlock_wait(struct region *r, struct region_turn *t)
{
	uint64_t since = r->on_wait ? now_ns(CLOCK_MONOTONIC) : 0;
	turn_wait(t);
	if (r->on_wait)
		r->on_wait(since);
}

/* seqlock_turn takes the turn, and counts it where other processes see it: while the job sleeps,
 * they change the account. */
static int seqlock_turn(struct region *r, struct region_turn *t, uint64_t claim, bool wait)
{
	for (;;) {
		if (UNLIKELY(!turn_try(t))) {
			if (!wait)
				return REGION_BUSY;
			seqlock_wait(r, t);
		}
		int err = region_begin_turn(r, claim);
		if (LIKELY(!err))
			return REGION_OK;
		turn_end(t);
		if (err != REGION_BUSY || !wait)
			return err;
		region_wait_awake(r);
	}
}

void region_yield(struct region *r, unsigned device, uint64_t claim)
{
	region_end_turn(r, claim);
	turn_end(&r->turns[device]);
}

/* region_take takes the account's turn, for which only threads of this process compete, and
 * prepares the account for the claim. While the job sleeps it waits. If wait is false and another
 * thread has the turn, or the job sleeps, it returns REGION_BUSY. It returns REGION_EVICTED if the
 * claim is not ours any more: the account may belong to another process by now. */
int region_take(struct region *r, unsigned device, uint64_t claim, bool wait)
{
	struct region_turn *t = &r->turns[device];
	struct ration_account *a = account(r, device, claim_slot(claim));
	if (UNLIKELY(!claim))
		return REGION_EVICTED;
	int err = seqlock_turn(r, t, claim, wait);
	if (UNLIKELY(err))
		return err;
	if (UNLIKELY(t->claim != claim || load_acquire(&a->gen) != status_gen(claim_status(claim)))) {
		if (!region_owned(r, claim)) {
			region_yield(r, device, claim);
			return REGION_EVICTED;
		}
		seqlock_enter(r, t, a, claim);
	}
	return REGION_OK;
}

/* region_read_counted is region_read, and adds to the region's counters. It returns true if f may
 * not be consistent (best effort). */
bool region_read_counted(struct region *r, const struct ration_account *a, uint64_t gen, struct ration_usage *f)
{
	struct ration_counters *c = &r->m->header.counters;
	unsigned retries = region_read(a, gen, f);
	fetch_add(&c->reads, 1);
	if (LIKELY(!retries))
		return false;
	fetch_add(&c->retries, retries);
	if (retries < RATION_READ_TRIES)
		return false;
	fetch_add(&c->best_effort, 1);
	return true;
}

/* region_read reads the usage of the owner with generation gen as one consistent set. It returns
 * the number of retries; if that is RATION_READ_TRIES, f may not be consistent (best effort). */
unsigned region_read(const struct ration_account *a, uint64_t gen, struct ration_usage *f)
{
	for (unsigned retries = 0;;) {
		/* Acquire, each, in this order: pairs with the stores in region_put and
		 * region_enter. */
		uint64_t t = load_acquire(&a->phase);
		if (load_acquire(&a->gen) != gen) {
			*f = (struct ration_usage){0}; /* the usage belongs to the last owner */
			return retries;
		}
		const struct ration_usage *from = t % RATION_PHASES == RATION_PHASE_A ? &a->b : &a->a;
		f->total = load_acquire(&from->total);
		for (unsigned k = 0; k < RATION_KINDS; k++)
			f->kind[k] = load_acquire(&from->kind[k]);
		FAILPOINT(READ_COPIED);
		/* A change from phase 0 to 1 does not change the copy that was read. */
		if ((load_acquire(&a->phase) | RATION_PHASE_B) == (t | RATION_PHASE_B) || ++retries == RATION_READ_TRIES)
			return retries;
	}
}
