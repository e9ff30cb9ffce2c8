#include "gauge.h"

#include "account.h"
#include "figure.h"
#include "graph.h"
#include "hooks.h"
#include "life.h"
#include "log.h"
#include "pool.h"

/* Between two readings of the driver's figure, in nanoseconds: soon after something was
 * made or loaded, when the driver takes most by itself, then ever later. */
#define SOON UINT64_C(50000000)
#define PERIOD UINT64_C(1000000000)

/* Over readings and what is booked by them, so that no two threads charge the same
 * bytes. No call into the dynamic linker is made under it. */
static mutex lock;

uint64_t gauge_next;
uint32_t gauge_stirred;
static uint64_t interval = SOON; /* to the next but one */
static uint64_t latest;          /* reading */

/* excess is what the driver says beyond what we counted, overhead included. Other
 * threads allocate and free while it is read: at every instant our count is at
 * least the driver's, but the two are not read in one. So one that is too much is
 * read again, and the least counts. Under the lock. */
static bool excess(struct device *d, uint64_t missing, uint64_t *bytes)
{
	uint64_t figure;
	*bytes = UINT64_MAX;
	for (unsigned tries = 0; tries < 3 && *bytes; tries++) {
		uint64_t before = account_held_all(d->index);
		if (!figure_mine(d, &figure))
			return false;
		uint64_t after = account_held_all(d->index), counted = before > after ? before : after;
		uint64_t all = figure + missing, more = all > counted ? all - counted : 0;
		*bytes = more < *bytes ? more : *bytes;
	}
	return true;
}

/* missing is what we counted and the driver does not have: managed memory that is
 * elsewhere, what a destroyed pool gave back. What comes must show beyond that. The
 * least of some readings, as what other threads are charging is missing as well.
 * Under the lock. */
static uint64_t missing(struct device *d)
{
	uint64_t least = account_absent(d->index), figure;
	for (unsigned tries = 0; tries < 3 && least; tries++) {
		uint64_t counted = account_held_all(d->index);
		if (!figure_mine(d, &figure))
			return 0;
		uint64_t less = counted > figure ? counted - figure : 0;
		least = less < least ? less : least;
	}
	return least;
}

/* shortfall is by how much the driver's figure lacks what we counted and it should
 * have. Under the lock. */
static bool shortfall(struct device *d, uint64_t *bytes)
{
	uint64_t figure;
	*bytes = UINT64_MAX;
	for (unsigned tries = 0; tries < 3 && *bytes; tries++) {
		uint64_t before = account_held_all(d->index), absent = account_absent(d->index);
		if (!figure_mine(d, &figure))
			return false;
		uint64_t after = account_held_all(d->index), counted = before < after ? before : after;
		uint64_t less = counted > figure + absent ? counted - figure - absent : 0;
		*bytes = less < *bytes ? less : *bytes;
	}
	return true;
}

/* confirm compares what a context was charged by a remembered cost with the driver's
 * figure. Too little shows as overhead, from now on; a cost of less than half is
 * forgotten, so that the next process measures: anything nearer may be code that was
 * loaded since.
 *
 * Too much is given back when two readings have shown it, a second apart: what another
 * thread has charged and the driver has not given yet looks the same, and giving that
 * back would let the job pass its limit. Where that is so much that nothing but the
 * context can be the reason, the region remembers the smaller cost. Under the lock. */
static void confirm(struct device *d)
{
	uint64_t less, more, guess = d->guessed, held = account_held(d->index, RATION_CONTEXT);
	if (!shortfall(d, &less))
		return;
	if (less && !d->lacking) {
		d->lacking = less;
		d->lacking_since = gauge_now();
		return;
	}
	less = less < d->lacking ? less : d->lacking;
	if (less && gauge_now() - d->lacking_since < PERIOD) {
		d->lacking = less;
		return;
	}
	less = less < guess ? less : guess;
	less = (less < held ? less : held) / RATION_UNIT * RATION_UNIT;
	__atomic_store_n(&d->guessed, 0, __ATOMIC_RELAXED);
	d->lacking = 0;
	d->less += less;
	if (less) {
		log_info("a context on device %d was charged %llu bytes too much by what its job remembered", d->ordinal, (unsigned long long)less);
		account_return(d->index, RATION_CONTEXT, less);
		bool only = __atomic_load_n(&d->living, __ATOMIC_RELAXED) == 1 && !pools_used() && !account_absent(d->index);
		if (only && less >= guess / 8)
			region_remember(life_region(), d->index, d->id, guess - less);
	} else if (excess(d, 0, &more) && more >= guess) {
		region_forget(life_region(), d->index, d->id, guess);
	}
}

