#include "hooks/context.h"

#include "charge.h"
#include "nvml.h"
#include "overhead.h"
#include "hooks/graph.h"
#include "hooks.h"
#include "hostpid.h"
#include "attach.h"
#include "log.h"
#include "hooks/pool.h"

enum { MOST = 254, NONE = 0 };

/* The contexts of this process. An entry's fields are written before its handle,
 * which is how it is found, and its number is not given out again before all that
 * ended with it is gone. */
static struct entry {
	CUcontext handle;
	struct device *device;
	bool used;
} contexts[MOST];

static unsigned high;
static mutex lock; /* over used, high and adding */

struct alloc_table addresses, arrays, modules;
static struct alloc_table costs; /* what contexts were charged, by their handles */

static struct entry *find(CUcontext c)
{
	unsigned n = __atomic_load_n(&high, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < n; i++)
		/* Acquire: pairs with the release in add. */
		if (__atomic_load_n(&contexts[i].handle, __ATOMIC_ACQUIRE) == c)
			return &contexts[i];
	return NULL;
}

static uint8_t number(const struct entry *e) { return (uint8_t)(e - contexts + 1); }

static struct entry *add(CUcontext c, struct device *d)
{
	struct entry *e = NULL;
	mutex_lock(&lock);
	if (!(e = find(c))) {
		for (unsigned i = 0; i < MOST && !e; i++)
			if (!contexts[i].used)
				e = &contexts[i];
		if (e) {
			e->used = true;
			e->device = d;
			__atomic_store_n(&e->handle, c, __ATOMIC_RELEASE);
			if ((unsigned)(e - contexts) >= high)
				__atomic_store_n(&high, (unsigned)(e - contexts) + 1, __ATOMIC_RELEASE);
		}
	}
	mutex_unlock(&lock);
	return e;
}

static int first_sight(CUcontext c, struct alloc_target *p)
{
	CUdevice ordinal;
	if (REAL(cuCtxGetDevice, &ordinal) != CUDA_SUCCESS)
		return 0;
	int found = device_of(ordinal, &p->device);
	if (found <= 0)
		return found;
	struct entry *e = add(c, p->device);
	p->context = e ? number(e) : NONE;
	overhead_watch(p->device); /* one that was made before we came */
	return 1;
}

int context_target(struct alloc_target *p)
{
	CUcontext c = NULL;
	if (REAL(cuCtxGetCurrent, &c) != CUDA_SUCCESS || !c)
		return 0;
	struct entry *e = find(c);
	if (unlikely(!e))
		return first_sight(c, p);
	p->device = e->device;
	p->context = number(e);
	return 1;
}

bool context_target_of(CUcontext c, struct alloc_target *p)
{
	struct entry *e = find(c);
	if (unlikely(!e)) {
		CUcontext popped;
		if (REAL(cuCtxPushCurrent_v2, c) != CUDA_SUCCESS)
			return false;
		bool seen = first_sight(c, p) == 1;
		REAL(cuCtxPopCurrent_v2, &popped);
		return seen;
	}
	p->device = e->device;
	p->context = number(e);
	return true;
}

void context_gone(const struct alloc_record *r, unsigned kind)
{
	if (r->flags & RECORD_MANAGED)
		charge_mark_absent(r->device, r->bytes, false);
	charge_return(r->device, kind, r->bytes);
}

void context_keep(struct alloc_table *t, const struct alloc_record *r, unsigned kind)
{
	struct alloc_record old;
	if (r->flags & RECORD_MANAGED)
		charge_mark_absent(r->device, r->bytes, true);
	if (unlikely(!alloc_table_replace(t, r, &old)))
		log_warn("no memory to remember an allocation: it stays counted until this process ends");
	/* Of a context that has ended: the driver was faster than our sweep. */
	if (unlikely(old.key)) {
		if (old.pool)
			pool_forget(&old);
		else
			context_gone(&old, kind);
	}
}

struct sweep {
	uint8_t context;
	unsigned kind;
};

static bool lives_on(struct alloc_record *r, void *arg)
{
	const struct sweep *s = arg;
	/* A pool's memory outlives the context it was asked for in. */
	if (r->context != s->context || r->pool)
		return true;
	context_gone(r, s->kind);
	return false;
}

/* hide takes a context out of sight before the driver is asked to end it: its
 * handle may be another's as soon as it has. */
