#include "compute/priority.h"

#include <string.h>

#include "attach.h"
#include "clock.h"
#include "compute/claims.h"
#include "hooks.h"
#include "mark.h"
#include "region/atomics.h"
#include "region/words.h"

/* How long a claim counts, in ms, after the process last had work: that of low priority for about a
 * lease of work, and that of high priority for "a while", so that the slices of others do not change
 * between two requests. In turns, a process that has stopped to launch keeps the others waiting for
 * PRIORITY_TURN_LEASE_MS. A process whose thread waits for the device cannot renew its claim. */
#define PRIORITY_LOW_MS UINT64_C(200)
#define PRIORITY_HIGH_MS UINT64_C(10000)
#define PRIORITY_TURN_LEASE_MS UINT64_C(20)
#define PRIORITY_WAIT_MS (CLAIMS_MOST_MS / 2)

/* A turn, in ms; after how long other processes may use a turn that its own does not; how many
 * processes take turns, so that a round takes less than a second; and for how long there are no
 * turns after a process has waited for its turn for too long. */
#define PRIORITY_TURN_MS UINT64_C(50)
#define PRIORITY_UNUSED_MS UINT64_C(3)
#define PRIORITY_MOST_TURNS 16
#define PRIORITY_NO_TURNS_MS UINT64_C(60000)
/* The same if it was kept from so many of its own turns, less two for each turn that it had: another process
 * lets it launch now and then only. */
#define PRIORITY_MISSED 8

/* Slices, in microseconds. Of a switch between contexts SWITCH are lost, and the first LOST of a
 * slice. With SHORT and HIGH, a context of low priority gets 1 % beside one of high priority that
 * never pauses: (100 - 40) / (100 + 5000 + 2 * 180). SEVERAL: what contexts of low priority need to
 * do 82 % of the work together, where they do not take turns. */
#define PRIORITY_HIGH 5000
#define PRIORITY_SHORT 100
#define PRIORITY_SWITCH 180
#define PRIORITY_LOST 40
#define PRIORITY_SEVERAL 1000
#define PRIORITY_LEAST 100
#define PRIORITY_DETAIL 64

/* One for each device, by the region's index. Atomic. Times are those of claims. A thread that changes
 * locks, and the words that say so, has the mark. */
static struct priority_device {
	struct mark mark;
	uint32_t looks;    /* threads that compute slices now, or give the claim to be busy back */
	uint32_t drops;    /* how often the claim to be busy was given back */
	uint64_t held;     /* the kind of claim for which there may be a lock; CLAIMS_SEAT: none. Guarded by mark */
	uint64_t locked;   /* there may be a lock for the claim to be busy */
	uint64_t claim;    /* what this process claims, or tried to: a kind in the highest bits, and until when */
	uint64_t busy;     /* until when it claims to be busy, and has the lock; 0: it does not */
	uint64_t turn;     /* the last turn in which it may launch, counted since 1970 */
	uint64_t free;     /* when another process was last seen to be busy, or when this one stopped to be */
	uint64_t no_turns; /* until when there are none */
	uint64_t turns;    /* processes of low priority take turns */
	uint64_t wanted;   /* its own turn, in which it wants to launch and was kept from it at the beginning; 0: none */
	uint64_t missed;   /* how many such turns have passed, less two for each turn that it had; not less than 0 */
} __attribute__((aligned(64))) priority_devices[RATION_DEVICES];
enum { PRIORITY_TIME_BITS = 56 };

static void (*priority_changed)(struct device *d);

void priority_reset(void (*changed)(struct device *d))
{
	memset(priority_devices, 0, sizeof priority_devices);
	priority_changed = changed;
	claims_reset();
}

static enum claims_kind priority_kind(void)
{
	switch (region_priority(attach_region())) {
	case RATION_PRIORITY_HIGH: return CLAIMS_HIGH;
	case RATION_PRIORITY_LOW: return CLAIMS_LOW;
	default: return CLAIMS_SEAT; /* which stands for none here */
	}
}

/* priority_longer returns by how much the slices of a job of high priority exceed HIGH, because of its
 * share, in units of DETAIL. */
