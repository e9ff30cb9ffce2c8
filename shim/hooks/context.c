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

/* context_ended returns all that ended with a context. c is NULL where it is not in the
 * table; cost is its record, whose key is 0 where there is none. */
static void context_ended(struct context *c, struct device *d, const struct alloc_record *cost)
{
	if (c)
		context_remove(c);
	if (cost->key)
		__atomic_fetch_sub(&d->contexts_alive, 1, __ATOMIC_ACQ_REL);
	uint64_t bytes = cost->flags & RECORD_UNCONFIRMED ? overhead_drop_unconfirmed(d, cost->bytes) : cost->bytes;
	/* With a device's last context goes what its pools handed out. */
	if (overhead_device_empty(d))
		pools_emptied(d->index);
	pools_synchronised(d->index);
	pools_sync_charges(RATION_DEVICES);
	graph_sync(d);
	overhead_context_ended(d, bytes);
}

enum context_kind { CONTEXT_OWN, CONTEXT_PRIMARY, CONTEXT_GREEN };

/* A context that is being made: context_decide, context_charge, the driver's call,
 * context_made. A process's first context on a device is charged the cost that the region
 * remembers, before the driver is asked, like any allocation. Where none is remembered,
 * and for all further ones, it is measured afterwards, and undone if it does not fit. */
struct context_making {
	enum context_kind kind;
	struct device *device; /* NULL: not counted */
	bool first;            /* of this process on the device */
	bool pid_unlisted;     /* see nvml_decide_pid */
	uint64_t cost;         /* remembered, in bytes; 0: to be measured */
	struct overhead_reading before;
	struct hostpid_probe probe;
};

/* context_decide decides how the context is charged, and returns whether NVML must be
 * started before, which must not be done under a lock. */
static bool context_decide(struct context_making *m)
{
	struct device *d = m->device;
	/* A green context is part of a device, and does not cost what the first one does. */
	m->first = m->kind != CONTEXT_GREEN && !__atomic_load_n(&d->contexts_alive, __ATOMIC_ACQUIRE);
	m->cost = m->first ? region_context_cost(attach_region(), d->index, d->uuid) : 0;
	return !nvml_tried() && (!m->cost || nvml_pid_undecided() || hostpid_wanted());
}

/* context_charge charges the remembered cost, or reads what there is before: CUDA_SUCCESS,
 * or what the call must return. */
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
	int refused = m->cost ? charge_add(d->index, RATION_CONTEXT, m->cost, false) : CUDA_SUCCESS;
	if (refused) {
		hostpid_leave(&m->probe);
		return refused;
	}
	if (!m->cost) {
		m->before = overhead_read_before(d);
		m->before.first_context = m->first;
	} else if (nvml_pid_undecided()) {
		m->pid_unlisted = nvml_pid_unlisted(&d->nvml);
	}
	return CUDA_SUCCESS;
}

/* context_made completes the charge. handle is NULL where the driver made none. It returns
 * CUDA_SUCCESS, or what the call must return after undoing the context. */
static int context_made(struct context_making *m, void *handle)
{
	struct device *d = m->device;
	struct alloc_record r = {.key = (uintptr_t)handle, .bytes = m->cost, .device = (uint8_t)d->index};
	int refused = CUDA_SUCCESS;
	hostpid_end(&m->probe, d);
	if (!handle) {
		charge_return(d->index, RATION_CONTEXT, m->cost);
	} else if (m->cost) {
		r.flags = RECORD_UNCONFIRMED;
		overhead_add_unconfirmed(d, m->cost);
		if (m->pid_unlisted)
			nvml_decide_pid(&d->nvml);
	} else {
		refused = overhead_charge_growth(&m->before, RATION_CONTEXT, &r.bytes);
	}
	hostpid_leave(&m->probe); /* now that others need not measure */
	if (!handle || refused)
		return refused;
	__atomic_fetch_add(&d->contexts_alive, 1, __ATOMIC_ACQ_REL);
	alloc_table_put(&context_costs, &r);
	overhead_watch(d);
	log_info("context %p on device %d %s %llu bytes", handle, d->ordinal, m->cost ? "is charged the usual" : "takes", (unsigned long long)r.bytes);
	return CUDA_SUCCESS;
}

/* context_begin is what precedes the driver's call: CUDA_SUCCESS, or what the call must
 * return. */
static int context_begin(struct context_making *m, enum context_kind kind, CUdevice ordinal)
{
	*m = (struct context_making){.kind = kind};
	int refused = init_enter_device(ordinal, &m->device);
	if (refused || !m->device)
		return refused;
	if (context_decide(m))
		nvml_start();
	refused = context_charge(m);
	if (refused)
		m->device = NULL;
	return refused;
}

/* context_end is what follows it, with the driver's answer. Where the job has no room for
 * the context, it is undone. */
