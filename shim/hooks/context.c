/* Making and ending contexts. docs/overhead.md explains what they are charged. */
#include "charge.h"
#include "compute/compute.h"
#include "hooks/context_table.h"
#include "hooks/departure.h"
#include "hooks/graph.h"
#include "hooks/pool.h"
#include "hostpid.h"
#include "log.h"
#include "nvml.h"
#include "overhead.h"

/* What contexts were charged, by their handles. */
static struct alloc_table context_costs;

/* Primary contexts, and the making of all others, by ordinal. */
enum { CONTEXT_ORDINALS = 64 };
static struct context_device {
	/* LOCK_PRIMARY_CONTEXT, over primary. It makes one step of asking whether the primary
	 * context is active, the driver's call and what follows from both: of two threads, one
	 * that retains it and one that resets it, each finds it as the other left it. */
	mutex lock;
	CUcontext primary; /* while it is active */
	/* LOCK_CONTEXT_MAKING: one context of unknown cost is made at a time, so that each is
	 * measured by itself and the limit is exceeded by one of them at most, until that is
	 * undone. Both are held across the driver's call, which waits for no other thread of
	 * the program; the child of a fork, where they may have been left held, has no CUDA to
	 * come here with. */
	mutex making;
} context_devices[CONTEXT_ORDINALS];

/* A context that is being ended: context_end_begin, the driver's call, context_ended or
 * context_not_ended, all under overhead_pause. */
struct context_end {
	CUcontext handle;
	struct context *context; /* NULL: not in the table */
	struct alloc_record cost;
	struct departure departure; /* of cost */
	uint64_t since;             /* pools_stamp, before the driver's call */
};

/* context_end_begin hides a context, by the handle that allocations know it by, and takes
 * the record of its cost, by that or a green context's. */
static void context_end_begin(struct context_end *e, CUcontext handle, const void *cost)
{
	*e = (struct context_end){.handle = handle, .departure.kind = RATION_CONTEXT, .since = pools_stamp()};
	e->context = context_hide(handle);
	compute_ending(handle);
	e->cost = context_take(&context_costs, (uintptr_t)cost);
	if (!e->cost.key)
		return;
	departure_add(&e->departure, &e->cost);
	departure_begin(&e->departure);
}

static void context_not_ended(const struct context_end *e)
{
	context_unhide(e->context, e->handle);
	compute_not_ended(e->handle);
	departure_end(&e->departure, false);
	alloc_table_freed(&context_costs, &e->cost, false);
}

/* context_ended returns all that ended with a context. A green one is no more than a handle
 * on the primary one: it waits for nothing, and no memory ends with it. */
static void context_ended(const struct context_end *e, struct device *d, bool green)
{
	compute_ended(e->handle);
	if (e->context)
		context_remove(e->context);
	if (e->cost.key)
		__atomic_fetch_sub(&d->contexts_alive, 1, __ATOMIC_ACQ_REL);
	if (!green) {
		/* With a device's last context goes what its pools handed out. */
		bool empty = overhead_device_empty(d);
		if (empty)
			pools_emptied(d->index);
		pools_synchronised(d->index, empty ? UINT64_MAX : e->since);
		pools_sync_charges(RATION_DEVICES);
		graph_sync(d);
	}
	const struct departure_sums *s = &e->departure.device[d->index];
	overhead_keep_rest(d, s->bytes - s->corrected);
	departure_end(&e->departure, true);
}

enum context_kind { CONTEXT_OWN, CONTEXT_PRIMARY, CONTEXT_GREEN };

/* A context that is being made: context_decide, context_charge, the driver's call,
 * context_made. Where its cost is known it is charged before the driver is asked, like any
 * allocation: a process's first context on a device by what the region remembers, further
 * ones by what this process has measured of one. Until it has, they are charged what the
 * region remembers, and measured afterwards. So is a context of which nothing is known,
 * and one that then does not fit is undone. */