/* settle makes overhead what the driver says beyond what we counted otherwise.
 * Under the lock. */
static bool settle(struct device *d)
{
	uint64_t more, figure, overhead = account_held(d->index, RATION_OVERHEAD);
	if (!excess(d, 0, &more))
		return false;
	if (more) {
		account_book(d->index, RATION_OVERHEAD, more);
	} else if (overhead) {
		/* What other threads are charging hides some of it: the most counts. And so
		 * could what the driver need not have. */
		uint64_t left = 0;
		for (unsigned tries = 0; tries < 3 && left < overhead; tries++) {
			uint64_t counted = account_held_all(d->index) - overhead - account_absent(d->index);
			if (figure_mine(d, &figure) && figure > counted && figure - counted > left)
				left = figure - counted;
		}
		if (left < overhead)
			account_return(d->index, RATION_OVERHEAD, overhead - left);
	}
	return true;
}

struct gauge gauge_begin(struct device *d)
{
	struct gauge g = {.device = d};
	if (!figure_ready())
		return g;
	mutex_lock(&lock);
	if (!settle(d) && !d->seen) {
		g.known = figure_all(d, &g.all);
		g.unlisted = figure_unlisted(d);
	}
	g.missing = missing(d);
	mutex_unlock(&lock);
	return g;
}

static bool room(uint64_t *bytes)
{
	size_t left = 0, total;
	int result = REAL(cuMemGetInfo_v2, &left, &total);
	*bytes = left;
	return result == CUDA_SUCCESS;
}

struct gauge gauge_begin_load(struct device *d)
{
	struct gauge g = {.device = d};
	uint64_t older;
	/* What the driver need not have must be known before. And the program may be
	 * capturing, when CUDA is not to be asked. */
	g.blind = !figure_tried() && !account_absent(d->index) && !graph_captures() && room(&g.room);
	if (g.blind)
		return g;
	if (!figure_up() || account_absent(d->index))
		return gauge_begin(d);
	mutex_lock(&lock);
	if (excess(d, 0, &older) && older)
		account_book(d->index, RATION_OVERHEAD, older);
	mutex_unlock(&lock);
	return g;
}

/* charge_own charges what the driver's figure for us has grown by. False where it does
 * not show us to ourselves. Under the lock. */
static bool charge_own(const struct gauge *g, unsigned kind, uint64_t *bytes, int *result)
{
	struct device *d = g->device;
	if (!excess(d, g->missing, bytes))
		return false;
	/* Whatever else is charged on this device could hide part of it. */
	if (g->first && !account_held_all(d->index))
		region_remember(life_region(), d->index, d->id, *bytes);
	if (*bytes)
		*result = account_charge(d->index, kind, *bytes, true); /* no waiting for others' locks under ours */
	return true;
}

int gauge_charge(const struct gauge *g, unsigned kind, uint64_t *bytes)
{
	struct device *d = g->device;
	uint64_t now;
	int result = CUDA_SUCCESS;
	*bytes = 0;
	if (g->blind && room(&now) && now == g->room)
		return CUDA_SUCCESS;
	bool ready = figure_ready();
	if (ready && g->unlisted)
		figure_meet(d);
	mutex_lock(&lock);
	/* Where the driver does not show us to ourselves, what everybody has grew by is the
	 * best there is for a context. Another process may have part in it, so it is counted,
	 * but no reason to refuse. For a module it would as often be another's as ours. */
	if (!(ready && charge_own(g, kind, bytes, &result)) && kind == RATION_CONTEXT && ready && g->known && figure_all(d, &now) &&
	    now > g->all) {
		*bytes = now - g->all;
		account_book(d->index, kind, *bytes);
	}
	mutex_unlock(&lock);
	return result;
}

void gauge_guess(struct device *d, uint64_t bytes)
{
	mutex_lock(&lock);
	__atomic_store_n(&d->guessed, d->guessed + bytes, __ATOMIC_RELAXED);
	mutex_unlock(&lock);
}

uint64_t gauge_guess_ends(struct device *d, uint64_t bytes)
{
	mutex_lock(&lock);
	uint64_t open = d->guessed < bytes ? d->guessed : bytes, less = d->less < bytes ? d->less : bytes;
	__atomic_store_n(&d->guessed, d->guessed - open, __ATOMIC_RELAXED);
	d->less -= less;
	d->lacking = 0;
	mutex_unlock(&lock);
	return bytes - less;
}

