#include "overhead.h"

#include "attach.h"
#include "capture.h"
#include "charge.h"
#include "hooks.h"
#include "import.h"
#include "log.h"
#include "region/words.h"

/* Time between two readings, in ns: at first, when the driver takes most memory by itself, and
 * at most. */
#define OVERHEAD_SOON UINT64_C(50000000)
#define OVERHEAD_PERIOD UINT64_C(1000000000)

/* How many readings in a row are left out while nothing has changed. */
#define OVERHEAD_UNCHANGED 60

/* How often a measurement is tried while other threads allocate, so that it is not exact. */
#define OVERHEAD_TRIES 8

/* LOCK_OVERHEAD: held during a reading and the charges that follow from it, so that no two
 * threads charge the same bytes. */
static mutex overhead_lock;

uint64_t overhead_next_reading;
uint32_t overhead_growth_expected;
static uint64_t overhead_interval = OVERHEAD_SOON;      /* time from the next reading to the one after, in ns; atomic */
static uint64_t overhead_last_reading;                  /* time of the last reading, by overhead_now; atomic */
static overhead_update overhead_updates[READING_COUNT]; /* atomic */

/* Rounds up to whole units: the bytes of a record must be the sum of the charges for it. */
static uint64_t overhead_whole(uint64_t bytes) { return units_for(bytes) * RATION_UNIT; }
static uint64_t overhead_min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t overhead_above(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

void overhead_on_reading(enum overhead_reader which, overhead_update update)
{
	__atomic_store_n(&overhead_updates[which], update, __ATOMIC_RELAXED);
}

/* One reading: the driver's bytes for this process, and the bounds of the charged bytes that it
 * can have had at that instant, since other threads allocate and free meanwhile. */
struct overhead_reading {
	uint64_t driver;              /* in bytes, like all fields */
	uint64_t least, most, absent; /* see struct charge_bounds */
};

/* overhead_update_all runs the callbacks, and returns false if one of them could not do its work. */
static bool overhead_update_all(const struct device *d)
{
	bool all = true;
	/* Seen on an H200: such a query invalidates a capture that is under way, unless this
	 * thread's capture mode is relaxed. */
	int mode = capture_relax();
	for (unsigned i = 0; i < READING_COUNT; i++) {
		overhead_update update = __atomic_load_n(&overhead_updates[i], __ATOMIC_RELAXED);
		all = (!update || update(d->index)) && all;
	}
	capture_restore(mode);
	return all;
}

/* overhead_read takes a reading, and records the driver's bytes in the region. It returns false
 * if the driver does not list this process. The caller holds LOCK_OVERHEAD. */
static bool overhead_read(struct device *d, struct overhead_reading *r)
{
	struct charge_bounds b;
	charge_bounds_begin(d->index, &b);
	if (!nvml_own_bytes(&d->nvml, &r->driver))
		return false;
	bool all = overhead_update_all(d);
	charge_bounds_end(d->index, &b);
	/* The driver does not list lent bytes with this process. */
	r->least = all ? overhead_above(b.least, d->lent_bytes) : 0;
	r->most = all ? b.most - d->lent_bytes : INT64_MAX; /* no upper bound: the driver may have memory that is about to be counted */
	r->absent = b.absent;
	region_set_driver_bytes(attach_region(), d->index, r->driver);
	return true;
}

/* overhead_correctable returns how many bytes of a kind were charged by a remembered cost, or
 * by a measurement that was not exact, and not corrected yet. The caller holds LOCK_OVERHEAD. */
static uint64_t overhead_correctable(const struct device *d, unsigned kind)
{
	return overhead_min(d->unconfirmed_bytes[kind], d->estimated_bytes[kind] - d->corrected_bytes[kind]);
}

/* overhead_correct_kind takes up to `less` such bytes of a kind off the charges. It returns the
 * bytes of `less` that remain. The caller holds LOCK_OVERHEAD. */
static uint64_t overhead_correct_kind(struct device *d, unsigned kind, uint64_t less)
{
	uint64_t back = overhead_min(less, overhead_correctable(d, kind)) / RATION_UNIT * RATION_UNIT;
	if (!back)
		return less;
	d->unconfirmed_bytes[kind] -= back;
	d->corrected_bytes[kind] += back;
	if (kind == RATION_CONTEXT)
		d->lowered_bytes = overhead_above(d->lowered_bytes, back);
	log_info("device %d: %llu bytes were charged too much for a %s, and are returned", d->ordinal, (unsigned long long)back,
		 kind == RATION_CONTEXT ? "context" : "module");
	charge_leaving(d->index, back);
	charge_return(d->index, kind, back);
	return less - back;
}

/* overhead_correct takes `less` bytes off the unconfirmed charges. If the context was charged
 * the cost that the region remembers, unconfirmed modules are corrected first: otherwise an
 * excess charge for a module would lower the cost that other processes rely on. If only the
 * context can be the reason, the region remembers the lower cost. The caller holds
 * LOCK_OVERHEAD. */
static void overhead_correct(struct device *d, uint64_t less, bool exact)
{
	uint64_t charged = overhead_correctable(d, RATION_CONTEXT);
	bool remembered = charged && __atomic_load_n(&d->contexts_alive, __ATOMIC_RELAXED) == 1 &&
			  charged == region_context_cost(attach_region(), d->index, d->uuid);
	if (remembered)
		less = overhead_correct_kind(d, RATION_MODULE, less);
	less = overhead_correct_kind(d, RATION_CONTEXT, less);
	overhead_correct_kind(d, RATION_MODULE, less);
	uint64_t back = charged - overhead_correctable(d, RATION_CONTEXT);
	if (remembered && exact && back && back >= charged / 8)
		region_remember_cost(attach_region(), d->index, d->uuid, charged - back);
}

/* The most bytes that can still be lent. */
struct overhead_lent {
	uint64_t unlisted;  /* for which there are descriptors: the bytes of the device that belong to no listed process */
	uint64_t uncharged; /* that importers have: the bytes that other processes are listed with and not charged for */
};

/* overhead_look_lent finds these bytes. The caller holds LOCK_OVERHEAD. */
static struct overhead_lent overhead_look_lent(struct device *d)
{
	struct overhead_lent l = {UINT64_MAX / 2, 0};
	uint64_t bytes, ipc = d->lent_ipc_bytes;
	if (d->lent_bytes > ipc && nvml_unlisted_bytes(&d->nvml, d->lent_bytes - ipc, &bytes))
		l.unlisted = bytes;
	/* After that: memory goes from descriptors to importers, and never back. */
	uint64_t listed = ipc + overhead_above(d->lent_bytes - ipc, overhead_whole(l.unlisted));
	if (listed && charge_imported(d->index))
		nvml_uncharged_bytes(&d->nvml, d->index, listed, &l.uncharged);
	return l;
}

/* overhead_settle_lent returns lent bytes that are not among those of l: no process has them any
 * more, or an importer has charged them as overhead. If this process is that importer, it must have
 * charged them since l was found. The caller holds LOCK_OVERHEAD. */
static void overhead_settle_lent(struct device *d, const struct overhead_lent *l)
{
	uint64_t uncharged = overhead_whole(l->uncharged), ipc = overhead_min(d->lent_ipc_bytes, uncharged),
		 listed = d->lent_ipc_bytes + overhead_above(d->lent_bytes - d->lent_ipc_bytes, overhead_whole(l->unlisted)),
		 back = overhead_above(listed, uncharged);
	if (!back)
		return;
	d->lent_ipc_bytes = ipc;
	store_release(&d->lent_bytes, d->lent_bytes - back);
	charge_leaving(d->index, back);
	charge_return(d->index, RATION_DATA, back);
	charge_unexport(d->index, back);
}

/* overhead_sync sets the charged overhead to the bytes that the driver has beyond all other
 * charges, as far as a reading can tell, and corrects charges that were made without an exact
 * reading. It returns false if the driver does not list this process. The caller holds
 * LOCK_OVERHEAD. */
static bool overhead_sync(struct device *d)
{
	struct overhead_reading r;
	bool imports = import_any();
	d->exact = false;
	import_before_reading(d->index);
	struct overhead_lent lent = overhead_look_lent(d);
	uint64_t charged = charge_held(d->index, RATION_OVERHEAD);
	if (!overhead_read(d, &r)) {
		overhead_settle_lent(d, &lent);
		return false;
	}
	d->read_driver = r.driver;
	if (d->making)
		return true;
	/* Deferred memory has come once the driver has all charged bytes except the other
	 * absent ones. */
	if (d->unseen_bytes && r.driver + r.absent - d->unseen_bytes >= r.most + charged) {
		charge_mark_absent(d->index, d->unseen_bytes, false);
		r.absent -= d->unseen_bytes;
		d->unseen_bytes = 0;
	}
	uint64_t more = overhead_above(r.driver, r.most + charged),
		 less = overhead_above(overhead_above(r.least, r.absent) + charged, r.driver);
	uint64_t back = overhead_min(less, charged);
	bool exact = r.least == r.most && !r.absent;
	if (more)
		charge_add_forced(d->index, RATION_OVERHEAD, more);
	if (back)
		charge_return(d->index, RATION_OVERHEAD, back);
	overhead_settle_lent(d, &lent);
	if (less > back)
		overhead_correct(d, less - back, exact);
	if (!exact)
		return true;
	import_after_reading(d->index);
	d->exact = true;
	/* Imported memory that was charged to a context is still there: the reading shows no excess. */
	if (imports || import_any())
		return true;
	/* If a context took at least twice the remembered cost, forget that cost, so that the
	 * next process measures. A smaller difference may be code that was loaded since. */
	uint64_t unconfirmed = overhead_above(d->unconfirmed_bytes[RATION_CONTEXT], d->lowered_bytes);
	if (unconfirmed && charged + more >= unconfirmed)
		region_forget_cost(attach_region(), d->index, d->uuid, unconfirmed);
	/* A module that was measured beside another may have been charged for both: that shows when the other one is unloaded. */
	d->unconfirmed_bytes[RATION_CONTEXT] = d->lowered_bytes;
	return true;
}

void overhead_lend(struct device *d, uint64_t bytes, bool ipc)
{
	bool started = nvml_start();
	bytes = overhead_whole(bytes);
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	charge_arrived(d->index, bytes);
	store_release(&d->lent_bytes, d->lent_bytes + bytes);
	d->lent_ipc_bytes += ipc ? bytes : 0;
	if (started)
		overhead_sync(d);
	else
		overhead_settle_lent(d, &(struct overhead_lent){UINT64_MAX / 2, 0}); /* nothing says that it is in use */
	mutex_unlock(&overhead_lock);
}

/* overhead_join counts a making as under way. The caller holds LOCK_OVERHEAD. */
static void overhead_join(struct overhead_making *m)
{
	m->device->making++;
	m->measured = m->device->measured;
	m->imports = import_any();
}

/* overhead_note_absent records how many absent bytes are not on the device before the making:
 * if they come meanwhile, they hide part of the object's size. The caller holds LOCK_OVERHEAD. */
static void overhead_note_absent(struct overhead_making *m)
{
	struct device *d = m->device;
	struct overhead_reading r;
	if (!charge_absent(d->index) || !overhead_read(d, &r))
		return;
	uint64_t counted = r.most + charge_held(d->index, RATION_OVERHEAD);
	m->absent_bytes = r.absent;
	/* The driver's figure includes objects that other calls have half made, and may yet
	 * undo. */
	m->missing_bytes = d->making ? r.absent : overhead_min(r.absent, overhead_above(counted, r.driver));
	m->missing_unsure = d->making || r.least != r.most;
}

void overhead_begin(struct overhead_making *m, struct device *d, unsigned kind)
{
	*m = (struct overhead_making){.device = d, .kind = kind};
	bool started = nvml_start();
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	if (started && !overhead_sync(d) && !d->nvml.listed) {
		m->device_known = nvml_device_bytes(&d->nvml, &m->device_bytes);
		m->pid_unlisted = nvml_pid_unlisted(&d->nvml);
	}
	if (started)
		overhead_note_absent(m);
	overhead_join(m);
	mutex_unlock(&overhead_lock);
}

/* A waiter gives up after OVERHEAD_LOOKS checks without progress. A thread that has waited for
 * OVERHEAD_TURNS other loads goes on anyway. */
enum { OVERHEAD_LOOKS = 500, OVERHEAD_TURNS = 1024 };

/* overhead_may_load reports whether a load may begin while others are under way. The caller
 * holds LOCK_OVERHEAD. */
static bool overhead_may_load(const struct device *d, uint64_t bytes)
{
	return !d->loading || !charge_would_refuse(d->index, d->loading_bytes + bytes);
}

void overhead_take_turn(struct overhead_turn *t, struct device *d, uint64_t expected)
{
	unsigned looks = 0, turns = 0;
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	*t = (struct overhead_turn){.device = d, .bytes = expected > d->largest_load ? expected : d->largest_load};
	for (uint32_t turn = d->turn; !overhead_may_load(d, t->bytes) && turns < OVERHEAD_TURNS;) {
		mutex_unlock(&overhead_lock);
		nanosleep(&(struct timespec){0, looks < 10 ? 50000 : 1000000}, NULL);
		mutex_lock(&overhead_lock, LOCK_OVERHEAD);
		looks = d->turn == turn ? looks + 1 : 0;
		turns += d->turn != turn;
		turn = d->turn;
		if (looks >= OVERHEAD_LOOKS) {
			d->passed = ++d->turn;
			d->loading = 0;
			d->loading_bytes = 0;
		}
	}
	d->loading++;
	d->loading_bytes += t->bytes;
	t->turn = d->turn;
	mutex_unlock(&overhead_lock);
}

void overhead_leave_turn(struct overhead_turn *t)
{
	struct device *d = t->device;
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	if ((int32_t)(t->turn - d->passed) >= 0) { /* no waiter has stopped waiting for it */
		d->loading--;
		d->loading_bytes -= t->bytes;
	}
	d->turn++;
	mutex_unlock(&overhead_lock);
}

static bool overhead_read_free(uint64_t *bytes)
{
	size_t left = 0, total;
	int result = REAL(cuMemGetInfo_v2, &left, &total);
	*bytes = left;
	return result == CUDA_SUCCESS;
}

void overhead_begin_lazy(struct overhead_making *m, struct device *d, unsigned kind)
{
	uint64_t left;
	/* Absent bytes must be known before, by a reading. And cuMemGetInfo must not be called
	 * while the program may be capturing. */
	if (charge_absent(d->index) || capture_seen() || !overhead_read_free(&left)) {
		overhead_begin(m, d, kind);
		return;
	}
	*m = (struct overhead_making){.device = d, .kind = kind, .free_only = true, .free_bytes = left};
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	overhead_join(m);
	mutex_unlock(&overhead_lock);
}

void overhead_begin_load(struct overhead_making *m, struct device *d, unsigned kind)
{
	if (nvml_tried())
		overhead_begin(m, d, kind);
	else
		overhead_begin_lazy(m, d, kind);
}

/* overhead_measure reads how many bytes the driver has for this process beyond our count: an
 * upper bound. It includes bytes that other threads are just allocating, so that no memory is
 * granted unseen. It returns false if the driver does not list this process. The caller holds
 * LOCK_OVERHEAD. */
static bool overhead_measure(struct overhead_making *m, uint64_t *bytes)
{
	struct device *d = m->device;
	struct overhead_reading r;
	bool alone = m->measured == d->measured && d->making == 1, settled = false;
	*bytes = UINT64_MAX;
	for (unsigned i = 0; i < OVERHEAD_TRIES && !settled; i++) {
		if (!overhead_read(d, &r))
			return false;
		uint64_t missing = overhead_min(m->missing_bytes + overhead_above(r.absent, m->absent_bytes), r.absent);
		uint64_t counted = r.least + charge_held(d->index, RATION_OVERHEAD);
		*bytes = overhead_min(*bytes, overhead_whole(overhead_above(r.driver + missing, counted)));
		settled = r.least == r.most;
		/* The driver may have begun to list imported memory with this process. */
		bool imports = m->imports || import_any();
		m->exact = settled && alone && !imports && !m->missing_unsure && r.absent == m->absent_bytes;
		m->surplus_bytes = m->exact ? overhead_above(counted, overhead_whole(r.driver + missing)) : 0;
	}
	return true;
}

/* overhead_estimate counts bytes of a record as unconfirmed. The caller holds LOCK_OVERHEAD. */
static void overhead_estimate(struct device *d, unsigned kind, uint64_t bytes)
{
	d->estimated_bytes[kind] += bytes;
	d->unconfirmed_bytes[kind] += bytes;
}

/* overhead_claim measures the object and charges the bytes found, all with LOCK_OVERHEAD held.
 * The reason: the measurement may include bytes of objects that other threads are still making.
 * If it were refused after those threads had measured, their bytes would have been hidden
 * behind this claim. It returns false if the driver does not list this process. */
static bool overhead_claim(struct overhead_making *m, bool stays, int *refused)
{
	struct device *d = m->device;
	uint64_t now;
	*refused = CUDA_SUCCESS;
	m->exact = m->free_only && overhead_read_free(&now) && now == m->free_bytes;
	if (m->exact || !nvml_start())
		return true;
	if (m->pid_unlisted)
		nvml_decide_pid(&d->nvml);
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	bool listed = overhead_measure(m, &m->claimed_bytes);
	if (listed) {
		/* Other charges on this device could hide part of the cost: remember it only
		 * without them. */
		if (m->first_context && m->exact && !charge_held(d->index, RATION_DATA) && !charge_held(d->index, RATION_MODULE))
			region_remember_cost(attach_region(), d->index, d->uuid, m->claimed_bytes);
		if (m->kind == RATION_MODULE && m->claimed_bytes > d->largest_load)
			d->largest_load = m->claimed_bytes;
		charge_claim(d->index, m->kind, m->claimed_bytes);
		*refused = charge_claimed(d->index, m->kind, m->claimed_bytes, stays);
		m->refused = *refused && !stays;
		if (m->refused)
			charge_leaving(d->index, m->claimed_bytes);
		else if (!m->exact)
			overhead_estimate(d, m->kind, m->claimed_bytes);
		d->inexact = d->inexact || !m->exact;
		d->measured++;
	}
	mutex_unlock(&overhead_lock);
	return listed;
}

int overhead_charge(struct overhead_making *m, bool stays, uint64_t *bytes)
{
	struct device *d = m->device;
	uint64_t now;
	int refused;
	if (overhead_claim(m, stays, &refused)) {
		*bytes = m->claimed_bytes;
		return refused;
	}
	/* The driver does not list this process. For a context the best estimate is the growth
	 * of all processes together. Part of it may belong to another process, so it is charged
	 * even above the limit, and never refused. For a module the growth would as often
	 * belong to another process, so nothing is charged. */
	*bytes = m->claimed_bytes = 0;
	if (m->kind == RATION_CONTEXT && m->device_known && nvml_device_bytes(&d->nvml, &now) && now > m->device_bytes) {
		*bytes = overhead_whole(now - m->device_bytes);
		charge_add_forced(d->index, m->kind, *bytes);
		overhead_add_unconfirmed(d, m->kind, *bytes, 0);
	}
	return CUDA_SUCCESS;
}

void overhead_end(struct overhead_making *m)
{
	struct device *d = m->device;
	if (m->refused)
		charge_unclaim(d->index, m->kind, m->claimed_bytes);
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	/* The last call under way takes a reading for all of them, if one measured inexactly
	 * and may have been charged too much: there may be no later reading. */
	if (!--d->making && d->inexact && nvml_started()) {
		d->inexact = false;
		overhead_sync(d);
	}
	mutex_unlock(&overhead_lock);
}

void overhead_pause(struct device *d)
{
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	d->making++;
	mutex_unlock(&overhead_lock);
}

void overhead_resume(struct device *d)
{
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	d->making--;
	if (nvml_started())
		overhead_sync(d);
	mutex_unlock(&overhead_lock);
}

void overhead_add_unconfirmed(struct device *d, unsigned kind, uint64_t bytes, uint64_t corrected)
{
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	overhead_estimate(d, kind, bytes);
	d->corrected_bytes[kind] += corrected;
	mutex_unlock(&overhead_lock);
}

void overhead_doubt(struct device *d, unsigned kind, uint64_t bytes)
{
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	d->unconfirmed_bytes[kind] += bytes;
	mutex_unlock(&overhead_lock);
}

bool overhead_lower(struct device *d, uint64_t bytes)
{
	bool started = nvml_pid_known() && nvml_start();
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	d->unconfirmed_bytes[RATION_CONTEXT] += bytes;
	d->lowered_bytes += bytes;
	bool listed = started && overhead_sync(d);
	mutex_unlock(&overhead_lock);
	return listed;
}

uint64_t overhead_drop_unconfirmed(struct device *d, unsigned kind, uint64_t bytes)
{
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	uint64_t corrected = overhead_min(d->corrected_bytes[kind], bytes);
	d->estimated_bytes[kind] -= bytes;
	d->corrected_bytes[kind] -= corrected;
	/* The corrected bytes may belong to other records: then those are still charged too
	 * much, and stay unconfirmed. */
	d->unconfirmed_bytes[kind] = overhead_above(d->unconfirmed_bytes[kind], bytes) + corrected;
	mutex_unlock(&overhead_lock);
	return corrected;
}

void overhead_add_deferred(struct device *d, uint64_t bytes)
{
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	d->deferred_bytes += bytes;
	d->unseen_bytes += bytes;
	charge_mark_absent(d->index, bytes, true);
	mutex_unlock(&overhead_lock);
}

void overhead_drop_deferred(struct device *d, uint64_t bytes)
{
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	d->deferred_bytes -= bytes;
	/* It is not known which deferred bytes a reading has shown: assume that the remaining
	 * ones are unseen. */
	uint64_t seen = overhead_above(d->unseen_bytes, d->deferred_bytes);
	d->unseen_bytes -= seen;
	charge_mark_absent(d->index, seen, false);
	mutex_unlock(&overhead_lock);
}

void overhead_keep_rest(struct device *d, uint64_t bytes)
{
	struct overhead_reading r;
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	if (bytes && nvml_started() && overhead_read(d, &r)) {
		uint64_t counted = overhead_above(r.most, bytes) + charge_held(d->index, RATION_OVERHEAD);
		uint64_t left = overhead_min(overhead_above(r.driver, counted), bytes);
		if (left)
			charge_add_forced(d->index, RATION_OVERHEAD, left);
	}
	mutex_unlock(&overhead_lock);
}

bool overhead_device_empty(struct device *d)
{
	uint64_t driver;
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	bool known = nvml_started() && nvml_own_bytes(&d->nvml, &driver);
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

/* overhead_relieve takes a reading before a refusal, if that may return bytes. It does nothing if
 * another thread is reading. */
static void overhead_relieve(unsigned index)
{
	struct device *d = device_at(index);
	if (!d || !nvml_started() || !mutex_try(&overhead_lock, LOCK_OVERHEAD))
		return;
	if (charge_held(index, RATION_OVERHEAD) || d->lent_bytes || overhead_correctable(d, RATION_CONTEXT) ||
	    overhead_correctable(d, RATION_MODULE))
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

/* overhead_read_changed takes a reading, unless nothing has changed. NVML's list is more than a thousand
 * system calls on some machines, in the path of the program's call; the device's bytes in use are a few.
 * If these bytes are as they were at the last reading, this process has been charged and returned
 * nothing since, and the last two readings were exact and the same, then the list is not read. But memory
 * that is imported or lent can move from one process's entry to another's. And the driver may take
 * here as much as another process frees: therefore some readings are taken all the same. */
static void overhead_read_changed(struct device *d)
{
	uint64_t device, moved, driver;
	mutex_lock(&overhead_lock, LOCK_OVERHEAD);
	driver = d->read_driver;
	overhead_update_all(d); /* what this changes counts as moved */
	moved = charge_moved(d->index);
	bool same = nvml_device_bytes(&d->nvml, &device) && device == d->read_device && moved == d->read_moved;
	if (same && d->settled && d->unchanged < OVERHEAD_UNCHANGED && !d->lent_bytes && !import_any()) {
		d->unchanged++;
	} else {
		overhead_sync(d);
		d->settled = same && d->exact && d->read_driver == driver;
		d->read_device = device;
		d->read_moved = moved;
		d->unchanged = 0;
	}
	mutex_unlock(&overhead_lock);
}

/* overhead_read_due takes the reading that is due, in the first thread that gets here. If this
 * process does not know its PID in the driver's list, it takes none and does not start NVML. */
void overhead_read_due(void)
{
	uint64_t now = overhead_now(), next = load_relaxed(&overhead_next_reading), step = load_relaxed(&overhead_interval);
	if (!next || now < next || !cas(&overhead_next_reading, next, now + step))
		return;
	__atomic_store_n(&overhead_interval, overhead_min(2 * step, OVERHEAD_PERIOD), __ATOMIC_RELAXED);
	__atomic_store_n(&overhead_last_reading, now, __ATOMIC_RELAXED);
	if (!attach_on())
		return;
	bool readable = nvml_pid_known() && nvml_start();
	for (unsigned i = 0; readable && i < RATION_DEVICES; i++) {
		struct device *d = device_at(i);
		if (d && __atomic_load_n(&d->has_context, __ATOMIC_ACQUIRE))
			overhead_read_changed(d);
	}
	/* After the reading: this process may have imported memory that a dead process has lent, and the
	 * driver lists it with this process once there is no descriptor. */
	region_reap_lent(attach_region());
}