struct context_making {
	enum context_kind kind;
	struct device *device; /* NULL: not counted */
	bool beside;           /* green, and the primary context is active: a small part of one */
	bool first;            /* of this process on the device */
	bool pid_unlisted;     /* see nvml_decide_pid */
	bool measured;         /* its cost is not known */
	bool locked;           /* LOCK_CONTEXT_MAKING is held */
	bool refused;          /* before the driver was asked */
	uint64_t cost;         /* charged before, in bytes */
	CUcontext whole, part; /* what has a share of the device's time: a context, and a green one's own */
	struct overhead_making making;
	struct hostpid_probe probe;
};

/* context_decide decides how the context is charged, and returns whether NVML must be
 * started before, which must not be done under a lock. */
static bool context_decide(struct context_making *m)
{
	struct device *d = m->device;
	struct region *r = attach_region();
	m->first = !__atomic_load_n(&d->contexts_alive, __ATOMIC_ACQUIRE);
	uint64_t further = m->first ? 0 : load_relaxed(&d->further_cost);
	m->cost = m->beside ? 0 : further ? further : region_context_cost(r, d->index, d->uuid);
	/* A cost that does not fit even where nothing is held may be wrong, and would refuse
	 * every process that could find that out. */
	if (m->cost && !region_used(r, d->index) && charge_would_refuse(d->index, m->cost))
		m->cost = 0;
	m->measured = !m->cost || (!m->first && !further) || m->kind == CONTEXT_GREEN;
	return !nvml_tried() && (m->measured || nvml_pid_undecided() || hostpid_wanted());
}

static void context_stop_measuring(struct context_making *m)
{
	if (m->measured)
		overhead_end(&m->making);
	if (m->locked)
		mutex_unlock(&context_devices[m->device->ordinal].making);
}

/* context_stop_making is for when the context is alive, or will not be made. */
static void context_stop_making(struct context_making *m)
{
	hostpid_leave(&m->probe);
	__atomic_fetch_sub(&m->device->contexts_making, 1, __ATOMIC_ACQ_REL);
}

/* context_charge charges the cost or the estimate, and begins to measure where that is
 * needed: CUDA_SUCCESS, or what the call must return. */
static int context_charge(struct context_making *m)
{
	struct device *d = m->device;
	/* Processes that do not know their PID in the driver's list measure one at a time, or
	 * each would measure what all of them take. After the first, the others know the cost. */
	bool alone = m->first && !m->cost && !nvml_pid_known();
	__atomic_fetch_add(&d->contexts_making, 1, __ATOMIC_ACQ_REL);
	hostpid_begin(&m->probe, d, alone);
	if (m->measured)
		mutex_lock(&context_devices[d->ordinal].making, LOCK_CONTEXT_MAKING);
	m->locked = m->measured;
	/* Now that the one before has been measured. */
	if (m->measured)
		context_decide(m);
	if (m->measured) {
		overhead_begin(&m->making, d, RATION_CONTEXT);
		m->making.first_context = m->first && !m->cost && m->kind != CONTEXT_GREEN;
	} else if (nvml_pid_undecided()) {
		m->pid_unlisted = nvml_pid_unlisted(&d->nvml);
	}
	int refused = m->cost ? charge_add(d->index, RATION_CONTEXT, m->cost) : CUDA_SUCCESS;
	if (!refused) {
		compute_making(d);
		return CUDA_SUCCESS;
	}
	m->refused = true;
	context_stop_measuring(m);
	context_stop_making(m);
	return refused;
}

/* context_measured completes the charge of a context of unknown cost. bytes is what was
 * charged in all. */
