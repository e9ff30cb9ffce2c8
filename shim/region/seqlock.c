/* The view: an account's usage, kept twice so that no reader waits.
 * docs/protocols.md, *The sequence lock*. */
#include "internal.h"

/* seqlock_idle is an idle phase to go on from, whatever the word holds: a dead owner leaves
 * it odd. */
static uint64_t seqlock_idle(const struct ration_account *a)
{
	uint64_t p = load_acquire(&a->phase), value = p % RATION_PHASES;
	return value == RATION_PHASE_IDLE ? p : p - value + RATION_PHASES;
}

static void seqlock_store(struct ration_usage *to, const struct ration_usage *f)
{
	/* Release, each: a reader that sees one of these must also see the phase
	 * before it, so that its second look at phase finds a change. Pairs with
	 * region_read, and with read in Go. */
	store_release(&to->total, f->total);
	for (unsigned k = 0; k < RATION_KINDS; k++)
		store_release(&to->kind[k], f->kind[k]);
}

/* seqlock_publish shows the turn's usage to readers. All of it, each time: so nothing lasts
 * of what a process wrote that was taken for dead, and went on when the slot was ours. */
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

/* region_put adds to what this process holds of a kind, and shows it to readers. It returns
 * how often the account has been changed. */
uint64_t region_put(struct region_turn *t, struct ration_account *a, unsigned kind, int64_t delta)
{
	t->usage.total += (uint64_t)delta;
	t->usage.kind[kind] += (uint64_t)delta;
	if (t->usage.total > t->peak)
		t->peak = t->usage.total;
	return seqlock_publish(t, a);
}

/* region_clear shows that this process holds nothing any more. */
void region_clear(struct region_turn *t, struct ration_account *a)
{
	t->usage = (struct ration_usage){0};
	seqlock_publish(t, a);
}

/* seqlock_enter makes an account the claim's, before its first change there: what it holds,
 * nothing, and an idle phase, whatever the last owner left. Until gen says so, readers pass
 * it over. Again where a process that was taken for dead wrote its own generation over ours. */
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
	}
	seqlock_publish(t, a);
	/* Release: pairs with the load of gen in region_read, and with read in Go. */
	store_release(&a->gen, status_gen(claim_status(claim)));
}

/* seqlock_wait takes the turn once another thread has ended its own. */
__attribute__((cold, noinline)) static void seqlock_wait(struct region *r, struct region_turn *t)
{
	uint64_t since = r->on_wait ? now_ns(CLOCK_MONOTONIC) : 0;
	turn_wait(t);
	if (r->on_wait)
		r->on_wait(since);
}

/* region_take takes the account's turn, for which only threads of this process ever compete,
 * and makes the account the claim's. Without wait it gives up, with REGION_BUSY, where
 * another thread has the turn; REGION_EVICTED where the claim is not ours any more: who was
 * reaped must not touch what is another process's by now. */
int region_take(struct region *r, unsigned device, uint64_t claim, bool wait)
{
	struct region_turn *t = &r->turns[device];
	struct ration_account *a = account(r, device, claim_slot(claim));
	if (UNLIKELY(!claim))
		return REGION_EVICTED;
	if (UNLIKELY(!turn_try(t))) {
		if (!wait)
			return REGION_BUSY;
		seqlock_wait(r, t);
	}
	if (UNLIKELY(t->claim != claim || load_acquire(&a->gen) != status_gen(claim_status(claim)))) {
		if (!region_owned(r, claim)) {
			turn_end(t);
			return REGION_EVICTED;
		}
		seqlock_enter(r, t, a, claim);
	}
	return REGION_OK;
}

/* region_read_counted is region_read, with the region's counters. It says whether f is best
 * effort. */
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

/* region_read takes the usage of the owner of generation gen in one piece and
 * returns the tries beyond the first; RATION_READ_TRIES of them mean that f is
 * best effort. */
unsigned region_read(const struct ration_account *a, uint64_t gen, struct ration_usage *f)
{
	for (unsigned retries = 0;;) {
		/* Acquire, each, in this order: pairs with the stores in region_put and
		 * region_enter. */
		uint64_t t = load_acquire(&a->phase);
		if (load_acquire(&a->gen) != gen) {
			*f = (struct ration_usage){0}; /* the last owner's */
			return retries;
		}
		const struct ration_usage *from = t % RATION_PHASES == RATION_PHASE_A ? &a->b : &a->a;
		f->total = load_acquire(&from->total);
		for (unsigned k = 0; k < RATION_KINDS; k++)
			f->kind[k] = load_acquire(&from->kind[k]);
		FAILPOINT(READ_COPIED);
		/* From phase 0 to 1 the copy that was read stays as it is. */
		if ((load_acquire(&a->phase) | RATION_PHASE_B) == (t | RATION_PHASE_B) || ++retries == RATION_READ_TRIES)
			return retries;
	}
}
