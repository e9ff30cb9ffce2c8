#include "hooks/reserve.h"

#include "charge.h"
#include "cuda.h"
#include "hooks.h"
#include "region/abi.h"
#include "region/words.h"

/* How often the driver is asked while other threads change its answer. */
enum { RESERVE_TRIES = 8 };

static unsigned reserve_device(const struct reserve *r) { return __atomic_load_n(&r->device, __ATOMIC_RELAXED); }

static void reserve_lock(struct reserve *r) { mutex_lock(&r->lock, LOCK_RESERVE); }

/* These count bytes that arrive and leave, for threads that read the driver's count meanwhile. */
static void reserve_arrived(const struct reserve *r, uint64_t bytes)
{
	if (r->absent)
		charge_mark_absent(reserve_device(r), bytes, true);
	charge_arrived(reserve_device(r), bytes);
}

static void reserve_leaving(const struct reserve *r, uint64_t bytes)
{
	charge_leaving(reserve_device(r), bytes);
	if (r->absent)
		charge_mark_absent(reserve_device(r), bytes, false);
}

static void reserve_add_forced(const struct reserve *r, uint64_t bytes)
{
	if (r->absent)
		charge_mark_absent(reserve_device(r), bytes, true);
	charge_add_forced(reserve_device(r), RATION_DATA, bytes);
}

/* reserve_forget_ungranted lowers the ungranted bytes by those that are gone. If the rest does
 * not exceed the limit, it counts as granted. The caller holds LOCK_RESERVE. */
static void reserve_forget_ungranted(struct reserve *r, uint64_t gone)
{
	uint64_t left = r->ungranted > gone ? r->ungranted - gone : 0;
	__atomic_store_n(&r->ungranted, charge_would_refuse(reserve_device(r), 0) ? left : 0, __ATOMIC_RELAXED);
}

/* reserve_changed invalidates the answers that other threads have got from the driver. */
static void reserve_changed(struct reserve *r) { __atomic_fetch_add(&r->changes, 1, __ATOMIC_SEQ_CST); }

/* reserve_floor returns how many bytes must stay charged for requests under way, without the
 * one that ends here: such a request may rely on memory that was there, and for which it was
 * not charged itself. */
static uint64_t reserve_floor(const struct reserve *r, bool ends)
{
	if (__atomic_load_n(&r->requests, __ATOMIC_SEQ_CST) <= (uint32_t)ends)
		return 0;
	uint64_t promised = __atomic_load_n(&r->promised, __ATOMIC_SEQ_CST);
	return promised ? (promised - 1) / r->chunk * r->chunk + r->chunk : 0;
}

/* A settlement: the driver's answer, and the changes that follow from it. */
struct reserve_settlement {
	uint64_t mine;   /* bytes that this request announced, and now withdraws */
	bool ends;       /* the request ends, too, if nothing is found */
	bool raises;     /* this thread charges any growth that it finds */
	uint64_t before; /* the value of changes before the driver was asked */
	uint64_t answer; /* the driver's answer, in whole units */
	bool known;      /* the driver answered */
	bool current;    /* changes has not changed since */
	bool exact;      /* current, and the charge equals the answer, apart from requests under way */
	uint64_t back;   /* bytes to return */
	uint64_t more;   /* bytes that were found: to be charged, and announced until then */
};

/* reserve_lower lowers the charge to the answer, but not below the floor. It returns false if
 * something changed meanwhile. A new request that still saw the higher number is noticed here:
 * a request first counts itself, and then reads the number. The caller holds LOCK_RESERVE. */
static bool reserve_lower(struct reserve *r, const struct reserve_settlement *s, uint64_t *now)
{
	uint64_t prior = r->seen, floor = reserve_floor(r, s->ends), target = s->answer > floor ? s->answer : floor;
	if (target >= *now)
		return true;
	__atomic_store_n(&r->seen, target, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&r->changes, __ATOMIC_SEQ_CST) == s->before && reserve_floor(r, s->ends) <= target) {
		*now = target;
		return true;
	}
	__atomic_store_n(&r->seen, prior, __ATOMIC_SEQ_CST);
	return false;
}

/* reserve_apply makes the changes that follow from the answer. An answer that is not current
 * can only raise the charge, never lower it. It returns false if the driver must be asked
 * again. The caller holds LOCK_RESERVE. */
