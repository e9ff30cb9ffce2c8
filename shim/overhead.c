#include "overhead.h"

#include "charge.h"
#include "nvml.h"
#include "hooks/graph.h"
#include "hooks.h"
#include "attach.h"
#include "log.h"
#include "hooks/pool.h"

/* Between two readings of the driver's figure, in nanoseconds: soon after something was
 * made or loaded, when the driver takes most by itself, then ever later. */
#define SOON UINT64_C(50000000)
#define PERIOD UINT64_C(1000000000)

/* Over readings and what is booked by them, so that no two threads charge the same
 * bytes. No call into the dynamic linker is made under it. */
static mutex lock;

uint64_t overhead_next;
uint32_t overhead_expected;
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
		uint64_t before = charge_held_total(d->index);
		if (!nvml_own_bytes(d, &figure))
			return false;
		uint64_t after = charge_held_total(d->index), counted = before > after ? before : after;
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
	uint64_t least = charge_absent(d->index), figure;
	for (unsigned tries = 0; tries < 3 && least; tries++) {
		uint64_t counted = charge_held_total(d->index);
		if (!nvml_own_bytes(d, &figure))
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
		uint64_t before = charge_held_total(d->index), absent = charge_absent(d->index);
		if (!nvml_own_bytes(d, &figure))
			return false;
		uint64_t after = charge_held_total(d->index), counted = before < after ? before : after;
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
	uint64_t less, more, guess = d->guessed, held = charge_held(d->index, RATION_CONTEXT);
	if (!shortfall(d, &less))
		return;
	if (less && !d->lacking) {
		d->lacking = less;
		d->lacking_since = overhead_now();
		return;
	}
	less = less < d->lacking ? less : d->lacking;
	if (less && overhead_now() - d->lacking_since < PERIOD) {
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
		charge_return(d->index, RATION_CONTEXT, less);
		bool only = __atomic_load_n(&d->living, __ATOMIC_RELAXED) == 1 && !pools_used() && !charge_absent(d->index);
		if (only && less >= guess / 8)
			region_remember_cost(attach_region(), d->index, d->id, guess - less);
	} else if (excess(d, 0, &more) && more >= guess) {
		region_forget_cost(attach_region(), d->index, d->id, guess);
	}
}

/* overhead_sync makes overhead what the driver says beyond what we counted otherwise.
 * Under the lock. */
static bool overhead_sync(struct device *d)
{
	uint64_t more, figure, overhead = charge_held(d->index, RATION_OVERHEAD);
	if (!excess(d, 0, &more))
		return false;
	if (more) {
		charge_add_forced(d->index, RATION_OVERHEAD, more);
	} else if (overhead) {
		/* What other threads are charging hides some of it: the most counts. And so
		 * could what the driver need not have. */
		uint64_t left = 0;
		for (unsigned tries = 0; tries < 3 && left < overhead; tries++) {
			uint64_t counted = charge_held_total(d->index) - overhead - charge_absent(d->index);
			if (nvml_own_bytes(d, &figure) && figure > counted && figure - counted > left)
				left = figure - counted;
		}
		if (left < overhead)
			charge_return(d->index, RATION_OVERHEAD, overhead - left);
	}
	return true;
}