static int context_measured(struct context_making *m, uint64_t *bytes)
{
	struct device *d = m->device;
	uint64_t more;
	int refused = overhead_charge(&m->making, false, &more);
	uint64_t surplus = m->making.surplus_bytes < m->cost ? m->making.surplus_bytes : m->cost;
	charge_resize(d->index, RATION_CONTEXT, m->cost, m->cost - surplus);
	m->cost -= surplus;
	*bytes = m->cost + more;
	if (!refused && !m->first && m->kind == CONTEXT_OWN && m->making.exact)
		__atomic_store_n(&d->further_cost, *bytes, __ATOMIC_RELAXED);
	return refused;
}

/* context_undo ends a context that the job has no room for. */
static void context_undo(const struct context_making *m, void *handle)
{
	charge_leaving(m->device->index, m->cost);
	switch (m->kind) {
	case CONTEXT_OWN: REAL(cuCtxDestroy_v2, handle); break;
	case CONTEXT_PRIMARY: REAL(cuDevicePrimaryCtxRelease_v2, m->device->ordinal); break;
	case CONTEXT_GREEN: REAL(cuGreenCtxDestroy, handle); break;
	}
	charge_return(m->device->index, RATION_CONTEXT, m->cost);
}

/* context_share completes what the job's share of the device's time asks of a context that
 * was made. A green one that made the primary one active is two. */
static int context_share(struct context_making *m, void *handle)
{
	if (!attach_compute())
		return CUDA_SUCCESS;
	m->whole = m->kind == CONTEXT_GREEN ? NULL : handle;
	if (handle && m->kind == CONTEXT_GREEN) {
		if (REAL(cuCtxFromGreenCtx, &m->part, handle) != CUDA_SUCCESS)
			m->part = NULL;
		if (!m->beside && REAL(cuDevicePrimaryCtxRetain, &m->whole, m->device->ordinal) == CUDA_SUCCESS)
			REAL(cuDevicePrimaryCtxRelease_v2, m->device->ordinal);
	}
	return compute_made(m->device, m->whole, m->part);
}

/* context_made completes the charge. handle is NULL where the driver made none. It returns
 * CUDA_SUCCESS, or what the call must return: the context has been undone. */
static int context_made(struct context_making *m, void *handle)
{
	struct device *d = m->device;
	struct alloc_record r = {.key = (uintptr_t)handle, .bytes = m->cost, .device = (uint8_t)d->index};
	int refused = CUDA_SUCCESS;
	hostpid_end(&m->probe, d, handle != NULL);
	if (handle)
		charge_arrived(d->index, m->cost);
	else
		charge_return(d->index, RATION_CONTEXT, m->cost);
	refused = context_share(m, handle);
	if (handle && !refused && m->measured) {
		refused = context_measured(m, &r.bytes);
		if (refused) {
			compute_ended(m->part);
			compute_ended(m->whole);
		}
	}
	if (refused)
		context_undo(m, handle);
	if (handle && !refused) {
		if (!m->measured || !m->making.exact) {
			r.flags = RECORD_UNCONFIRMED;
			overhead_add_unconfirmed(d, RATION_CONTEXT, m->cost, 0);
		}
		__atomic_fetch_add(&d->contexts_alive, 1, __ATOMIC_ACQ_REL);
		alloc_table_put(&context_costs, &r);
	}
	context_stop_measuring(m);
	if (handle && m->pid_unlisted)
		nvml_decide_pid(&d->nvml);
	context_stop_making(m); /* now that others need not measure */
	if (!handle || refused)
		return refused;
	overhead_watch(d);
	log_info("context %p on device %d %s %llu bytes", handle, d->ordinal, m->measured ? "takes" : "is charged the usual",
		 (unsigned long long)r.bytes);
	return CUDA_SUCCESS;
}

/* context_enter_making begins all calls that make one. A call that has nowhere to put its
 * handle is left to the driver. */
static int context_enter_making(struct context_making *m, enum context_kind kind, CUdevice ordinal, const void *out)
{
	*m = (struct context_making){.kind = kind};
	return out && ordinal >= 0 && ordinal < CONTEXT_ORDINALS ? init_enter_device(ordinal, &m->device) : init_enter();
}

