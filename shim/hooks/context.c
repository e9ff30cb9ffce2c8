/* Making and ending contexts. docs/overhead.md explains what they are charged. */
#include "charge.h"
#include "hooks/context_table.h"
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

/* context_take_cost takes a context's record before the driver is asked to end it, and
 * context_put_cost puts it back where the driver said no. The record's bytes are what is
 * still charged. */
static struct alloc_record context_take_cost(void *handle)
{
	struct alloc_record cost = context_take(&context_costs, (uintptr_t)handle);
	struct device *d = cost.key ? device_at(cost.device) : NULL;
	if (d && cost.flags & RECORD_UNCONFIRMED)
		cost.bytes = overhead_drop_unconfirmed(d, RATION_CONTEXT, cost.bytes);
	if (cost.key)
		charge_leaving(cost.device, cost.bytes);
	return cost;
}

static void context_put_cost(const struct alloc_record *cost)
{
	if (!cost->key)
		return;
	charge_arrived(cost->device, cost->bytes);
	alloc_table_put(&context_costs, cost);
}

/* context_ended returns all that ended with a context, under overhead_pause. c is NULL
 * where it is not in the table; cost is its record, whose key is 0 where there is none. */
static void context_ended(struct context *c, struct device *d, const struct alloc_record *cost)
{
	if (c)
		context_remove(c);
	if (cost->key)
		__atomic_fetch_sub(&d->contexts_alive, 1, __ATOMIC_ACQ_REL);
	/* With a device's last context goes what its pools handed out. */
	if (overhead_device_empty(d))
		pools_emptied(d->index);
	pools_synchronised(d->index);
	pools_sync_charges(RATION_DEVICES);
	graph_sync(d);
	overhead_context_ended(d, cost->bytes);
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
	bool first;            /* of this process on the device */
	bool pid_unlisted;     /* see nvml_decide_pid */
	bool measured;         /* its cost is not known */
	bool refused;          /* before the driver was asked */
	uint64_t cost;         /* charged before, in bytes */
	struct overhead_making making;
	struct hostpid_probe probe;
};

/* context_decide decides how the context is charged, and returns whether NVML must be
 * started before, which must not be done under a lock. */
static bool context_decide(struct context_making *m)
{
	struct device *d = m->device;
	m->first = !__atomic_load_n(&d->contexts_alive, __ATOMIC_ACQUIRE);
	/* A green context is part of a device, and costs little beside another one. */
	bool beside = m->kind == CONTEXT_GREEN && !m->first;
	m->cost = beside ? 0 : region_context_cost(attach_region(), d->index, d->uuid);
	uint64_t further = load_relaxed(&d->further_cost);
	m->measured = !m->cost || (!m->first && !further) || m->kind == CONTEXT_GREEN;
	if (!m->first && !beside && further)
		m->cost = further;
	return !nvml_tried() && (m->measured || nvml_pid_undecided() || hostpid_wanted());
}

static void context_stop_measuring(struct context_making *m)
{
	if (!m->measured)
		return;
	overhead_end(&m->making);
	mutex_unlock(&context_devices[m->device->ordinal].making);
}

/* context_charge charges the cost or the estimate, and begins to measure where that is
 * needed: CUDA_SUCCESS, or what the call must return. */
static int context_charge(struct context_making *m)
{
	struct device *d = m->device;
	/* Processes that do not know their PID in the driver's list measure one at a time, or
	 * each would measure what all of them take. After the first, the others know the cost. */
	bool alone = m->first && !m->cost && !nvml_pid_known();
	hostpid_begin(&m->probe, d, alone);
	if (alone)
		m->cost = region_context_cost(attach_region(), d->index, d->uuid);
	/* A cost that does not fit even where nothing is held may be wrong, and would refuse
	 * every process that could find that out. */
	if (m->cost && !region_used(attach_region(), d->index) && charge_would_refuse(d->index, m->cost))
		m->cost = 0;
	m->measured = m->measured || !m->cost;
	if (m->measured) {
		mutex_lock(&context_devices[d->ordinal].making, LOCK_CONTEXT_MAKING);
		overhead_begin(&m->making, d, RATION_CONTEXT);
		m->making.first_context = m->first && !m->cost && m->kind != CONTEXT_GREEN;
	} else if (nvml_pid_undecided()) {
		m->pid_unlisted = nvml_pid_unlisted(&d->nvml);
	}
	int refused = m->cost ? charge_add(d->index, RATION_CONTEXT, m->cost, m->measured) : CUDA_SUCCESS;
	if (!refused)
		return CUDA_SUCCESS;
	context_stop_measuring(m);
	hostpid_leave(&m->probe);
	return refused;
}