struct overhead_reading overhead_begin(struct device *d)
{
	struct overhead_reading g = {.device = d};
	if (!nvml_start())
		return g;
	mutex_lock(&lock);
	if (!overhead_sync(d) && !d->seen) {
		g.known = nvml_device_used(d, &g.all);
		g.unlisted = nvml_pid_unlisted(d);
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

struct overhead_reading overhead_begin_load(struct device *d)
{
	struct overhead_reading g = {.device = d};
	uint64_t older;
	/* What the driver need not have must be known before. And the program may be
	 * capturing, when CUDA is not to be asked. */
	g.blind = !nvml_tried() && !charge_absent(d->index) && !graph_captures() && room(&g.room);
	if (g.blind)
		return g;
	if (!nvml_started() || charge_absent(d->index))
		return overhead_begin(d);
	mutex_lock(&lock);
	if (excess(d, 0, &older) && older)
		charge_add_forced(d->index, RATION_OVERHEAD, older);
	mutex_unlock(&lock);
	return g;
}

/* charge_own charges what the driver's figure for us has grown by. False where it does
 * not show us to ourselves. Under the lock. */
static bool charge_own(const struct overhead_reading *g, unsigned kind, uint64_t *bytes, int *result)
{
	struct device *d = g->device;
	if (!excess(d, g->missing, bytes))
		return false;
	/* Whatever else is charged on this device could hide part of it. */
	if (g->first && !charge_held_total(d->index))
		region_remember_cost(attach_region(), d->index, d->id, *bytes);
	if (*bytes)
		*result = charge_add(d->index, kind, *bytes, true); /* no waiting for others' locks under ours */
	return true;
}

int overhead_charge(const struct overhead_reading *g, unsigned kind, uint64_t *bytes)
{
	struct device *d = g->device;
	uint64_t now;
	int result = CUDA_SUCCESS;
	*bytes = 0;
	if (g->blind && room(&now) && now == g->room)
		return CUDA_SUCCESS;
	bool ready = nvml_start();
	if (ready && g->unlisted)
		nvml_decide_pid(d);
	mutex_lock(&lock);
	/* Where the driver does not show us to ourselves, what everybody has grew by is the
	 * best there is for a context. Another process may have part in it, so it is counted,
	 * but no reason to refuse. For a module it would as often be another's as ours. */
	if (!(ready && charge_own(g, kind, bytes, &result)) && kind == RATION_CONTEXT && ready && g->known && nvml_device_used(d, &now) &&
	    now > g->all) {
		*bytes = now - g->all;
		charge_add_forced(d->index, kind, *bytes);
	}
	mutex_unlock(&lock);
	return result;
}

void overhead_unconfirmed(struct device *d, uint64_t bytes)
{
	mutex_lock(&lock);
	__atomic_store_n(&d->guessed, d->guessed + bytes, __ATOMIC_RELAXED);
	mutex_unlock(&lock);
}

uint64_t overhead_unconfirmed_ended(struct device *d, uint64_t bytes)
{
	mutex_lock(&lock);
	uint64_t open = d->guessed < bytes ? d->guessed : bytes, less = d->less < bytes ? d->less : bytes;
	__atomic_store_n(&d->guessed, d->guessed - open, __ATOMIC_RELAXED);
	d->less -= less;
	d->lacking = 0;
	mutex_unlock(&lock);
	return bytes - less;
}

void overhead_context_ended(struct device *d, unsigned kind, uint64_t bytes)
{
	uint64_t figure;
	bool up = nvml_started();
	mutex_lock(&lock);
	uint64_t held = charge_held(d->index, kind);
	uint64_t known = charge_held_total(d->index) - held - charge_held(d->index, RATION_OVERHEAD);
	if (up && !charge_absent(d->index) && nvml_own_bytes(d, &figure)) {
		/* What we know of goes first; what is left is this kind's, up to what it
		 * had, and then overhead. Other threads charge meanwhile: the least that was
		 * known counts, so that too little is given back and not too much. */
		uint64_t others = charge_held_total(d->index) - held - charge_held(d->index, RATION_OVERHEAD);
		others = known < others ? known : others;
		uint64_t left = figure > others ? figure - others : 0, rest = held > bytes ? held - bytes : 0;
		/* What comes after the rest of this kind is overhead, as far as there was any: as
		 * this kind it would stay counted when it has gone. */
		uint64_t after = left > rest ? left - rest : 0, overhead = charge_held(d->index, RATION_OVERHEAD);
		left -= after < overhead ? after : overhead;
		charge_adjust(d->index, kind, held, left < held ? left : held);
		overhead_sync(d);
	} else {
		charge_return(d->index, kind, bytes < held ? bytes : held);
	}
	mutex_unlock(&lock);
}

bool overhead_nothing_left(struct device *d)
{
	uint64_t figure;
	mutex_lock(&lock);
	bool known = nvml_started() && nvml_own_bytes(d, &figure);
	mutex_unlock(&lock);
	return known ? !figure : !__atomic_load_n(&d->living, __ATOMIC_ACQUIRE);
}

void overhead_refresh(struct device *d)
{
	if (!nvml_started())
		return;
	mutex_lock(&lock);
	overhead_sync(d);
	mutex_unlock(&lock);
}

void overhead_try_refresh(unsigned index)
{
	struct device *d = device_at(index);
	if (!d || !nvml_started() || !mutex_try(&lock))
		return;
	overhead_sync(d);
	mutex_unlock(&lock);
}

static void read_again(struct device *d)
{
	mutex_lock(&lock);
	if (d->guessed)
		confirm(d);
	overhead_sync(d);
	mutex_unlock(&lock);
}

void overhead_watch(struct device *d)
{
	__atomic_store_n(&d->watched, 1, __ATOMIC_RELEASE);
	overhead_read_soon();
}

void overhead_read_soon(void)
{
	uint64_t next = load_relaxed(&overhead_next), soon = overhead_now() + SOON;
	__atomic_store_n(&interval, SOON, __ATOMIC_RELAXED);
	__atomic_store_n(&overhead_expected, 1, __ATOMIC_RELAXED);
	if (!next || next > soon)
		cas(&overhead_next, next, soon);
}

void overhead_read_after_wait(void)
{
	uint64_t now = overhead_now(), next = load_relaxed(&overhead_next);
	if (!next || now - load_relaxed(&latest) < SOON)
		return;
	__atomic_store_n(&overhead_expected, 0, __ATOMIC_RELAXED);
	if (next > now)
		cas(&overhead_next, next, now);
	overhead_read_due();
}

void overhead_read(struct device *d)
{
	if (nvml_pid_known() && nvml_start())
		overhead_refresh(d);
}

void overhead_reset(void)
{
	__atomic_store_n(&overhead_next, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&overhead_expected, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&latest, 0, __ATOMIC_RELAXED);
	nvml_reset();
}

/* overhead_read_due is the reading that is due, by whoever comes first. Where we do not know
 * ourselves in the driver's list there is none, and NVML is not started. */
void overhead_read_due(void)
{
	uint64_t now = overhead_now(), next = load_relaxed(&overhead_next), step = load_relaxed(&interval);
	if (!next || now < next || !cas(&overhead_next, next, now + step))
		return;
	__atomic_store_n(&interval, 2 * step < PERIOD ? 2 * step : PERIOD, __ATOMIC_RELAXED);
	__atomic_store_n(&latest, now, __ATOMIC_RELAXED);
	if (attach_state() != ATTACH_ON || !nvml_pid_known() || !nvml_start())
		return;
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		struct device *d = device_at(i);
		if (d && __atomic_load_n(&d->watched, __ATOMIC_ACQUIRE))
			read_again(d);
	}
}