static unsigned priority_longer(const struct device *d)
{
	uint64_t slice = region_round(attach_region()) * region_share(attach_region(), d->index) / 100;
	return slice > PRIORITY_HIGH ? (unsigned)((slice - PRIORITY_HIGH + PRIORITY_DETAIL - 1) / PRIORITY_DETAIL) : 0;
}

static enum claims_kind priority_claimed_kind(const struct device *d)
{
	return (enum claims_kind)(load_acquire(&priority_devices[d->index].claim) >> PRIORITY_TIME_BITS);
}

static uint64_t priority_claimed(const struct device *d)
{
	return load_acquire(&priority_devices[d->index].claim) & LOW_BITS(PRIORITY_TIME_BITS);
}

/* priority_claim makes the claim of this process's priority count until a time, or drops it if until is 0.
 * If it cannot, it drops it as well: the last claim may count for too long. A claim of another kind ends. */
static void priority_claim(const struct device *d, enum claims_kind kind, uint64_t until)
{
	struct priority_device *p = &priority_devices[d->index];
	int cancel;
	if (!mark_take(&p->mark, &cancel))
		return;
	bool held = until && claims_hold_with(d->uuid, kind, kind == CLAIMS_HIGH ? priority_longer(d) : 0, until);
	if (p->held != CLAIMS_SEAT && (!held || p->held != kind))
		claims_hold(d->uuid, (enum claims_kind)p->held, 0);
	p->held = held ? kind : CLAIMS_SEAT;
	store_release(&p->claim, until ? (uint64_t)kind << PRIORITY_TIME_BITS | until : 0);
	mark_give(&p->mark, cancel);
}

/* priority_hold claims that this process is busy on a device, for no longer than its claim of low priority
 * counts. It returns false if it has not got the lock; then the last claim is left as it was. */
static bool priority_hold(const struct device *d, uint64_t until)
{
	struct priority_device *p = &priority_devices[d->index];
	int cancel;
	if (!mark_take(&p->mark, &cancel))
		return false;
	uint64_t most = priority_claimed(d);
	until = until < most ? until : most;
	bool held = priority_claimed_kind(d) == CLAIMS_LOW && claims_hold(d->uuid, CLAIMS_BUSY, until);
	if (held) {
		store_release(&p->locked, 1);
		__atomic_store_n(&p->busy, until, __ATOMIC_SEQ_CST);
	}
	mark_give(&p->mark, cancel);
	return held;
}

void priority_look_begins(const struct device *d) { __atomic_fetch_add(&priority_devices[d->index].looks, 1, __ATOMIC_SEQ_CST); }

uint32_t priority_drops(const struct device *d) { return __atomic_load_n(&priority_devices[d->index].drops, __ATOMIC_SEQ_CST); }

/* It removes the lock of a claim to be busy that was given back, unless another thread may be about to set a
 * slice that it computed before. */
void priority_look_ends(const struct device *d)
{
	struct priority_device *p = &priority_devices[d->index];
	int cancel;
	__atomic_fetch_sub(&p->looks, 1, __ATOMIC_SEQ_CST);
	if (likely(!load_acquire(&p->locked)) || __atomic_load_n(&p->busy, __ATOMIC_SEQ_CST) || !mark_take(&p->mark, &cancel))
		return;
	if (!__atomic_load_n(&p->busy, __ATOMIC_SEQ_CST) && !__atomic_load_n(&p->looks, __ATOMIC_SEQ_CST)) {
		claims_hold(d->uuid, CLAIMS_BUSY, 0);
		store_release(&p->locked, 0);
	}
	mark_give(&p->mark, cancel);
}

/* priority_drop gives the claim to be busy back. First its contexts lose their short slice, which
 * only a process with this claim may have: another thread may just be launching. */
static void priority_drop(struct device *d)
{
	struct priority_device *p = &priority_devices[d->index];
	priority_look_begins(d);
	if (__atomic_exchange_n(&p->busy, 0, __ATOMIC_SEQ_CST)) {
		__atomic_fetch_add(&p->drops, 1, __ATOMIC_SEQ_CST);
		priority_changed(d);
	}
	priority_look_ends(d);
}

static bool priority_is_busy(const struct device *d, uint64_t now) { return load_acquire(&priority_devices[d->index].busy) > now; }