void gauge_shrink(struct device *d, unsigned kind, uint64_t bytes)
{
	uint64_t figure;
	bool up = figure_up();
	mutex_lock(&lock);
	uint64_t held = account_held(d->index, kind);
	uint64_t known = account_held_all(d->index) - held - account_held(d->index, RATION_OVERHEAD);
	if (up && !account_absent(d->index) && figure_mine(d, &figure)) {
		/* What we know of goes first; what is left is this kind's, up to what it
		 * had, and then overhead. Other threads charge meanwhile: the least that was
		 * known counts, so that too little is given back and not too much. */
		uint64_t others = account_held_all(d->index) - held - account_held(d->index, RATION_OVERHEAD);
		others = known < others ? known : others;
		uint64_t left = figure > others ? figure - others : 0, rest = held > bytes ? held - bytes : 0;
		/* What comes after the rest of this kind is overhead, as far as there was any: as
		 * this kind it would stay counted when it has gone. */
		uint64_t after = left > rest ? left - rest : 0, overhead = account_held(d->index, RATION_OVERHEAD);
		left -= after < overhead ? after : overhead;
		account_adjust(d->index, kind, held, left < held ? left : held);
		settle(d);
	} else {
		account_return(d->index, kind, bytes < held ? bytes : held);
	}
	mutex_unlock(&lock);
}

bool gauge_nothing(struct device *d)
{
	uint64_t figure;
	mutex_lock(&lock);
	bool known = figure_up() && figure_mine(d, &figure);
	mutex_unlock(&lock);
	return known ? !figure : !__atomic_load_n(&d->living, __ATOMIC_ACQUIRE);
}

void gauge_refresh(struct device *d)
{
	if (!figure_up())
		return;
	mutex_lock(&lock);
	settle(d);
	mutex_unlock(&lock);
}

void gauge_look(unsigned index)
{
	struct device *d = device_at(index);
	if (!d || !figure_up() || !mutex_try(&lock))
		return;
	settle(d);
	mutex_unlock(&lock);
}

static void read_again(struct device *d)
{
	mutex_lock(&lock);
	if (d->guessed)
		confirm(d);
	settle(d);
	mutex_unlock(&lock);
}

void gauge_watch(struct device *d)
{
	__atomic_store_n(&d->watched, 1, __ATOMIC_RELEASE);
	gauge_soon();
}

void gauge_soon(void)
{
	uint64_t next = load_relaxed(&gauge_next), soon = gauge_now() + SOON;
	__atomic_store_n(&interval, SOON, __ATOMIC_RELAXED);
	__atomic_store_n(&gauge_stirred, 1, __ATOMIC_RELAXED);
	if (!next || next > soon)
		cas(&gauge_next, next, soon);
}

void gauge_rest(void)
{
	uint64_t now = gauge_now(), next = load_relaxed(&gauge_next);
	if (!next || now - load_relaxed(&latest) < SOON)
		return;
	__atomic_store_n(&gauge_stirred, 0, __ATOMIC_RELAXED);
	if (next > now)
		cas(&gauge_next, next, now);
	gauge_pass();
}

void gauge_read(struct device *d)
{
	if (figure_named() && figure_ready())
		gauge_refresh(d);
}

void gauge_forget(void)
{
	__atomic_store_n(&gauge_next, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&gauge_stirred, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&latest, 0, __ATOMIC_RELAXED);
	figure_forget();
}

/* gauge_pass is the reading that is due, by whoever comes first. Where we do not know
 * ourselves in the driver's list there is none, and NVML is not started. */
void gauge_pass(void)
{
	uint64_t now = gauge_now(), next = load_relaxed(&gauge_next), step = load_relaxed(&interval);
	if (!next || now < next || !cas(&gauge_next, next, now + step))
		return;
	__atomic_store_n(&interval, 2 * step < PERIOD ? 2 * step : PERIOD, __ATOMIC_RELAXED);
	__atomic_store_n(&latest, now, __ATOMIC_RELAXED);
	if (life_state() != LIFE_ON || !figure_named() || !figure_ready())
		return;
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		struct device *d = device_at(i);
		if (d && __atomic_load_n(&d->watched, __ATOMIC_ACQUIRE))
			read_again(d);
	}
}