static struct entry *hide(CUcontext c)
{
	struct entry *e = c ? find(c) : NULL;
	if (e)
		__atomic_store_n(&e->handle, NULL, __ATOMIC_RELEASE);
	return e;
}

static void unhide(struct entry *e, CUcontext c)
{
	if (e)
		__atomic_store_n(&e->handle, c, __ATOMIC_RELEASE);
}

/* What a context was charged, by its handle. One whose cost was remembered, and not
 * measured, is marked. */
#define RECORD_GUESSED 1u

/* ended gives back all that ended with a context. r is what its making took; its key
 * is 0 where that is not known. */
static void ended(struct entry *e, struct device *d, const struct alloc_record *r)
{
	if (e) {
		struct sweep s = {number(e), RATION_DATA};
		alloc_table_sweep(&addresses, lives_on, &s);
		alloc_table_sweep(&arrays, lives_on, &s);
		s.kind = RATION_MODULE;
		alloc_table_sweep(&modules, lives_on, &s);
		mutex_lock(&lock);
		e->used = false;
		mutex_unlock(&lock);
	}
	if (r->key)
		__atomic_fetch_sub(&d->living, 1, __ATOMIC_ACQ_REL);
	uint64_t cost = r->flags & RECORD_GUESSED ? overhead_unconfirmed_ended(d, r->bytes) : r->bytes;
	/* With a device's last context goes what its pools handed out. */
	if (overhead_nothing_left(d))
		pools_emptied(d->index);
	pools_synchronised(d->index);
	pools_sync_charges(RATION_DEVICES);
	graph_sync(d);
	overhead_context_ended(d, RATION_CONTEXT, cost);
}

/* Making: decide, begin, made. A process's first context on a device is charged what
 * the region remembers of others' before the driver is asked, like any allocation.
 * Where nobody has measured one yet, and for all further ones, the driver's figure
 * tells afterwards what it took, and it is undone if that does not fit. */

struct making {
	struct device *device;
	bool first, unlisted;
	uint64_t cost; /* remembered; 0: to be measured */
	struct overhead_reading before;
	struct hostpid pid;
};

/* decide says how a context is to be made, and whether NVML must be started before:
 * nvml_start, which must not be called under a lock. Parts of a device do not cost
 * what it does. */
static bool decide(struct making *m, bool part)
{
	m->first = !part && !__atomic_load_n(&m->device->living, __ATOMIC_ACQUIRE);
	m->cost = m->first ? region_context_cost(attach_region(), m->device->index, m->device->id) : 0;
	return !nvml_tried() && (!m->cost || nvml_pid_undecided() || hostpid_wanted());
}

static int begin(struct making *m)
{
	/* Whoever does not know himself in the driver's list measures one at a time, or what
	 * all of them take would be everybody's. After the first, the others know. */
	bool alone = m->first && !m->cost && !nvml_pid_known();
	hostpid_begin(&m->pid, m->device, alone);
	if (alone)
		m->cost = region_context_cost(attach_region(), m->device->index, m->device->id);
	/* A cost that does not even fit where nobody holds anything may be wrong, and would
	 * keep everybody out who could find that out. */
	if (m->cost && !region_used(attach_region(), m->device->index) && charge_would_refuse(m->device->index, m->cost))
		m->cost = 0;
	int refused = m->cost ? charge_add(m->device->index, RATION_CONTEXT, m->cost, false) : CUDA_SUCCESS;
	if (refused) {
		hostpid_leave(&m->pid);
		return refused;
	}
	if (!m->cost) {
		m->before = overhead_begin(m->device);
		m->before.first = m->first;
	} else if (nvml_pid_undecided()) {
		m->unlisted = nvml_pid_unlisted(m->device);
	}
	return CUDA_SUCCESS;
}

/* made ends it; handle is NULL where the driver said no. */
static int made(struct making *m, void *handle)
{
	struct device *d = m->device;
	struct alloc_record r = {.key = (uintptr_t)handle, .bytes = m->cost, .device = (uint8_t)d->index};
	int refused = CUDA_SUCCESS;
	hostpid_end(&m->pid, d);
	if (!handle) {
		charge_return(d->index, RATION_CONTEXT, m->cost);
	} else if (m->cost) {
		r.flags = RECORD_GUESSED;
		overhead_unconfirmed(d, m->cost);
		if (m->unlisted)
			nvml_decide_pid(d);
	} else {
		refused = overhead_charge(&m->before, RATION_CONTEXT, &r.bytes);
	}
	hostpid_leave(&m->pid); /* now that others need not measure */
	if (!handle || refused)
		return refused;
	__atomic_fetch_add(&d->living, 1, __ATOMIC_ACQ_REL);
	alloc_table_put(&costs, &r);
	overhead_watch(d);
	log_info("context %p on device %d %s %llu bytes", handle, d->ordinal, m->cost ? "is charged the usual" : "takes", (unsigned long long)r.bytes);
	return CUDA_SUCCESS;
}