bool priority_turns(const struct device *d) { return load_acquire(&priority_devices[d->index].turns) != 0; }

/* priority_renew makes the claim to be busy count for longer, if there is one. If it cannot, it gives
 * the claim back before this ends. */
static void priority_renew(struct device *d, uint64_t now, bool waits)
{
	uint64_t until = load_acquire(&priority_devices[d->index].busy);
	uint64_t lease = waits ? PRIORITY_WAIT_MS : priority_turns(d) ? PRIORITY_TURN_LEASE_MS : PRIORITY_LOW_MS;
	if (until > now && (until < now + lease / 2 || until > now + lease) && !priority_hold(d, now + lease))
		priority_drop(d);
}

/* priority_leave gives all claims back: that of low priority first, without which no thread claims to be busy. */
static void priority_leave(struct device *d)
{
	priority_claim(d, CLAIMS_SEAT, 0);
	priority_drop(d);
}

void priority_show(struct device *d, unsigned contexts, bool waits, bool again)
{
	enum claims_kind kind = priority_kind();
	uint64_t claim = load_acquire(&priority_devices[d->index].claim), until = priority_claimed(d);
	if (kind == CLAIMS_SEAT && !claim)
		return;
	uint64_t now = claims_now(), lease = kind == CLAIMS_HIGH ? PRIORITY_HIGH_MS : PRIORITY_LOW_MS;
	/* The job's priority was changed. */
	if (claim && claim >> PRIORITY_TIME_BITS != kind) {
		priority_leave(d);
		until = 0;
	}
	if (kind == CLAIMS_SEAT || (!contexts && until <= now + lease))
		return;
	if (!contexts) {
		priority_leave(d);
		return;
	}
	bool shorter = !waits && until > now + lease;
	if (shorter)
		priority_renew(d, now, waits);
	if (again || until < now + (waits ? PRIORITY_WAIT_MS : lease) / 2 || shorter)
		priority_claim(d, kind, now + (waits ? PRIORITY_WAIT_MS : lease));
	priority_renew(d, now, waits);
}

bool priority_unclaimed(const struct device *d) { return priority_kind() != CLAIMS_SEAT && priority_claimed(d) <= claims_now(); }

/* priority_take_turns finds out whether the processes of low priority take turns, if so many others
 * have work or want to. */
static bool priority_take_turns(const struct device *d, unsigned others, uint64_t now)
{
	struct priority_device *p = &priority_devices[d->index];
	bool turns = others && others < PRIORITY_MOST_TURNS && load_acquire(&p->no_turns) <= now;
	store_release(&p->turns, turns);
	return turns;
}

/* The part of a device that a job of low priority gets beside jobs of high priority that never
 * pause, in per cent: its share, or FLOOR without one, and half at most. Jobs that
 * take turns divide it. */
#define PRIORITY_FLOOR 1
#define PRIORITY_MOST 50

/* priority_short returns the slice with which a context gets so many per cent beside contexts of
 * high priority, whose slices are together longer than HIGH each by so much:
 * (slice - LOST) / (slice + high * HIGH + longer + switches). */
static uint64_t priority_short(unsigned percent, unsigned high, uint64_t longer)
{
	uint64_t others = (uint64_t)high * (PRIORITY_HIGH + PRIORITY_SWITCH) + longer + PRIORITY_SWITCH;
	percent = percent < PRIORITY_FLOOR ? PRIORITY_FLOOR : percent > PRIORITY_MOST ? PRIORITY_MOST : percent;
	uint64_t slice = (100 * PRIORITY_LOST + percent * others) / (100 - percent) + 1;
	return slice < PRIORITY_SHORT ? PRIORITY_SHORT : slice;
}