/* context_begin is what precedes the driver's call: CUDA_SUCCESS, or what the call must
 * return. */
static int context_begin(struct context_making *m, CUdevice ordinal, CUcontext *out)
{
	int refused = context_enter_making(m, CONTEXT_OWN, ordinal, out);
	if (refused || !m->device)
		return refused;
	if (context_decide(m))
		nvml_start();
	return context_charge(m);
}

/* context_end is what follows it, with the driver's answer, or the refusal. */
static int context_end(struct context_making *m, int result, void **out)
{
	if (!m->device)
		return result;
	int refused = m->refused ? result : context_made(m, result == CUDA_SUCCESS ? *out : NULL);
	if (!refused)
		return result;
	*out = NULL;
	overhead_refresh(m->device);
	return refused;
}

int cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device)
{
	struct context_making m;
	return context_end(&m, REAL_UNLESS(context_begin(&m, device, out), cuCtxCreate, out, flags, device), (void **)out);
}

int cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
	struct context_making m;
	return context_end(&m, REAL_UNLESS(context_begin(&m, device, out), cuCtxCreate_v2, out, flags, device), (void **)out);
}

int cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice device)
{
	struct context_making m;
	return context_end(&m, REAL_UNLESS(context_begin(&m, device, out), cuCtxCreate_v3, out, affinity, count, flags, device),
			   (void **)out);
}

int cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice device)
{
	struct context_making m;
	return context_end(&m, REAL_UNLESS(context_begin(&m, device, out), cuCtxCreate_v4, out, params, flags, device), (void **)out);
}

static bool context_primary_active(CUdevice device)
{
	unsigned flags;
	int active = 0;
	return REAL(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && active;
}

/* context_lock_primary takes the lock of the device's primary context, with NVML started
 * before where the context that is to be made needs it, and returns whether the primary one
 * is active. */
static bool context_lock_primary(struct context_making *m)
{
	struct context_device *p = &context_devices[m->device->ordinal];
	for (;;) {
		mutex_lock(&p->lock, LOCK_PRIMARY_CONTEXT);
		bool active = context_primary_active(m->device->ordinal);
		m->beside = m->kind == CONTEXT_GREEN && active;
		if ((m->kind == CONTEXT_PRIMARY && active) || !context_decide(m))
			return active;
		mutex_unlock(&p->lock);
		nvml_start();
	}
}

int cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
	struct context_making m;
	int denied = context_enter_making(&m, CONTEXT_PRIMARY, device, out);
	if (denied || !m.device)
		return REAL_UNLESS(denied, cuDevicePrimaryCtxRetain, out, device);
	struct context_device *p = &context_devices[device];
	bool active = context_lock_primary(&m);
	int result = REAL_UNLESS(active ? CUDA_SUCCESS : context_charge(&m), cuDevicePrimaryCtxRetain, out, device);
	if (!active)
		result = context_end(&m, result, (void **)out);
	if (result == CUDA_SUCCESS)
		p->primary = *out;
	mutex_unlock(&p->lock);
	return result;
}

/* context_primary_ended is for a primary context that was active and is no longer. It was
 * not hidden before: a release may leave it to others, who must go on finding it, and its
 * handle comes back only by a retain, which waits for the lock. Under that, and
 * overhead_pause. since: as in struct context_end. */
static void context_primary_ended(struct context_device *p, struct device *d, uint64_t since)
{
	struct context_end e;
	context_end_begin(&e, p->primary, p->primary);
	e.since = since;
	context_ended(&e, d, false);
	p->primary = NULL;
}