/* MAKE makes a context, and ends it again by undo where the job has no room for it. */
#define MAKE(symbol, part, ordinal, out, undo, ...)                                                                    \
	do {                                                                                                           \
		struct making m_ = {.device = NULL};                                                                   \
		ENTER(symbol, __VA_ARGS__);                                                                            \
		int found_ = device_of(ordinal, &m_.device);                                                           \
		if (found_ <= 0)                                                                                       \
			return found_ < 0 ? CUDA_ERROR_OPERATING_SYSTEM : REAL(symbol, __VA_ARGS__);                   \
		if (decide(&m_, part))                                                                                 \
			nvml_start();                                                                                \
		int refused_ = begin(&m_);                                                                             \
		if (refused_)                                                                                          \
			return refused_;                                                                               \
		int result_ = REAL(symbol, __VA_ARGS__);                                                               \
		refused_ = made(&m_, result_ == CUDA_SUCCESS ? *(out) : NULL);                                         \
		if (refused_) {                                                                                        \
			undo;                                                                                          \
			*(out) = NULL;                                                                                 \
			overhead_refresh(m_.device);                                                                      \
		}                                                                                                      \
		return refused_ ? refused_ : result_;                                                                  \
	} while (0)

#define UNDO_CREATE REAL(cuCtxDestroy_v2, *out)

int cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device)
{
	MAKE(cuCtxCreate, false, device, out, UNDO_CREATE, out, flags, device);
}

int cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
	MAKE(cuCtxCreate_v2, false, device, out, UNDO_CREATE, out, flags, device);
}

int cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice device)
{
	MAKE(cuCtxCreate_v3, false, device, out, UNDO_CREATE, out, affinity, count, flags, device);
}

int cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice device)
{
	MAKE(cuCtxCreate_v4, false, device, out, UNDO_CREATE, out, params, flags, device);
}

int cuGreenCtxCreate(CUgreenCtx *out, void *desc, CUdevice device, unsigned flags)
{
	MAKE(cuGreenCtxCreate, true, device, out, REAL(cuGreenCtxDestroy, *out), out, desc, device, flags);
}

int cuGreenCtxDestroy(CUgreenCtx green)
{
	struct alloc_record r = {.key = 0};
	LEAVE_ALONE(cuGreenCtxDestroy, green);
	bool known = alloc_table_take(&costs, (uintptr_t)green, &r);
	int result = REAL(cuGreenCtxDestroy, green);
	if (result != CUDA_SUCCESS && known)
		alloc_table_put(&costs, &r);
	if (result == CUDA_SUCCESS && known && device_at(r.device))
		ended(NULL, device_at(r.device), &r);
	return result;
}

static int destroy(CUcontext c, enum ration_call call)
{
	/* Both have the same parameters. */
	real_cuCtxDestroy real = (real_cuCtxDestroy)ration_real(call);
	if (!real)
		return ration_absent(call);
	struct alloc_record r = {.key = 0};
	struct entry *e = hide(c);
	bool known = alloc_table_take(&costs, (uintptr_t)c, &r);
	int result = real(c);
	if (result != CUDA_SUCCESS) {
		unhide(e, c);
		if (known)
			alloc_table_put(&costs, &r);
		return result;
	}
	struct device *d = e ? e->device : known ? device_at(r.device) : NULL;
	if (d)
		ended(e, d, &r);
	return result;
}

int cuCtxDestroy(CUcontext c)
{
	LEAVE_ALONE(cuCtxDestroy, c);
	return destroy(c, CALL_cuCtxDestroy);
}

int cuCtxDestroy_v2(CUcontext c)
{
	LEAVE_ALONE(cuCtxDestroy_v2, c);
	return destroy(c, CALL_cuCtxDestroy_v2);
}

/* Only the last of cuCtxAttach's references ends a context; the driver's figure
 * tells whether this was it. */
