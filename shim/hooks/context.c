/* Making and ending contexts. docs/overhead.md explains how they are charged. */
#include "charge.h"
#include "charge_wait.h"
#include "compute/compute.h"
#include "full.h"
#include "hooks/context_table.h"
#include "hooks/departure.h"
#include "hooks/graph.h"
#include "hooks/graph_capture.h"
#include "hooks/lane.h"
#include "hooks/pool.h"
#include "hostpid.h"
#include "log.h"
#include "nvml.h"
#include "overhead.h"

/* How many bytes were charged for each context, by its handle. */
static struct alloc_table context_costs;

/* Per device, by ordinal: its primary context, and locks for making contexts. */
enum { CONTEXT_ORDINALS = 64 };
static struct context_device {
	/* LOCK_PRIMARY_CONTEXT; protects primary. It is held from the question whether the
	 * primary context is active, over the driver's call, to the update of our state. So if
	 * one thread retains the context and another resets it, each sees the other's result. */
	mutex lock;
	CUcontext primary; /* NULL unless it is active */
	/* LOCK_CONTEXT_MAKING: contexts of unknown cost are made one at a time, so that each is
	 * measured by itself, and at most one of them exceeds the limit until it is undone.
	 * Both locks are held across the driver's call, which waits for no other thread of the
	 * program. A fork child may inherit them held, but CUDA does not work there, so it
	 * never comes here. */
	mutex making;
} context_devices[CONTEXT_ORDINALS];

/* The end of a context. The order is: context_end_begin, the driver's call, context_ended or
 * context_not_ended, all under overhead_pause. */
struct context_end {
	CUcontext handle;
	struct context *context; /* NULL: not in the table */
	struct alloc_record cost;
	struct departure departure; /* the departure of the record cost */
	uint64_t since;             /* the value of pools_stamp before the driver's call */
};

/* context_end_begin hides the context with this handle, which is the one that allocations use,
 * and takes the record of its cost. cost is the handle that the record has: the same, or that
 * of a green context. */
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

/* context_ended returns the charges of all objects that ended with a context. A green context
 * is only a handle on the primary context: its end waits for nothing, and no memory ends with
 * it. */