static int context_end(struct context_making *m, int result, void **out)
{
	int refused = m->device ? context_made(m, result == CUDA_SUCCESS ? *out : NULL) : CUDA_SUCCESS;
	if (!refused)
		return result;
	switch (m->kind) {
	case CONTEXT_OWN: REAL(cuCtxDestroy_v2, *out); break;
	case CONTEXT_PRIMARY: REAL(cuDevicePrimaryCtxRelease_v2, m->device->ordinal); break;
	case CONTEXT_GREEN: REAL(cuGreenCtxDestroy, *out); break;
	}
	*out = NULL;
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

int cuGreenCtxCreate(CUgreenCtx *out, void *desc, CUdevice device, unsigned flags)
{
	struct context_making m;
	return context_end(&m, REAL_UNLESS(context_begin(&m, CONTEXT_GREEN, device), cuGreenCtxCreate, out, desc, device, flags), (void **)out);
}

int cuGreenCtxDestroy(CUgreenCtx green)
{
	struct alloc_record cost = context_take(&context_costs, (uintptr_t)green);
	int result = REAL(cuGreenCtxDestroy, green);
	if (alloc_table_freed(&context_costs, &cost, result == CUDA_SUCCESS) && device_at(cost.device))
		context_ended(NULL, device_at(cost.device), &cost);
	return result;
}

static int context_destroy(CUcontext handle, enum ration_call call)
{
	/* Both calls have the same parameters. */
	real_cuCtxDestroy real = (real_cuCtxDestroy)ration_real(call);
	if (!real)
		return ration_absent(call);
	struct context *c = attach_on() ? context_hide(handle) : NULL;
	struct alloc_record cost = context_take(&context_costs, (uintptr_t)handle);
	int result = real(handle);
	bool known = alloc_table_freed(&context_costs, &cost, result == CUDA_SUCCESS);
	if (result != CUDA_SUCCESS) {
		context_unhide(c, handle);
		return result;
	}
	struct device *d = c ? c->device : known ? device_at(cost.device) : NULL;
	if (d)
		context_ended(c, d, &cost);
	return result;
}

int cuCtxDestroy(CUcontext context) { return context_destroy(context, CALL_cuCtxDestroy); }
int cuCtxDestroy_v2(CUcontext context) { return context_destroy(context, CALL_cuCtxDestroy_v2); }

/* Only the last of cuCtxAttach's references ends a context, which is then no longer
 * current. */
int cuCtxDetach(CUcontext context)
{
	CUcontext current = NULL;
	int result = REAL(cuCtxDetach, context);
	struct context *c = result == CUDA_SUCCESS && attach_on() ? context_find(context) : NULL;
	if (!c || (REAL(cuCtxGetCurrent, &current) == CUDA_SUCCESS && current == context))
		return result;
	context_hide(context);
	struct alloc_record cost = context_take(&context_costs, (uintptr_t)context);
	context_ended(c, c->device, &cost);
	return result;
}

/* Primary contexts, by ordinal. The lock makes one step of asking whether the context is
 * active, the driver's call and what follows from both: of two threads, one that retains
 * it and one that resets it, each finds it as the other left it. The child of a fork,
 * where it may have been left held, has no CUDA to come here with. */
enum { CONTEXT_PRIMARIES = 64 };
static struct context_primary {
	mutex lock;       /* LOCK_PRIMARY_CONTEXT, over the rest */
	CUcontext handle; /* while it is active */
} context_primaries[CONTEXT_PRIMARIES];

static bool context_primary_active(CUdevice device)
{
	unsigned flags;
	int active = 0;
	return REAL(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && active;
}

int cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
	struct context_making m = {.kind = CONTEXT_PRIMARY};
	int denied = device < CONTEXT_PRIMARIES ? init_enter_device(device, &m.device) : init_enter();
	if (denied || !m.device)
		return REAL_UNLESS(denied, cuDevicePrimaryCtxRetain, out, device);
	struct context_primary *p = &context_primaries[device];
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
		p->handle = *out;
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
	if (!attach_on() || device >= CONTEXT_PRIMARIES || device_of(device, &d) != 1)
		return real(device);
	struct context_primary *p = &context_primaries[device];
	mutex_lock(&p->lock, LOCK_PRIMARY_CONTEXT);
	bool active = context_primary_active(device);
	struct context *c = active && reset ? context_hide(p->handle) : NULL;
	int result = real(device);
	if (active && result == CUDA_SUCCESS && !context_primary_active(device)) {
		struct alloc_record cost = context_take(&context_costs, (uintptr_t)p->handle);
		context_ended(c ? c : context_hide(p->handle), d, &cost);
	} else {
		context_unhide(c, p->handle);
	}
	mutex_unlock(&p->lock);
	return result;
}

int cuDevicePrimaryCtxRelease(CUdevice device) { return context_release_primary(device, CALL_cuDevicePrimaryCtxRelease, false); }
int cuDevicePrimaryCtxRelease_v2(CUdevice device) { return context_release_primary(device, CALL_cuDevicePrimaryCtxRelease_v2, false); }
int cuDevicePrimaryCtxReset(CUdevice device) { return context_release_primary(device, CALL_cuDevicePrimaryCtxReset, true); }
int cuDevicePrimaryCtxReset_v2(CUdevice device) { return context_release_primary(device, CALL_cuDevicePrimaryCtxReset_v2, true); }