uint64_t priority_slice(const struct device *d, unsigned own, unsigned all, unsigned share, uint64_t slice)
{
	enum claims_kind kind = priority_kind();
	if (kind == CLAIMS_HIGH && !slice) {
		slice = PRIORITY_HIGH / (all ? all : 1);
		slice = slice < PRIORITY_LEAST ? PRIORITY_LEAST : slice;
	}
	uint64_t now = claims_now();
	struct claims_found found = {0};
	unsigned high = kind == CLAIMS_LOW ? claims_find_all(d->uuid, CLAIMS_HIGH, now, &found) : 0;
	if (!high || high == CLAIMS_MANY) {
		priority_take_turns(d, 0, now);
		return slice;
	}
	/* Without turns a process that has shown that it has work launches now. With turns it launches
	 * when it has the claim to be busy. */
	if (!priority_take_turns(d, claims_others(d->uuid, CLAIMS_LOW, now), now) && !priority_is_busy(d, now))
		priority_hold(d, UINT64_MAX);
	bool several = own > 1 || !priority_is_busy(d, now) || claims_others(d->uuid, CLAIMS_BUSY, now);
	uint64_t least = priority_short(share, high, found.details * PRIORITY_DETAIL);
	return several && least < PRIORITY_SEVERAL ? PRIORITY_SEVERAL : least;
}

/* priority_try claims that this process is busy, in a turn, unless another process is. */
static bool priority_try(struct device *d, uint64_t turn, uint64_t now)
{
	if (!priority_hold(d, now + PRIORITY_TURN_LEASE_MS))
		return false;
	if (claims_others(d->uuid, CLAIMS_BUSY, now)) {
		priority_drop(d);
		return false;
	}
	store_release(&priority_devices[d->index].turn, turn);
	priority_changed(d);
	return true;
}

/* priority_had counts a turn that this process has: as much as two that it missed, as it may for the lease of
 * a process that has just stopped. */
static void priority_had(struct priority_device *p)
{
	uint64_t missed = load_acquire(&p->missed);
	store_release(&p->wanted, 0);
	store_release(&p->missed, missed > 2 ? missed - 2 : 0);
}

/* priority_waits counts the turns of this process's own that it is kept from. It returns true if those are
 * too many. */
static bool priority_waits(struct priority_device *p, uint64_t turn, bool own, uint64_t now)
{
	uint64_t wanted = load_acquire(&p->wanted), missed = load_acquire(&p->missed) + (wanted && wanted != turn);
	if (wanted != turn)
		store_release(&p->wanted, own && now % PRIORITY_TURN_MS < PRIORITY_UNUSED_MS ? turn : 0);
	store_release(&p->missed, missed < PRIORITY_MISSED ? missed : 0);
	return missed >= PRIORITY_MISSED;
}

bool priority_turn(struct device *d, uint64_t flight_ns)
{
	struct priority_device *p = &priority_devices[d->index];
	uint64_t now = claims_now(), turn = now / PRIORITY_TURN_MS;
	struct claims_found found;
	unsigned others;
	if (priority_kind() != CLAIMS_LOW || !claims_others(d->uuid, CLAIMS_HIGH, now) ||
	    !priority_take_turns(d, others = claims_find_all(d->uuid, CLAIMS_LOW, now, &found), now)) {
		priority_had(p);
		priority_changed(d);
		return true;
	}
	if (priority_claimed(d) < now + PRIORITY_LOW_MS / 2)
		priority_claim(d, CLAIMS_LOW, now + PRIORITY_LOW_MS);
	bool own = turn % (others + 1) == found.before;
	if (priority_is_busy(d, now)) {
		if (own && load_acquire(&p->turn) != turn) {
			store_release(&p->turn, turn);
			priority_had(p);
		}
		if (own || load_acquire(&p->turn) == turn || flight_ns) {
			priority_renew(d, now, false);
			return load_acquire(&p->turn) == turn && flight_ns <= PRIORITY_AHEAD_NS;
		}
		store_release(&p->free, now);
		priority_drop(d);
		return false;
	}
	/* Its own turn, or one that no process uses. */
	if (claims_others(d->uuid, CLAIMS_BUSY, now)) {
		store_release(&p->free, now);
		if (priority_waits(p, turn, own, now))
			priority_stop_turns(d);
		return false;
	}
	if ((!own && now < load_acquire(&p->free) + PRIORITY_UNUSED_MS) || !priority_try(d, turn, now))
		return false;
	priority_had(p);
	return true;
}

void priority_stop_turns(struct device *d)
{
	store_release(&priority_devices[d->index].no_turns, claims_now() + PRIORITY_NO_TURNS_MS);
	priority_changed(d);
}