/* context_release_primary releases or resets a primary context. */
static int context_release_primary(CUdevice device, enum ration_call call)
{
	/* All four calls have the same parameters. */
	real_cuDevicePrimaryCtxReset real = (real_cuDevicePrimaryCtxReset)ration_real(call);
	struct device *d;
	if (!real)
		return ration_absent(call);
	if (!attach_on() || device < 0 || device >= CONTEXT_ORDINALS || device_of(device, &d) != 1)
		return real(device);
	struct context_device *p = &context_devices[device];
	mutex_lock(&p->lock, LOCK_PRIMARY_CONTEXT);
	overhead_pause(d);
	bool active = context_primary_active(device);
	compute_ending(p->primary);
	uint64_t since = pools_stamp();
	int result = real(device);
	if (active && result == CUDA_SUCCESS && !context_primary_active(device))
		context_primary_ended(p, d, since);
	else
		compute_not_ended(p->primary);
	overhead_resume(d);
	mutex_unlock(&p->lock);
	return result;
}

int cuDevicePrimaryCtxRelease(CUdevice device) { return context_release_primary(device, CALL_cuDevicePrimaryCtxRelease); }
int cuDevicePrimaryCtxRelease_v2(CUdevice device) { return context_release_primary(device, CALL_cuDevicePrimaryCtxRelease_v2); }
int cuDevicePrimaryCtxReset(CUdevice device) { return context_release_primary(device, CALL_cuDevicePrimaryCtxReset); }
int cuDevicePrimaryCtxReset_v2(CUdevice device) { return context_release_primary(device, CALL_cuDevicePrimaryCtxReset_v2); }

/* context_green_made_primary is for a green context that made the primary one active, which
 * may outlive it: what a context usually costs is the primary one's. Where that is not known, all of
 * it is, until the green one ends and a reading shows what was its own. Under the primary one's lock. */
static void context_green_made_primary(struct context_device *p, struct device *d, CUgreenCtx green)
{
	struct alloc_record rest = context_take(&context_costs, (uintptr_t)green), cost = rest;
	uint64_t usual = region_context_cost(attach_region(), d->index, d->uuid);
	cost.key = (uintptr_t)p->primary;
	cost.bytes = usual && usual < rest.bytes ? usual : rest.bytes;
	rest.bytes -= cost.bytes;
	if (!usual && !(cost.flags & RECORD_UNCONFIRMED)) {
		cost.flags |= RECORD_UNCONFIRMED;
		overhead_add_unconfirmed(d, RATION_CONTEXT, cost.bytes, 0);
	}
	alloc_table_put(&context_costs, &cost);
	alloc_table_put(&context_costs, &rest);
	__atomic_fetch_add(&d->contexts_alive, 1, __ATOMIC_ACQ_REL);
}

/* context_doubt_primary lets the next reading correct what the primary context was charged, now that a green one has
 * ended. Under its lock. */
static void context_doubt_primary(const struct context_device *p, struct device *d)
{
	struct alloc_record cost;
	if (alloc_table_get(&context_costs, (uintptr_t)p->primary, &cost) && cost.flags & RECORD_UNCONFIRMED)
		overhead_doubt(d, RATION_CONTEXT, cost.bytes);
}

/* context_green_made is for a green context that was made. It has a CUcontext of its own,
 * in which it allocates as the primary one. Under that one's lock. */
static void context_green_made(struct context_device *p, struct device *d, CUgreenCtx green, bool active)
{
	CUcontext handle;
	if (!p->primary && REAL(cuDevicePrimaryCtxRetain, &p->primary, d->ordinal) == CUDA_SUCCESS)
		REAL(cuDevicePrimaryCtxRelease_v2, d->ordinal);
	if (!p->primary)
		return;
	if (REAL(cuCtxFromGreenCtx, &handle, green) == CUDA_SUCCESS)
		context_add_green(handle, p->primary, d);
	if (!active)
		context_green_made_primary(p, d, green);
}