/* context_measured completes the charge of a context of unknown cost. bytes is what was
 * charged in all. */
static int context_measured(struct context_making *m, bool made, uint64_t *bytes)
{
	struct device *d = m->device;
	uint64_t more = 0;
	int refused = made ? overhead_charge(&m->making, &more) : CUDA_SUCCESS;
	uint64_t surplus = m->making.surplus_bytes < m->cost ? m->making.surplus_bytes : m->cost;
	if (made && surplus) {
		charge_leaving(d->index, surplus);
		charge_return(d->index, RATION_CONTEXT, surplus);
		m->cost -= surplus;
	}
	*bytes = m->cost + more;
	if (made && !refused && !m->first && m->kind == CONTEXT_OWN && m->making.exact)
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

/* context_made completes the charge. handle is NULL where the driver made none. It returns
 * CUDA_SUCCESS, or what the call must return: the context has been undone. */
static int context_made(struct context_making *m, void *handle)
{
	struct device *d = m->device;
	struct alloc_record r = {.key = (uintptr_t)handle, .bytes = m->cost, .device = (uint8_t)d->index};
	int refused = CUDA_SUCCESS;
	hostpid_end(&m->probe, d);
	if (handle)
		charge_arrived(d->index, m->cost);
	else
		charge_return(d->index, RATION_CONTEXT, m->cost);
	if (m->measured) {
		refused = context_measured(m, handle, &r.bytes);
		if (refused)
			context_undo(m, handle);
	}
	context_stop_measuring(m);
	bool unconfirmed = handle && !refused && m->cost && !(m->measured && m->making.exact);
	if (unconfirmed)
		overhead_add_unconfirmed(d, RATION_CONTEXT, m->cost);
	if (unconfirmed || (m->measured && !m->making.exact))
		r.flags = RECORD_UNCONFIRMED;
	if (handle && m->pid_unlisted)
		nvml_decide_pid(&d->nvml);
	hostpid_leave(&m->probe); /* now that others need not measure */
	if (!handle || refused)
		return refused;
	__atomic_fetch_add(&d->contexts_alive, 1, __ATOMIC_ACQ_REL);
	alloc_table_put(&context_costs, &r);
	overhead_watch(d);
	log_info("context %p on device %d %s %llu bytes", handle, d->ordinal, m->measured ? "takes" : "is charged the usual", (unsigned long long)r.bytes);
	return CUDA_SUCCESS;
}

/* context_begin is what precedes the driver's call: CUDA_SUCCESS, or what the call must
 * return. */
static int context_begin(struct context_making *m, enum context_kind kind, CUdevice ordinal)
{
	*m = (struct context_making){.kind = kind};
	int refused = ordinal >= 0 && ordinal < CONTEXT_ORDINALS ? init_enter_device(ordinal, &m->device) : init_enter();
	if (refused || !m->device)
		return refused;
	if (context_decide(m))
		nvml_start();
	refused = context_charge(m);
	if (refused) {
		m->device = NULL;
		m->refused = true;
	}
	return refused;
}

/* context_end is what follows it, with the driver's answer. */
static int context_end(struct context_making *m, int result, void **out)
{
	int refused = m->device ? context_made(m, result == CUDA_SUCCESS ? *out : NULL) : CUDA_SUCCESS;
	if (refused || (m->refused && out))
		*out = NULL;
	if (!refused)
		return result;
	overhead_refresh(m->device);
	return refused;
}

int cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device)
{
	struct context_making m;
	return context_end(&m, REAL_UNLESS(context_begin(&m, CONTEXT_OWN, device), cuCtxCreate, out, flags, device), (void **)out);
}

int cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
	struct context_making m;
	return context_end(&m, REAL_UNLESS(context_begin(&m, CONTEXT_OWN, device), cuCtxCreate_v2, out, flags, device), (void **)out);
}

int cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice device)
{
	struct context_making m;
	return context_end(&m, REAL_UNLESS(context_begin(&m, CONTEXT_OWN, device), cuCtxCreate_v3, out, affinity, count, flags, device), (void **)out);
}

int cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice device)
{
	struct context_making m;
	return context_end(&m, REAL_UNLESS(context_begin(&m, CONTEXT_OWN, device), cuCtxCreate_v4, out, params, flags, device), (void **)out);
}

static bool context_primary_active(CUdevice device)
{
	unsigned flags;
	int active = 0;
	return REAL(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && active;
}

/* context_primary_ended is for a primary context that was active and is no longer. Under
 * its lock and overhead_pause. hidden is the context, if it was hidden before. */
static void context_primary_ended(struct context_device *p, struct device *d, struct context *hidden)
{
	struct alloc_record cost = context_take_cost(p->primary);
	context_ended(hidden ? hidden : context_hide(p->primary), d, &cost);
	p->primary = NULL;
}

/* context_green_made_primary is for a green context that made the primary one active, which
 * may outlive it: what a context usually costs is the primary one's. Under its lock. */
static void context_green_made_primary(struct context_device *p, struct device *d, CUgreenCtx green)
{
	struct alloc_record cost = context_take(&context_costs, (uintptr_t)green), rest = cost;
	if (!cost.key || REAL(cuDevicePrimaryCtxRetain, &p->primary, d->ordinal) != CUDA_SUCCESS) {
		alloc_table_put(&context_costs, &cost);
		return;
	}
	REAL(cuDevicePrimaryCtxRelease_v2, d->ordinal);
	uint64_t usual = region_context_cost(attach_region(), d->index, d->uuid);
	cost.key = (uintptr_t)p->primary;
	cost.bytes = usual && usual < cost.bytes ? usual : cost.bytes;
	rest.bytes -= cost.bytes;
	alloc_table_put(&context_costs, &cost);
	alloc_table_put(&context_costs, &rest);
	__atomic_fetch_add(&d->contexts_alive, 1, __ATOMIC_ACQ_REL);
}

/* A green context holds the primary context, which it makes active, and has a CUcontext of
 * its own, with which its allocations end. */
int cuGreenCtxCreate(CUgreenCtx *out, void *desc, CUdevice device, unsigned flags)
{
	struct context_making m;
	struct context_device *p = device >= 0 && device < CONTEXT_ORDINALS && attach_on() ? &context_devices[device] : NULL;
	if (p)
		mutex_lock(&p->lock, LOCK_PRIMARY_CONTEXT);
	bool active = p && context_primary_active(device);
	int result = REAL_UNLESS(context_begin(&m, CONTEXT_GREEN, device), cuGreenCtxCreate, out, desc, device, flags);
	result = context_end(&m, result, (void **)out);
	if (m.device && !active && result == CUDA_SUCCESS)
		context_green_made_primary(p, m.device, *out);
	if (p)
		mutex_unlock(&p->lock);
	return result;
}

int cuGreenCtxDestroy(CUgreenCtx green)
{
	struct alloc_record cost;
	CUcontext handle = NULL;
	struct device *d = attach_on() && alloc_table_get(&context_costs, (uintptr_t)green, &cost) ? device_at(cost.device) : NULL;
	if (!d)
		return REAL(cuGreenCtxDestroy, green);
	struct context_device *p = &context_devices[d->ordinal];
	mutex_lock(&p->lock, LOCK_PRIMARY_CONTEXT);
	overhead_pause(d);
	if (REAL(cuCtxFromGreenCtx, &handle, green) != CUDA_SUCCESS)
		handle = NULL;
	struct context *c = context_hide(handle);
	bool active = context_primary_active(d->ordinal);
	cost = context_take_cost(green);
	int result = REAL(cuGreenCtxDestroy, green);
	if (result == CUDA_SUCCESS) {
		context_ended(c, d, &cost);
		if (active && !context_primary_active(d->ordinal))
			context_primary_ended(p, d, NULL);
	} else {
		context_unhide(c, handle);
		context_put_cost(&cost);
	}
	overhead_resume(d);
	mutex_unlock(&p->lock);
	return result;
}

static int context_destroy(CUcontext handle, enum ration_call call)
{
	/* Both calls have the same parameters. */
	real_cuCtxDestroy real = (real_cuCtxDestroy)ration_real(call);
	if (!real)
		return ration_absent(call);
	struct context *c = attach_on() ? context_hide(handle) : NULL;
	struct alloc_record cost = context_take_cost(handle);
	struct device *d = c ? c->device : cost.key ? device_at(cost.device) : NULL;
	if (d)
		overhead_pause(d);
	int result = real(handle);
	if (result != CUDA_SUCCESS) {
		context_unhide(c, handle);
		context_put_cost(&cost);
	} else if (d) {
		context_ended(c, d, &cost);
	}
	if (d)
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
	struct context *c = attach_on() ? context_find(context) : NULL;
	if (c)
		overhead_pause(c->device);
	int result = REAL(cuCtxDetach, context);
	if (!c)
		return result;
	struct device *d = c->device;
	if (result == CUDA_SUCCESS && (REAL(cuCtxGetCurrent, &current) != CUDA_SUCCESS || current != context)) {
		context_hide(context);
		struct alloc_record cost = context_take_cost(context);
		context_ended(c, d, &cost);
	}
	overhead_resume(d);
	return result;
}

int cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
	struct context_making m = {.kind = CONTEXT_PRIMARY};
	int denied = device >= 0 && device < CONTEXT_ORDINALS ? init_enter_device(device, &m.device) : init_enter();
	if (denied || !m.device)
		return REAL_UNLESS(denied, cuDevicePrimaryCtxRetain, out, device);
	struct context_device *p = &context_devices[device];
	bool active;
	mutex_lock(&p->lock, LOCK_PRIMARY_CONTEXT);
	while (!(active = context_primary_active(device)) && context_decide(&m)) {
		mutex_unlock(&p->lock);
		nvml_start();
		mutex_lock(&p->lock, LOCK_PRIMARY_CONTEXT);
	}
	int refused = active ? CUDA_SUCCESS : context_charge(&m);
	int result = REAL_UNLESS(refused, cuDevicePrimaryCtxRetain, out, device);
	if (!active && !refused)
		result = context_end(&m, result, (void **)out);
	if (result == CUDA_SUCCESS)
		p->primary = *out;
	mutex_unlock(&p->lock);
	return result;
}