static bool reserve_apply(struct reserve *r, struct reserve_settlement *s)
{
	uint64_t before = r->seen, old = before + s->mine, others = r->announced - s->mine, now = old;
	bool grown = s->known && s->answer > old + others;
	s->more = grown && (s->raises || !__atomic_load_n(&r->requests, __ATOMIC_SEQ_CST)) ? s->answer - old - others : 0;
	if (s->current && s->answer < old && !reserve_lower(r, s, &now))
		return false;
	s->back = old - now;
	if (s->back) /* under the lock: a reading that sees the lower number also sees these bytes leaving */
		reserve_leaving(r, s->back);
	r->announced = others + s->more;
	s->exact = s->current && now <= s->answer && s->answer <= now + r->announced;
	r->owed |= s->known && now > s->answer;
	r->shrinks += now < before;
	if (now != r->seen)
		__atomic_store_n(&r->seen, now, __ATOMIC_SEQ_CST);
	if (unlikely(r->ungranted))
		reserve_forget_ungranted(r, now < before ? before - now : 0);
	if (s->ends || s->mine || s->more || s->back)
		reserve_changed(r);
	if (s->ends && !s->more)
		__atomic_fetch_sub(&r->requests, 1, __ATOMIC_SEQ_CST);
	return true;
}

static void reserve_give_back(const struct reserve *r, uint64_t bytes)
{
	if (bytes)
		charge_return(reserve_device(r), RATION_DATA, bytes);
}

/* reserve_ask asks the driver for the reserved bytes, in whole units. It returns false, with 0
 * bytes, if the driver does not tell. */
static bool reserve_ask(const struct reserve *r, uint64_t *bytes)
{
	*bytes = 0;
	bool known = r->reserved(r, bytes);
	*bytes = units_for(*bytes) * RATION_UNIT;
	return known;
}

/* reserve_again reports whether the driver must be asked again before its answer is used. The
 * caller holds LOCK_RESERVE. */
static bool reserve_again(struct reserve *r, const struct reserve_settlement *s)
{
	if (unlikely(r->owed) && __atomic_load_n(&r->requests, __ATOMIC_SEQ_CST) <= (uint32_t)s->ends) {
		r->owed = false;
		return true;
	}
	/* A request that announced nothing and finds nothing does not need a current answer. */
	bool nothing = s->ends && !s->mine && s->answer >= r->seen && s->answer <= r->seen + r->announced;
	return s->known && !s->current && !nothing;
}

static void reserve_settle(struct reserve *r, struct reserve_settlement *s)
{
	for (unsigned tries = 1;; tries++) {
		/* Sequentially consistent, here and under the lock: a current answer was given
		 * after the end of every request that counts in seen. */
		s->before = __atomic_load_n(&r->changes, __ATOMIC_SEQ_CST);
		s->known = reserve_ask(r, &s->answer);
		reserve_lock(r);
		s->current = s->known && __atomic_load_n(&r->changes, __ATOMIC_SEQ_CST) == s->before && tries < RESERVE_TRIES;
		if ((tries == RESERVE_TRIES || !reserve_again(r, s)) && reserve_apply(r, s))
			break;
		mutex_unlock(&r->lock);
	}
	mutex_unlock(&r->lock);
	reserve_give_back(r, s->back);
}

/* reserve_settle_request settles for a request, which ends if nothing is found. It returns the
 * bytes that were found. */
static uint64_t reserve_settle_request(struct reserve *r, uint64_t mine)
{
	struct reserve_settlement s = {.mine = mine, .ends = true, .raises = true};
	reserve_settle(r, &s);
	return s.more;
}

bool reserve_look(struct reserve *r)
{
	struct reserve_settlement s = {.mine = 0};
	do {
		reserve_settle(r, &s);
		s.mine = s.more;
		if (s.more)
			reserve_add_forced(r, s.more);
	} while (s.more);
	return !s.known || s.exact;
}

void reserve_cancel(struct reserve *r) { __atomic_fetch_sub(&r->requests, 1, __ATOMIC_SEQ_CST); }

/* reserve_lacks returns how many bytes must be charged. */
static uint64_t reserve_lacks(struct reserve *r, uint64_t own, uint64_t beyond, uint64_t least)
{
	reserve_lock(r);
	uint64_t want = __atomic_load_n(&r->promised, __ATOMIC_SEQ_CST) + beyond, has = r->seen + r->announced - r->ungranted;
	mutex_unlock(&r->lock);
	uint64_t lacks = want > has ? want - has : 0, growth = lacks < own ? lacks : own;
	growth = growth ? (growth - 1) / r->chunk * r->chunk + r->chunk : 0;
	return growth < least ? least : growth;
}

static void reserve_announce(struct reserve *r, uint64_t bytes)
{
	reserve_lock(r);
	r->announced += bytes;
	mutex_unlock(&r->lock);
}