/* A green context holds the primary context, which it makes active. */
int cuGreenCtxCreate(CUgreenCtx *out, void *desc, CUdevice device, unsigned flags)
{
	struct context_making m;
	int denied = context_enter_making(&m, CONTEXT_GREEN, device, out);
	if (denied || !m.device)
		return REAL_UNLESS(denied, cuGreenCtxCreate, out, desc, device, flags);
	struct context_device *p = &context_devices[device];
	bool active = context_lock_primary(&m);
	int result = REAL_UNLESS(context_charge(&m), cuGreenCtxCreate, out, desc, device, flags);
	result = context_end(&m, result, (void **)out);
	if (result == CUDA_SUCCESS)
		context_green_made(p, m.device, *out, active);
	mutex_unlock(&p->lock);
	return result;
}

int cuGreenCtxDestroy(CUgreenCtx green)
{
	struct alloc_record cost;
	struct context_end e;
	CUcontext handle = NULL;
	struct device *d = attach_on() && alloc_table_get(&context_costs, (uintptr_t)green, &cost) ? device_at(cost.device) : NULL;
	if (!d)
		return REAL(cuGreenCtxDestroy, green);
	struct context_device *p = &context_devices[d->ordinal];
	mutex_lock(&p->lock, LOCK_PRIMARY_CONTEXT);
	overhead_pause(d);
	if (REAL(cuCtxFromGreenCtx, &handle, green) != CUDA_SUCCESS)
		handle = NULL;
	context_end_begin(&e, handle, green);
	compute_ending(p->primary);
	int result = REAL(cuGreenCtxDestroy, green);
	if (result == CUDA_SUCCESS)
		context_ended(&e, d, true);
	else
		context_not_ended(&e);
	/* It may have been the last that held the primary one. */
	if (p->primary && !context_primary_active(d->ordinal)) {
		context_primary_ended(p, d, e.since);
	} else {
		compute_not_ended(p->primary);
		if (result == CUDA_SUCCESS)
			context_doubt_primary(p, d);
	}
	overhead_resume(d);
	mutex_unlock(&p->lock);
	return result;
}

static int context_destroy(CUcontext handle, enum ration_call call)
{
	/* Both calls have the same parameters. */
	real_cuCtxDestroy real = (real_cuCtxDestroy)ration_real(call);
	struct alloc_record cost;
	struct context_end e;
	if (!real)
		return ration_absent(call);
	struct context *c = handle && attach_on() ? context_find(handle) : NULL;
	struct device *d = c                                                                          ? c->device
			   : attach_on() && alloc_table_get(&context_costs, (uintptr_t)handle, &cost) ? device_at(cost.device)
												      : NULL;
	if (!d)
		return real(handle);
	overhead_pause(d);
	context_end_begin(&e, handle, handle);
	int result = real(handle);
	if (result == CUDA_SUCCESS)
		context_ended(&e, d, false);
	else
		context_not_ended(&e);
	overhead_resume(d);
	return result;
}

int cuCtxDestroy(CUcontext context) { return context_destroy(context, CALL_cuCtxDestroy); }
int cuCtxDestroy_v2(CUcontext context) { return context_destroy(context, CALL_cuCtxDestroy_v2); }

/* Only the last of cuCtxAttach's references ends a context, which is then no longer
 * current. */
int cuCtxDetach(CUcontext context)
{
	CUcontext current = NULL;
	struct context_end e;
	struct context *c = context && attach_on() ? context_find(context) : NULL;
	if (!c)
		return REAL(cuCtxDetach, context);
	struct device *d = c->device;
	overhead_pause(d);
	compute_ending(context);
	uint64_t since = pools_stamp();
	int result = REAL(cuCtxDetach, context);
	if (result == CUDA_SUCCESS && (REAL(cuCtxGetCurrent, &current) != CUDA_SUCCESS || current != context)) {
		context_end_begin(&e, context, context);
		e.since = since;
		context_ended(&e, d, false);
	} else {
		compute_not_ended(context);
	}
	overhead_resume(d);
	return result;
}