int cuCtxDetach(CUcontext c)
{
	LEAVE_ALONE(cuCtxDetach, c);
	int result = REAL(cuCtxDetach, c);
	struct entry *e = find(c);
	CUcontext current = NULL;
	if (result != CUDA_SUCCESS || !e || (REAL(cuCtxGetCurrent, &current) == CUDA_SUCCESS && current == c))
		return result;
	struct alloc_record r = {.key = 0};
	hide(c);
	alloc_table_take(&costs, (uintptr_t)c, &r);
	ended(e, e->device, &r);
	return result;
}

/* Primary contexts. */

/* What a device's is, and a lock that makes one step of whether it is active, the
 * driver's call and what follows from both: of two threads, one that retains it and
 * one that resets it, each finds it as the other left it. Nothing under it waits for
 * a thread that could want it, and the child of a fork, where it may have been left
 * held, has no CUDA to come here with. By ordinal. */
enum { PRIMARIES = 64 };
static struct primary {
	mutex lock;
	CUcontext handle;
} primaries[PRIMARIES];

static bool active(CUdevice device)
{
	unsigned flags;
	int is = 0;
	return REAL(cuDevicePrimaryCtxGetState, device, &flags, &is) == CUDA_SUCCESS && is;
}

/* revive makes a primary context that is not there. Under its lock. */
static int revive(struct making *m, CUcontext *out, CUdevice device)
{
	int refused = begin(m);
	if (refused)
		return refused;
	int result = REAL(cuDevicePrimaryCtxRetain, out, device);
	refused = made(m, result == CUDA_SUCCESS ? *out : NULL);
	if (refused) {
		REAL(cuDevicePrimaryCtxRelease_v2, device);
		*out = NULL;
		overhead_refresh(m->device);
	}
	return refused ? refused : result;
}

int cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
	struct making m = {.device = NULL};
	ENTER(cuDevicePrimaryCtxRetain, out, device);
	int found = device < PRIMARIES ? device_of(device, &m.device) : 0;
	if (found <= 0)
		return found < 0 ? CUDA_ERROR_OPERATING_SYSTEM : REAL(cuDevicePrimaryCtxRetain, out, device);
	struct primary *p = &primaries[device];
	bool is;
	mutex_lock(&p->lock);
	while (!(is = active(device)) && decide(&m, false)) {
		mutex_unlock(&p->lock);
		nvml_start();
		mutex_lock(&p->lock);
	}
	int result = is ? REAL(cuDevicePrimaryCtxRetain, out, device) : revive(&m, out, device);
	if (result == CUDA_SUCCESS)
		p->handle = *out;
	mutex_unlock(&p->lock);
	return result;
}

/* A release or a reset: what is still active afterwards has not ended. A reset ends
 * it for sure, so it goes out of sight first. A release may leave it to others, who
 * must go on finding it; its handle comes back only by a retain, which waits. */
static int give_up(CUdevice device, enum ration_call call, bool reset)
{
	/* All four have the same parameters. */
	real_cuDevicePrimaryCtxReset real = (real_cuDevicePrimaryCtxReset)ration_real(call);
	struct device *d;
	if (!real)
		return ration_absent(call);
	if (device >= PRIMARIES || device_of(device, &d) != 1)
		return real(device);
	struct primary *p = &primaries[device];
	mutex_lock(&p->lock);
	bool was = active(device);
	struct entry *e = was && reset ? hide(p->handle) : NULL;
	int result = real(device);
	if (was && result == CUDA_SUCCESS && !active(device)) {
		struct alloc_record r = {.key = 0};
		alloc_table_take(&costs, (uintptr_t)p->handle, &r);
		ended(e ? e : hide(p->handle), d, &r);
	} else {
		unhide(e, p->handle);
	}
	mutex_unlock(&p->lock);
	return result;
}

#define GIVE_UP(symbol, reset)                                                                                         \
	int symbol(CUdevice device)                                                                                    \
	{                                                                                                              \
		LEAVE_ALONE(symbol, device);                                                                           \
		return give_up(device, CALL_##symbol, reset);                                                          \
	}

GIVE_UP(cuDevicePrimaryCtxRelease, false)
GIVE_UP(cuDevicePrimaryCtxRelease_v2, false)
GIVE_UP(cuDevicePrimaryCtxReset, true)
GIVE_UP(cuDevicePrimaryCtxReset_v2, true)