int reserve_grow(struct reserve *r, uint64_t own, uint64_t beyond, uint64_t least, uint64_t *growth)
{
	*growth = 0;
	for (unsigned tries = 1;; tries++) {
		uint64_t more = reserve_lacks(r, own, beyond, least);
		if (!more)
			return CUDA_SUCCESS;
		/* The bytes that another request is granted a moment later may be enough for
		 * both. */
		bool others = __atomic_load_n(&r->requests, __ATOMIC_RELAXED) > 1;
		if (others && tries < RESERVE_TRIES && charge_would_refuse(reserve_device(r), more))
			continue;
		int refused = charge_add(reserve_device(r), RATION_DATA, more);
		if (refused) {
			reserve_not_grown(r, 0);
			return refused;
		}
		*growth = more;
		reserve_announce(r, more);
		return CUDA_SUCCESS;
	}
}

/* reserve_withdraw takes bytes out of announced that will not come. */
static void reserve_withdraw(struct reserve *r, uint64_t bytes)
{
	reserve_lock(r);
	r->announced -= bytes;
	reserve_changed(r);
	mutex_unlock(&r->lock);
}

uint64_t reserve_grown(struct reserve *r, uint64_t growth)
{
	if (unlikely(growth))
		reserve_arrived(r, growth);
	return reserve_settle_request(r, growth);
}

void reserve_not_grown(struct reserve *r, uint64_t growth)
{
	if (growth) {
		reserve_withdraw(r, growth);
		charge_return(reserve_device(r), RATION_DATA, growth);
	}
	reserve_force_found(r, reserve_settle_request(r, 0));
}

uint64_t reserve_find_again(struct reserve *r, uint64_t found)
{
	reserve_withdraw(r, found);
	return reserve_settle_request(r, 0);
}

int reserve_charge_found(struct reserve *r, uint64_t *found)
{
	/* Count the bytes before the job is asked: the driver has them already, and a relief
	 * that runs before a refusal must not take them for overhead. */
	if (r->absent)
		charge_mark_absent(reserve_device(r), *found, true);
	charge_claim(reserve_device(r), RATION_DATA, *found);
	int refused = charge_claimed(reserve_device(r), RATION_DATA, *found, false);
	if (!refused)
		*found = reserve_settle_request(r, *found);
	return refused;
}

uint64_t reserve_undoing(struct reserve *r, uint64_t found)
{
	reserve_leaving(r, found);
	reserve_withdraw(r, found);
	reserve_lock(r);
	uint64_t left = r->seen + r->announced;
	mutex_unlock(&r->lock);
	return left;
}

void reserve_undone(struct reserve *r, uint64_t found, uint64_t left)
{
	uint64_t forced = 0;
	for (uint64_t more = reserve_settle_request(r, 0); more; more = reserve_settle_request(r, more)) {
		reserve_add_forced(r, more);
		forced += more;
	}
	charge_unclaim(reserve_device(r), RATION_DATA, found);
	reserve_lock(r);
	uint64_t kept = r->seen > left ? r->seen - left : 0;
	__atomic_store_n(&r->ungranted, r->ungranted + (kept < forced ? kept : forced), __ATOMIC_RELAXED);
	mutex_unlock(&r->lock);
}

void reserve_force_found(struct reserve *r, uint64_t found)
{
	for (; found; found = reserve_settle_request(r, found))
		reserve_add_forced(r, found);
}

uint64_t reserve_granted(struct reserve *r)
{
	reserve_lock(r);
	uint64_t granted = r->seen - r->ungranted;
	mutex_unlock(&r->lock);
	return granted;
}

uint64_t reserve_shrinks(struct reserve *r)
{
	reserve_lock(r);
	uint64_t shrinks = r->shrinks;
	mutex_unlock(&r->lock);
	return shrinks;
}

void reserve_mark_absent(struct reserve *r)
{
	reserve_lock(r);
	if (!r->absent && r->seen)
		charge_mark_absent(reserve_device(r), r->seen, true);
	r->absent = true;
	mutex_unlock(&r->lock);
}

void reserve_drop(struct reserve *r)
{
	reserve_lock(r);
	uint64_t bytes = r->seen;
	__atomic_store_n(&r->seen, 0, __ATOMIC_SEQ_CST);
	r->owed = false;
	__atomic_store_n(&r->ungranted, 0, __ATOMIC_RELAXED);
	if (bytes)
		reserve_leaving(r, bytes);
	reserve_changed(r);
	mutex_unlock(&r->lock);
	reserve_give_back(r, bytes);
}