/* context_release_primary releases or resets a primary context. A reset ends it for sure,
 * so it is hidden first. A release may leave it to others, who must go on finding it; its
 * handle comes back only by a retain, which waits for the lock. */
static int context_release_primary(CUdevice device, enum ration_call call, bool reset)
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
	struct context *c = active && reset ? context_hide(p->primary) : NULL;
	CUcontext primary = p->primary;
	int result = real(device);
	if (active && result == CUDA_SUCCESS && !context_primary_active(device))
		context_primary_ended(p, d, c);
	else
		context_unhide(c, primary);
	overhead_resume(d);
	mutex_unlock(&p->lock);
	return result;
}

int cuDevicePrimaryCtxRelease(CUdevice device) { return context_release_primary(device, CALL_cuDevicePrimaryCtxRelease, false); }
int cuDevicePrimaryCtxRelease_v2(CUdevice device) { return context_release_primary(device, CALL_cuDevicePrimaryCtxRelease_v2, false); }
int cuDevicePrimaryCtxReset(CUdevice device) { return context_release_primary(device, CALL_cuDevicePrimaryCtxReset, true); }
int cuDevicePrimaryCtxReset_v2(CUdevice device) { return context_release_primary(device, CALL_cuDevicePrimaryCtxReset_v2, true); }
