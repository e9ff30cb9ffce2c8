#include "overhead.h"

#include "attach.h"
#include "capture.h"
#include "charge.h"
#include "hooks.h"
#include "log.h"

/* Between two readings, in ns: at first, when the driver takes most by itself, and at
 * most. */
#define OVERHEAD_SOON UINT64_C(50000000)
#define OVERHEAD_PERIOD UINT64_C(1000000000)

/* How often a reading is repeated that another thread's charge may have distorted. */
#define OVERHEAD_TRIES 3

/* LOCK_OVERHEAD: over readings and the charges that follow from them, so that no two
 * threads charge the same bytes. */
static mutex overhead_lock;

uint64_t overhead_next_reading;
uint32_t overhead_growth_expected;
static uint64_t overhead_interval = OVERHEAD_SOON; /* from the next reading to the one after, in ns; atomic */
static uint64_t overhead_last_reading;             /* by overhead_now; atomic */

static uint64_t overhead_min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t overhead_above(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* overhead_own_bytes reads what the driver has for this process, and records it in the
 * region. Under the lock. */
static bool overhead_own_bytes(struct device *d, uint64_t *bytes)
{
	if (!nvml_own_bytes(&d->nvml, bytes))
		return false;
	region_set_driver_bytes(attach_region(), d->index, *bytes);
	return true;
}

/* The next three compare our count with the driver's. Other threads allocate and free
 * meanwhile. At every instant our count is at least the driver's, as a charge comes
 * before the memory and a return after it; but the two are not read at one instant. So
 * each is read before and after the driver, and the comparison repeated while it shows a
 * difference: the smallest one counts. */

/* overhead_excess reads what the driver has beyond what we counted, overhead included.
 * absent bytes are charged, and the driver does not have them. Under the lock. */
static bool overhead_excess(struct device *d, uint64_t absent, uint64_t *bytes)
{
	uint64_t driver;
	*bytes = UINT64_MAX;
	for (unsigned i = 0; i < OVERHEAD_TRIES && *bytes; i++) {
		uint64_t before = charge_held_total(d->index);
		if (!overhead_own_bytes(d, &driver))
			return false;
		uint64_t after = charge_held_total(d->index), counted = before > after ? before : after;
		*bytes = overhead_min(*bytes, overhead_above(driver + absent, counted));
	}
	return true;
}

/* overhead_shortfall reads what we counted and the driver should have, and has not.
 * Under the lock. */
static bool overhead_shortfall(struct device *d, uint64_t *bytes)
{
	uint64_t driver;
	*bytes = UINT64_MAX;
	for (unsigned i = 0; i < OVERHEAD_TRIES && *bytes; i++) {
		uint64_t before = charge_held_total(d->index), absent = charge_absent(d->index);
		if (!overhead_own_bytes(d, &driver))
			return false;
		uint64_t counted = overhead_min(before, charge_held_total(d->index));
		*bytes = overhead_min(*bytes, overhead_above(counted, driver + absent));
	}
	return true;
}

/* overhead_absent reads how much of what the driver need not have it does not have, and
 * by how much something new must exceed our count to show. Under the lock. */
static uint64_t overhead_absent(struct device *d)
{
	uint64_t least = charge_absent(d->index), driver;
	for (unsigned i = 0; i < OVERHEAD_TRIES && least; i++) {
		uint64_t counted = charge_held_total(d->index);
		if (!overhead_own_bytes(d, &driver))
			return 0;
		least = overhead_min(least, overhead_above(counted, driver));
	}
	return least;
}

/* overhead_confirm compares what contexts were charged by a remembered cost with the
 * driver's list. A cost that was too low shows as overhead. If it was less than half, it
 * is forgotten, so that the next process measures; anything nearer may be code that was
 * loaded since.
 *
 * A cost that was too high is returned when two readings have shown it, one period apart:
 * what another thread has charged and the driver has not given yet looks the same, and
 * returning that would let the job exceed its limit. If it is so much that only the
 * context can be the reason, the region remembers the lower cost. Under the lock. */
static void overhead_confirm(struct device *d)
{
	uint64_t less, more, charged = d->unconfirmed_bytes;
	if (!overhead_shortfall(d, &less))
		return;
	if (less && !d->shortfall_bytes) {
		d->shortfall_bytes = less;
		d->shortfall_since = overhead_now();
		return;
	}
	less = overhead_min(less, d->shortfall_bytes);
	if (less && overhead_now() - d->shortfall_since < OVERHEAD_PERIOD) {
		d->shortfall_bytes = less;
		return;
	}
	less = overhead_min(overhead_min(less, charged), charge_held(d->index, RATION_CONTEXT)) / RATION_UNIT * RATION_UNIT;
	d->unconfirmed_bytes = 0;
	d->shortfall_bytes = 0;
	d->corrected_bytes += less;
	if (less) {
		log_info("a context on device %d was charged %llu bytes too much by what its job remembered", d->ordinal, (unsigned long long)less);
		charge_return(d->index, RATION_CONTEXT, less);
		bool only_context = __atomic_load_n(&d->contexts_alive, __ATOMIC_RELAXED) == 1 && !charge_can_relieve(RELIEF_POOLS) &&
				    !charge_can_relieve(RELIEF_GRAPHS) && !charge_absent(d->index);
		if (only_context && less >= charged / 8)
			region_remember_cost(attach_region(), d->index, d->uuid, charged - less);
	} else if (overhead_excess(d, 0, &more) && more >= charged) {
		region_forget_cost(attach_region(), d->index, d->uuid, charged);
	}
}

/* overhead_sync makes the overhead charged what the driver has beyond all other charges.
 * False where the driver does not list this process. Under the lock. */
static bool overhead_sync(struct device *d)
{
	uint64_t more, driver, charged = charge_held(d->index, RATION_OVERHEAD);
	if (!overhead_excess(d, 0, &more))
		return false;
	if (more) {
		charge_add_forced(d->index, RATION_OVERHEAD, more);
	} else if (charged) {
		/* What other threads are charging hides some of it, and so may what the driver
		 * need not have: the largest remainder counts. */
		uint64_t left = 0;
		for (unsigned i = 0; i < OVERHEAD_TRIES && left < charged; i++) {
			uint64_t others = charge_held_total(d->index) - charged - charge_absent(d->index);
			if (overhead_own_bytes(d, &driver) && driver > others && driver - others > left)
				left = driver - others;
		}
		if (left < charged)
			charge_return(d->index, RATION_OVERHEAD, charged - left);
	}
	return true;
}

struct overhead_reading overhead_read_before(struct device *d)
{
	struct overhead_reading r = {.device = d};
	if (!nvml_start())
		return r;
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	if (!overhead_sync(d) && !d->nvml.listed) {
		r.device_known = nvml_device_bytes(&d->nvml, &r.device_bytes);
		r.pid_unlisted = nvml_pid_unlisted(&d->nvml);
	}
	r.absent_bytes = overhead_absent(d);
	mutex_unlock(&overhead_lock);
	return r;
}

static bool overhead_read_free(uint64_t *bytes)
{
	size_t left = 0, total;
	int result = REAL(cuMemGetInfo_v2, &left, &total);
	*bytes = left;
	return result == CUDA_SUCCESS;
}

struct overhead_reading overhead_read_before_load(struct device *d)
{
	struct overhead_reading r = {.device = d};
	uint64_t older;
	/* What the driver need not have must be known before. And cuMemGetInfo must not be
	 * called where the program may be capturing. */
	r.free_only = !nvml_tried() && !charge_absent(d->index) && !capture_seen() && overhead_read_free(&r.free_bytes);
	if (r.free_only)
		return r;
	if (!nvml_started() || charge_absent(d->index))
		return overhead_read_before(d);
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	if (overhead_excess(d, 0, &older) && older)
		charge_add_forced(d->index, RATION_OVERHEAD, older);
	mutex_unlock(&overhead_lock);
	return r;
}

/* overhead_charge_own charges what the driver has for this process beyond our count.
 * False where it does not list this process. Under the lock. */
static bool overhead_charge_own(const struct overhead_reading *before, unsigned kind, uint64_t *bytes, int *result)
{
	struct device *d = before->device;
	if (!overhead_excess(d, before->absent_bytes, bytes))
		return false;
	/* Anything else that is charged on this device could hide part of it. */
	if (before->first_context && !charge_held_total(d->index))
		region_remember_cost(attach_region(), d->index, d->uuid, *bytes);
	if (*bytes)
		*result = charge_add(d->index, kind, *bytes, true);
	return true;
}

int overhead_charge_growth(const struct overhead_reading *before, unsigned kind, uint64_t *bytes)
{
	struct device *d = before->device;
	uint64_t now;
	int result = CUDA_SUCCESS;
	*bytes = 0;
	if (before->free_only && overhead_read_free(&now) && now == before->free_bytes)
		return CUDA_SUCCESS;
	if (!nvml_start())
		return CUDA_SUCCESS;
	if (before->pid_unlisted)
		nvml_decide_pid(&d->nvml);
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	/* Where the driver does not list this process, what all processes together grew by is
	 * the best estimate for a context. Part of it may be another process's, so it is
	 * charged by force, and is no reason to refuse. For a module it would as often be
	 * another process's as ours. */
	if (!overhead_charge_own(before, kind, bytes, &result) && kind == RATION_CONTEXT && before->device_known &&
	    nvml_device_bytes(&d->nvml, &now) && now > before->device_bytes) {
		*bytes = now - before->device_bytes;
		charge_add_forced(d->index, kind, *bytes);
	}
	mutex_unlock(&overhead_lock);
	return result;
}

void overhead_add_unconfirmed(struct device *d, uint64_t bytes)
{
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	d->unconfirmed_bytes += bytes;
	mutex_unlock(&overhead_lock);
}

uint64_t overhead_drop_unconfirmed(struct device *d, uint64_t bytes)
{
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	uint64_t corrected = overhead_min(d->corrected_bytes, bytes);
	d->unconfirmed_bytes -= overhead_min(d->unconfirmed_bytes, bytes);
	d->corrected_bytes -= corrected;
	d->shortfall_bytes = 0;
	mutex_unlock(&overhead_lock);
	return bytes - corrected;
}

/* overhead_other_kinds returns what is charged and is neither contexts nor overhead. */
static uint64_t overhead_other_kinds(const struct device *d, uint64_t contexts)
{
	return charge_held_total(d->index) - contexts - charge_held(d->index, RATION_OVERHEAD);
}

void overhead_context_ended(struct device *d, uint64_t bytes)
{
	uint64_t driver;
	bool started = nvml_started();
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	uint64_t contexts = charge_held(d->index, RATION_CONTEXT), before = overhead_other_kinds(d, contexts);
	if (started && !charge_absent(d->index) && overhead_own_bytes(d, &driver)) {
		/* What the driver still has is what we know of, then the remaining contexts, up
		 * to what they were charged, then overhead, as far as there was any: as context
		 * it would stay charged when it has gone. Other threads charge meanwhile: the
		 * least that was known counts, so that too little is returned and not too much. */
		uint64_t left = overhead_above(driver, overhead_min(before, overhead_other_kinds(d, contexts)));
		uint64_t beyond = overhead_above(left, overhead_above(contexts, bytes));
		left -= overhead_min(beyond, charge_held(d->index, RATION_OVERHEAD));
		charge_adjust(d->index, RATION_CONTEXT, contexts, overhead_min(left, contexts));
		overhead_sync(d);
	} else {
		charge_return(d->index, RATION_CONTEXT, overhead_min(bytes, contexts));
	}
	mutex_unlock(&overhead_lock);
}

bool overhead_device_empty(struct device *d)
{
	uint64_t driver;
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	bool known = nvml_started() && overhead_own_bytes(d, &driver);
	mutex_unlock(&overhead_lock);
	return known ? !driver : !__atomic_load_n(&d->contexts_alive, __ATOMIC_ACQUIRE);
}

void overhead_refresh(struct device *d)
{
	if (!nvml_started())
		return;
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	overhead_sync(d);
	mutex_unlock(&overhead_lock);
}

void overhead_start_and_refresh(struct device *d)
{
	if (nvml_pid_known() && nvml_start())
		overhead_refresh(d);
}

/* overhead_relieve reads overhead again before a refusal: it may have become less. Where
 * another thread is reading, it is left at that. */
static void overhead_relieve(unsigned index, bool wait)
{
	struct device *d = charge_held(index, RATION_OVERHEAD) ? device_at(index) : NULL;
	(void)wait;
	if (!d || !nvml_started() || !mutex_try(&overhead_lock, LOCK_OVERHEAD))
		return;
	overhead_sync(d);
	mutex_unlock(&overhead_lock);
}

void overhead_watch(struct device *d)
{
	__atomic_store_n(&d->has_context, 1, __ATOMIC_RELEASE);
	overhead_read_soon();
}

void overhead_read_soon(void)
{
	uint64_t next = load_relaxed(&overhead_next_reading), soon = overhead_now() + OVERHEAD_SOON;
	__atomic_store_n(&overhead_interval, OVERHEAD_SOON, __ATOMIC_RELAXED);
	__atomic_store_n(&overhead_growth_expected, 1, __ATOMIC_RELAXED);
	if (!next || next > soon)
		cas(&overhead_next_reading, next, soon);
}

void overhead_read_after_wait(void)
{
	uint64_t now = overhead_now(), next = load_relaxed(&overhead_next_reading);
	if (!next || now - load_relaxed(&overhead_last_reading) < OVERHEAD_SOON)
		return;
	__atomic_store_n(&overhead_growth_expected, 0, __ATOMIC_RELAXED);
	if (next > now)
		cas(&overhead_next_reading, next, now);
	overhead_read_due();
}

void overhead_reset(void)
{
	__atomic_store_n(&overhead_next_reading, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&overhead_growth_expected, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&overhead_last_reading, 0, __ATOMIC_RELAXED);
	charge_on_pressure(RELIEF_OVERHEAD, overhead_relieve);
}

static void overhead_read_device(struct device *d)
{
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	if (d->unconfirmed_bytes)
		overhead_confirm(d);
	overhead_sync(d);
	mutex_unlock(&overhead_lock);
}

/* overhead_read_due takes the reading that is due, in the first thread that comes. A
 * process that does not know its PID in the driver's list takes none, and NVML is not
 * started. */
void overhead_read_due(void)
{
	uint64_t now = overhead_now(), next = load_relaxed(&overhead_next_reading), step = load_relaxed(&overhead_interval);
	if (!next || now < next || !cas(&overhead_next_reading, next, now + step))
		return;
	__atomic_store_n(&overhead_interval, overhead_min(2 * step, OVERHEAD_PERIOD), __ATOMIC_RELAXED);
	__atomic_store_n(&overhead_last_reading, now, __ATOMIC_RELAXED);
	if (!attach_on() || !nvml_pid_known() || !nvml_start())
		return;
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		struct device *d = device_at(i);
		if (d && __atomic_load_n(&d->has_context, __ATOMIC_ACQUIRE))
			overhead_read_device(d);
	}
}