static void context_ended(const struct context_end *e, struct device *d, bool green)
{
	compute_ended(e->handle);
	if (e->context && e->context->records == e->context->number) {
		graph_captures_end(e->context->number);
		lane_context_ended(e->context->number); /* the driver has freed only what it mapped itself */
	}
	if (e->context)
		context_remove(e->context);
	lane_free_late();
	if (e->cost.key)
		__atomic_fetch_sub(&d->contexts_alive, 1, __ATOMIC_ACQ_REL);
	if (!green) {
		/* With the last context of a device, all memory from its pools is freed. */
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

/* The making of a context. The order is: context_decide, context_charge, the driver's call,
 * context_made.
 *
 * If the cost is known, it is charged before the driver is asked, like any allocation. For a
 * process's first context on a device it is the cost that the region remembers; for a further
 * one, the cost that this process has measured for a further one. If that is not measured yet,
 * the region's cost is charged first and the context is measured afterwards. If no cost is
 * known, the context is only measured afterwards, and undone if it does not fit. */
struct context_making {
	enum context_kind kind;
	struct device *device; /* NULL: not counted */
	bool beside;           /* a green context while the primary one is active: it takes little memory */
	bool first;            /* this process's first context on the device */
	bool pid_unlisted;     /* see nvml_decide_pid */
	bool measured;         /* its cost is not known, so it is measured */
	bool locked;           /* LOCK_CONTEXT_MAKING is held */
	bool refused;          /* refused before the driver was asked */
	uint64_t cost;         /* bytes charged before the driver was asked */
	CUcontext whole, part; /* contexts that get a share of the device's time: a whole one, and that of a green context */
	struct overhead_making making;
	struct hostpid_probe probe;
};

/* context_decide decides how the context is charged. It returns true if NVML must be started
 * first; the caller must do that without a lock. */
static bool context_decide(struct context_making *m)
{
	struct device *d = m->device;
	struct region *r = attach_region();
	m->first = !__atomic_load_n(&d->contexts_alive, __ATOMIC_ACQUIRE);
	uint64_t further = m->first ? 0 : load_relaxed(&d->further_cost);
	m->cost = m->beside ? 0 : further ? further : region_context_cost(r, d->index, d->uuid);
	/* If the cost does not fit even though the job holds nothing, it may be wrong. It would
	 * refuse every process that could measure it again, so ignore it. */
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

/* context_stop_making ends the making: the context is alive, or will not be made. */
static void context_stop_making(struct context_making *m)
{
	hostpid_leave(&m->probe);
	__atomic_fetch_sub(&m->device->contexts_making, 1, __ATOMIC_ACQ_REL);
}

/* context_charge charges the cost or the estimate, and begins a measurement if one is needed.
 * It returns CUDA_SUCCESS, or the error that the call must return. */
static int context_charge(struct context_making *m)
{
	struct device *d = m->device;
	/* Processes that do not know their PID in the driver's list measure one at a time, as
	 * each would otherwise measure the memory of all of them. After the first, the others
	 * know the cost. */
	bool alone = m->first && !m->cost && !nvml_pid_known();
	__atomic_fetch_add(&d->contexts_making, 1, __ATOMIC_ACQ_REL);
	hostpid_begin(&m->probe, d, alone);
	if (m->measured)
		mutex_lock(&context_devices[d->ordinal].making, LOCK_CONTEXT_MAKING);
	m->locked = m->measured;
	/* Decide again: the thread before us may have measured the cost. */
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

/* context_measured corrects the charge of a context that was made with an unknown cost. *bytes
 * gets the total that is charged for it, including the charge before. It returns CUDA_SUCCESS,
 * or the error that the call must return; then the caller undoes the context. */
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

/* context_undo ends a context that does not fit, and returns the charge that was made before. */
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

/* context_share gives a context that was made the job's share of the device's time. A green
 * context that made the primary one active counts as two. It returns CUDA_SUCCESS, or the error
 * that the call must return. */
static int context_share(struct context_making *m, void *handle)
{
	m->whole = m->kind == CONTEXT_GREEN ? NULL : handle;
	if (handle && m->kind == CONTEXT_GREEN) {
		if (REAL(cuCtxFromGreenCtx, &m->part, handle) != CUDA_SUCCESS)
			m->part = NULL;
		if (!m->beside && REAL(cuDevicePrimaryCtxRetain, &m->whole, m->device->ordinal) == CUDA_SUCCESS)
			REAL(cuDevicePrimaryCtxRelease_v2, m->device->ordinal);
	}
	return compute_made(m->device, m->whole, m->part);
}

/* context_made completes the charge. handle is NULL if the driver made no context. It returns
 * CUDA_SUCCESS, or the error that the call must return: then it has undone the context. */
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
	context_stop_making(m); /* only now, when others need not measure */
	if (!handle || refused)
		return refused;
	overhead_watch(d);
	log_info("context %p on device %d %s %llu bytes", handle, d->ordinal, m->measured ? "takes" : "is charged the usual",
		 (unsigned long long)r.bytes);
	return CUDA_SUCCESS;
}

/* context_enter_making begins all calls that make a context. A call without a place for its
 * handle is left to the driver, and not counted. */
static int context_enter_making(struct context_making *m, enum context_kind kind, CUdevice ordinal, const void *out)
{
	*m = (struct context_making){.kind = kind};
	return out && ordinal >= 0 && ordinal < CONTEXT_ORDINALS ? init_enter_device(ordinal, &m->device) : init_enter();
}

/* context_begin runs before the driver's call. It returns CUDA_SUCCESS, or the error that the
 * call must return. */
static int context_begin(struct context_making *m, CUdevice ordinal, CUcontext *out)
{
	int refused = context_enter_making(m, CONTEXT_OWN, ordinal, out);
	if (refused || !m->device)
		return refused;
	if (context_decide(m))
		nvml_start();
	return context_charge(m);
}

/* context_end runs after the driver's call. result is the driver's result, or the refusal. It
 * returns the result of the hooked call. */
static int context_end(struct context_making *m, int result, void **out)
{
	if (!m->device)
		return result;
	int refused = m->refused ? result : context_made(m, result == CUDA_SUCCESS ? *out : NULL);
	if (!refused) {
		full_log_context(m->device->index, result);
		return result;
	}
	*out = NULL;
	overhead_refresh(m->device);
	return refused;
}

int cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device)
{
	struct context_making m;
	return charge_waiting(context_end(&m, REAL_UNLESS(context_begin(&m, device, out), cuCtxCreate, out, flags, device), (void **)out));
}

int cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
	struct context_making m;
	return charge_waiting(
		context_end(&m, REAL_UNLESS(context_begin(&m, device, out), cuCtxCreate_v2, out, flags, device), (void **)out));
}

int cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice device)
{
	struct context_making m;
	return charge_waiting(context_end(
		&m, REAL_UNLESS(context_begin(&m, device, out), cuCtxCreate_v3, out, affinity, count, flags, device), (void **)out));
}

int cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice device)
{
	struct context_making m;
	return charge_waiting(
		context_end(&m, REAL_UNLESS(context_begin(&m, device, out), cuCtxCreate_v4, out, params, flags, device), (void **)out));
}

static bool context_primary_active(CUdevice device)
{
	unsigned flags;
	int active = 0;
	return REAL(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && active;
}

/* context_lock_primary takes LOCK_PRIMARY_CONTEXT of the device, and returns whether the
 * primary context is active. If the context to be made needs NVML, it starts NVML before it
 * takes the lock. */
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

static int context_retain_primary(CUcontext *out, CUdevice device)
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

int cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) { return charge_waiting(context_retain_primary(out, device)); }

/* context_primary_ended updates our state for a primary context that was active and is not any
 * more. It was not hidden before the driver's call: after a release other threads may still use
 * it, and must find it. Its handle is reused only by a retain, which waits for the lock. The
 * caller holds LOCK_PRIMARY_CONTEXT, under overhead_pause. since is the one in struct
 * context_end. */
static void context_primary_ended(struct context_device *p, struct device *d, uint64_t since)
{
	struct context_end e;
	context_end_begin(&e, p->primary, p->primary);
	e.since = since;
	context_ended(&e, d, false);
	p->primary = NULL;
}

/* context_release_primary releases or resets a primary context, by one of four driver calls,
 * and returns the driver's result. */
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

/* context_green_made_primary divides the charge of a green context that made the primary one
 * active, which may live longer. The usual cost of a context goes to the primary one. If that
 * is not known, the primary one gets all of it, unconfirmed, until the green context ends and a
 * reading shows its part. The caller holds LOCK_PRIMARY_CONTEXT. */
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

/* context_doubt_primary lets the next reading correct the charge of the primary context, after
 * a green context has ended. The caller holds LOCK_PRIMARY_CONTEXT. */
static void context_doubt_primary(const struct context_device *p, struct device *d)
{
	struct alloc_record cost;
	if (alloc_table_get(&context_costs, (uintptr_t)p->primary, &cost) && cost.flags & RECORD_UNCONFIRMED)
		overhead_doubt(d, RATION_CONTEXT, cost.bytes);
}

/* context_green_made records a green context that was made. It has a CUcontext of its own;
 * memory allocated in that belongs to the primary context. The caller holds
 * LOCK_PRIMARY_CONTEXT. */
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

/* A green context keeps the primary context active. */
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
	/* This may have been the last green context that kept the primary one active. */
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

/* Only the last reference of cuCtxAttach ends a context; then it is not current any more. */
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
