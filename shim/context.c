#include "context.h"

#include "account.h"
#include "gauge.h"
#include "graph.h"
#include "hooks.h"
#include "hostpid.h"
#include "life.h"
#include "log.h"
#include "pool.h"

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

struct records addresses, arrays, modules;
static struct records costs; /* what a context's making took, by its handle */

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

static int first_sight(CUcontext c, struct place *p)
{
	CUdevice ordinal;
	if (REAL(cuCtxGetDevice, &ordinal) != CUDA_SUCCESS)
		return 0;
	int found = device_of(ordinal, &p->device);
	if (found <= 0)
		return found;
	struct entry *e = add(c, p->device);
	p->context = e ? number(e) : NONE;
	return 1;
}

int context_here(struct place *p)
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

void context_gone(const struct record *r, unsigned kind)
{
	if (r->flags & RECORD_MANAGED)
		account_may_lack(r->device, r->bytes, false);
	account_return(r->device, kind, r->bytes);
}

void context_keep(struct records *t, const struct record *r, unsigned kind)
{
	struct record old;
	if (r->flags & RECORD_MANAGED)
		account_may_lack(r->device, r->bytes, true);
	if (unlikely(!records_replace(t, r, &old)))
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

static bool lives_on(struct record *r, void *arg)
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

/* ended gives back all that ended with a context. cost is what its making took. */
static void ended(struct entry *e, struct device *d, uint64_t cost)
{
	if (e) {
		struct sweep s = {number(e), RATION_DATA};
		records_sweep(&addresses, lives_on, &s);
		records_sweep(&arrays, lives_on, &s);
		s.kind = RATION_MODULE;
		records_sweep(&modules, lives_on, &s);
		mutex_lock(&lock);
		e->used = false;
		mutex_unlock(&lock);
	}
	/* With a device's last context goes what its pools handed out. */
	if (gauge_nothing(d))
		pools_emptied(d->index);
	pools_synchronised(d->index);
	pools_look(RATION_DEVICES);
	graph_look(d);
	gauge_shrink(d, RATION_CONTEXT, cost);
}

/* Making: begin before, made after. */

struct making {
	struct device *device;
	struct gauge before;
	struct hostpid pid;
};

static int begin(struct making *m, CUdevice ordinal)
{
	int found = device_of(ordinal, &m->device);
	if (found == 1) {
		hostpid_begin(&m->pid, m->device);
		m->before = gauge_begin(m->device);
	}
	return found;
}

/* made ends it; handle is NULL where the driver said no. */
static int made(struct making *m, void *handle)
{
	uint64_t cost;
	hostpid_end(&m->pid, m->device);
	if (!handle)
		return CUDA_SUCCESS;
	int refused = gauge_charge(&m->before, RATION_CONTEXT, &cost);
	if (refused)
		return refused;
	if (cost)
		records_put(&costs, &(struct record){.key = (uintptr_t)handle, .bytes = cost, .device = (uint8_t)m->device->index});
	log_info("context %p on device %d takes %llu bytes", handle, m->device->ordinal, (unsigned long long)cost);
	return CUDA_SUCCESS;
}

static uint64_t cost_of(void *handle)
{
	struct record r;
	return records_take(&costs, (uintptr_t)handle, &r) ? r.bytes : 0;
}

/* MAKE makes a context, and ends it again by undo where the job has no room for it. */
#define MAKE(symbol, ordinal, out, undo, ...)                                                                          \
	do {                                                                                                           \
		struct making m_;                                                                                      \
		ENTER(symbol, __VA_ARGS__);                                                                            \
		int found_ = begin(&m_, ordinal);                                                                      \
		if (found_ <= 0)                                                                                       \
			return found_ < 0 ? CUDA_ERROR_OPERATING_SYSTEM : REAL(symbol, __VA_ARGS__);                   \
		int result_ = REAL(symbol, __VA_ARGS__);                                                               \
		int refused_ = made(&m_, result_ == CUDA_SUCCESS ? *(out) : NULL);                                     \
		if (refused_) {                                                                                        \
			undo;                                                                                          \
			*(out) = NULL;                                                                                 \
			gauge_refresh(m_.device, true);                                                                \
		}                                                                                                      \
		return refused_ ? refused_ : result_;                                                                  \
	} while (0)

#define UNDO_CREATE REAL(cuCtxDestroy_v2, *out)

int cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device)
{
	MAKE(cuCtxCreate, device, out, UNDO_CREATE, out, flags, device);
}

int cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
	MAKE(cuCtxCreate_v2, device, out, UNDO_CREATE, out, flags, device);
}

int cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice device)
{
	MAKE(cuCtxCreate_v3, device, out, UNDO_CREATE, out, affinity, count, flags, device);
}

int cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice device)
{
	MAKE(cuCtxCreate_v4, device, out, UNDO_CREATE, out, params, flags, device);
}

int cuGreenCtxCreate(CUgreenCtx *out, void *desc, CUdevice device, unsigned flags)
{
	MAKE(cuGreenCtxCreate, device, out, REAL(cuGreenCtxDestroy, *out), out, desc, device, flags);
}

int cuGreenCtxDestroy(CUgreenCtx green)
{
	struct record r = {.key = 0};
	LEAVE_ALONE(cuGreenCtxDestroy, green);
	bool known = records_take(&costs, (uintptr_t)green, &r);
	int result = REAL(cuGreenCtxDestroy, green);
	if (result != CUDA_SUCCESS && known)
		records_put(&costs, &r);
	if (result == CUDA_SUCCESS && known && device_at(r.device))
		ended(NULL, device_at(r.device), r.bytes);
	return result;
}

static int destroy(CUcontext c, enum ration_call call)
{
	/* Both have the same parameters. */
	real_cuCtxDestroy real = (real_cuCtxDestroy)ration_real(call);
	if (!real)
		return ration_absent(call);
	struct entry *e = hide(c);
	int result = real(c);
	if (result != CUDA_SUCCESS) {
		unhide(e, c);
		return result;
	}
	struct record r = {.key = 0};
	bool known = records_take(&costs, (uintptr_t)c, &r);
	struct device *d = e ? e->device : known ? device_at(r.device) : NULL;
	if (d)
		ended(e, d, r.bytes);
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
	hide(c);
	ended(e, e->device, cost_of(c));
	return result;
}

/* Primary contexts. */

static bool active(CUdevice device)
{
	unsigned flags;
	int is = 0;
	return REAL(cuDevicePrimaryCtxGetState, device, &flags, &is) == CUDA_SUCCESS && is;
}

enum { PRIMARIES = 64 };
static CUcontext primary[PRIMARIES];

static void remember(CUdevice device, CUcontext c)
{
	if (device >= 0 && device < PRIMARIES)
		__atomic_store_n(&primary[device], c, __ATOMIC_RELEASE);
}

int cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
	struct making m;
	ENTER(cuDevicePrimaryCtxRetain, out, device);
	if (active(device)) {
		int result = REAL(cuDevicePrimaryCtxRetain, out, device);
		if (result == CUDA_SUCCESS)
			remember(device, *out);
		return result;
	}
	int found = begin(&m, device);
	if (found <= 0)
		return found < 0 ? CUDA_ERROR_OPERATING_SYSTEM : REAL(cuDevicePrimaryCtxRetain, out, device);
	int result = REAL(cuDevicePrimaryCtxRetain, out, device);
	int refused = made(&m, result == CUDA_SUCCESS ? *out : NULL);
	if (result == CUDA_SUCCESS && !refused)
		remember(device, *out);
	if (refused) {
		REAL(cuDevicePrimaryCtxRelease_v2, device);
		*out = NULL;
		gauge_refresh(m.device, true);
	}
	return refused ? refused : result;
}

/* A release or a reset: what is still active afterwards has not ended. */
static int give_up(CUdevice device, enum ration_call call)
{
	bool was = active(device);
	int result = ((real_cuDevicePrimaryCtxReset)ration_real(call))(device);
	struct device *d;
	if (result != CUDA_SUCCESS || !was || active(device) || device >= PRIMARIES || device_of(device, &d) != 1)
		return result;
	CUcontext c = __atomic_load_n(&primary[device], __ATOMIC_ACQUIRE);
	ended(hide(c), d, cost_of(c));
	return result;
}

#define GIVE_UP(symbol)                                                                                                \
	int symbol(CUdevice device)                                                                                    \
	{                                                                                                              \
		LEAVE_ALONE(symbol, device);                                                                           \
		return ration_real(CALL_##symbol) ? give_up(device, CALL_##symbol) : ration_absent(CALL_##symbol);     \
	}

GIVE_UP(cuDevicePrimaryCtxRelease)
GIVE_UP(cuDevicePrimaryCtxRelease_v2)
GIVE_UP(cuDevicePrimaryCtxReset)
GIVE_UP(cuDevicePrimaryCtxReset_v2)
