/* The view: an account's usage, kept twice so that no reader waits.
 * docs/protocols.md, section 2. */
#include <sched.h>

#include "internal.h"

/* try_turn reads the books before it takes the turn, so that the loads need not
 * wait for the locked instruction. They hold if the turn did not move meanwhile:
 * that is what the swap finds out. */
static bool seqlock_try(struct ration_account *a, unsigned kind, struct region_books *b)
{
	/* Acquire: the books are read after it; pairs with region_turn_end. */
	b->turn = load_acquire(&a->phase);
	b->used = load_acquire(&a->used);
	b->total = load_acquire(&a->a.total);
	b->bytes = load_acquire(&a->a.kind[kind]);
	return b->turn % RATION_PHASES == RATION_PHASE_IDLE && cas(&a->phase, b->turn, b->turn + RATION_PHASE_B);
}

__attribute__((cold, noinline)) static bool seqlock_take_slowly(struct ration_account *a, unsigned kind, struct region_books *b, bool wait)
{
	uint64_t seen = 0, since = 0;
	for (unsigned tries = 0;; tries++) {
		if (seqlock_try(a, kind, b))
			return true;
		if (tries < 64) {
			cpu_relax();
		} else if (tries < 128) {
			sched_yield();
		} else if (!wait) {
			return false;
		} else {
			/* No thread of ours keeps a turn this long: the word is damaged. */
			uint64_t now = now_ns(CLOCK_MONOTONIC);
			if (!since || seen != b->turn)
				seen = b->turn, since = now;
			else if (now - since > RATION_TURN_BOUND_NS)
				return false;
			/* The holder may need our CPU to go on. */
			nanosleep(&(struct timespec){0, 50000}, NULL);
		}
	}
}

/* region_take takes the account's turn, for which only threads of this process
 * ever compete, and reads its books. Without wait it gives up soon. It returns
 * false where the turn does not come. */
bool region_take(struct ration_account *a, unsigned kind, struct region_books *b, bool wait)
{
	return LIKELY(seqlock_try(a, kind, b)) || seqlock_take_slowly(a, kind, b, wait);
}

void region_turn_end(struct ration_account *a, uint64_t turn)
{
	store_release(&a->phase, turn + RATION_PHASES);
	FAILPOINT(TURN_LEFT);
}

/* region_put publishes new usage and ends the turn. */
void region_put(struct ration_account *a, const struct region_books *b, unsigned kind, int64_t delta)
{
	uint64_t total = b->total + (uint64_t)delta, bytes = b->bytes + (uint64_t)delta;

	/* Release, each: a reader that sees one of these must also see the phase
	 * before it, so that its second look at turn finds a change. Pairs with
	 * region_read, and with read in Go. */
	store_release(&a->b.total, total);
	store_release(&a->b.kind[kind], bytes);
	FAILPOINT(SEQLOCK_B);
	store_release(&a->phase, b->turn + RATION_PHASE_A);
	FAILPOINT(SEQLOCK_TURNED);
	store_release(&a->a.total, total);
	store_release(&a->a.kind[kind], bytes);
	FAILPOINT(SEQLOCK_A);
	if (total > load_relaxed(&a->peak))
		store_release(&a->peak, total);
	region_turn_end(a, b->turn);
}

static void seqlock_zero(struct ration_usage *f)
{
	store_release(&f->total, 0);
	for (unsigned k = 0; k < RATION_KINDS; k++)
		store_release(&f->kind[k], 0);
}

/* region_clear publishes zeroes and ends the turn. */
void region_clear(struct ration_account *a, uint64_t turn)
{
	seqlock_zero(&a->b);
	FAILPOINT(SEQLOCK_B);
	store_release(&a->phase, turn + RATION_PHASE_A);
	FAILPOINT(SEQLOCK_TURNED);
	seqlock_zero(&a->a);
	FAILPOINT(SEQLOCK_A);
	region_turn_end(a, turn);
}

/* region_enter makes an account ours, before our first change there: zeroes and an
 * even count, whatever the last owner left. Until gen says so, readers pass it
 * over. It returns false where the claim is not ours any more: who was reaped must
 * not touch what is another process's by now. */
bool region_enter(struct region *r, struct ration_account *a, uint64_t claim)
{
	uint64_t gen = status_gen(claim_status(claim));
	while (__atomic_exchange_n(&r->entering, 1, __ATOMIC_ACQUIRE))
		sched_yield();
	bool ours = region_holds(r, claim);
	/* Here and not at the claim: it looks at every process there is. */
	if (ours && !r->former)
		r->former = region_reap_former_self(r) == REGION_OK;
	if (ours && load_acquire(&a->gen) != gen) {
		region_refresh(&a->done, used_seq(load_acquire(&a->used)));
		seqlock_zero(&a->a);
		seqlock_zero(&a->b);
		store_release(&a->peak, 0);
		store_release(&a->driver, 0);
		uint64_t t = load_acquire(&a->phase);
		store_release(&a->phase, t - t % RATION_PHASES + RATION_PHASES);
		/* Release: pairs with the load of gen in region_read, and with read in Go. */
		store_release(&a->gen, gen);
	}
	__atomic_store_n(&r->entering, 0, __ATOMIC_RELEASE);
	return ours;
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
		/* From phase 0 to 1 the copy that was read stays as it is. */
		if ((load_acquire(&a->phase) | RATION_PHASE_B) == (t | RATION_PHASE_B) || ++retries == RATION_READ_TRIES)
			return retries;
	}
}
