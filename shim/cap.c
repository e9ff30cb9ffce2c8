#include "cap.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "attach.h"
#include "capture.h"
#include "clock.h"
#include "hooks.h"
#include "region/atomics.h"
#include "region/failpoint.h"
#include "slice.h"

/* relaxed reads and set writes what other threads use at the same time, where no order with
 * anything else is needed. */
#define relaxed(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define set(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)

enum {
	CAP_CONTEXTS = 32,
	CAP_STREAMS = 96, /* of a context: more than can have a batch at once */
	CAP_BATCHES = 64, /* of a context */
	CAP_MOST_SIZE = 64,
	CAP_MOST_LAUNCHES = 512, /* under way: the driver's queue, in which a thread would wait, has 1024 */
	CAP_INTERVALS = 16,
	CAP_CACHE = 8 /* streams that a thread finds without a search */
};

/* All in ns. A launch that comes later than CAP_GAP after the last one of its stream is one by
 * itself: two events are nothing beside that. The others' time is measured together, as long as
 * that is no more than CAP_BATCH. */
#define CAP_GAP UINT64_C(30000)
#define CAP_BATCH UINT64_C(2000000)
/* How much may be under way unmeasured, and for how long, before a launch waits. */
#define CAP_FLIGHT UINT64_C(10000000)
#define CAP_LEAST_NAP UINT64_C(50000)
#define CAP_MOST_NAP UINT64_C(1000000)
/* Nobody waits longer at a time, for whatever it is. */
#define CAP_MOST_WAIT UINT64_C(1000000000)
/* A batch whose launches have no end by then will get none. */
#define CAP_OLD UINT64_C(100000000)
/* An event's distance to the one that all are measured from is a float in milliseconds. */
#define CAP_FAR_MS 30000

/* Launches of a stream from one event to another. */
struct cap_batch {
	enum { BATCH_FREE, BATCH_OPEN, BATCH_CLOSED } state;
	bool follows;    /* begins with the end of the stream's last one, and not with start */
	unsigned stream; /* its place */
	CUevent start, end;
	uint32_t launches;
	uint64_t guess_ns; /* what it was thought to take */
	uint64_t at;       /* when it was opened or closed */
	uint64_t order;    /* by which it was closed */
};

/* A stream. What every launch reads without the mark is atomic; the rest is for a thread that
 * has its context's. */
struct cap_stream {
	CUstream stream;
	CUcontext context;  /* NULL: the place is free; atomic */
	const void *thread; /* whose stream it is, for the per-thread stream; atomic */
	uint64_t last;      /* when a launch last came here; atomic */
	uint64_t look;      /* when one has to look, and at how many that no event covers; both atomic */
	uint32_t allowance;
	uint32_t pending;   /* launches since the last end; atomic */
	bool follows;       /* nothing was missed since that */
	int open;           /* the batch that has a start and no end yet; -1: none */
	uint32_t run;       /* launches since the last gap that were looked at */
	uint32_t ends;      /* batches that await their end */
	uint64_t launch_ns; /* what a launch takes, by the last batch; 0: not known */
	uint64_t guess_ns;  /* the same; 0 also where others had work meanwhile */
	uint64_t recorded;  /* when the last event was */
	double until;       /* the end of the last batch that was measured; < 0: not known */
	uint64_t pass;      /* of cap_harvest, that found it busy */
};

/* A context. What it was charged for lately is kept in intervals that do not overlap, so that
 * batches of several streams that do are charged once. */
static struct cap_context {
	CUcontext handle;                                          /* NULL: free; atomic */
	enum { CONTEXT_LIVES, CONTEXT_ENDS, CONTEXT_ENDED } state; /* atomic */
	uint32_t mark;                                             /* 1: a thread has the rest. Taken by a swap, never waited for */
	struct device *device;
	uint32_t under_way; /* launches in batches that await their end; atomic */
	uint32_t closed;    /* batches that await their end; atomic */
	uint32_t missed;    /* launches in no batch, as another thread had the mark; atomic */
	uint32_t stuck;     /* a launch waited in vain; atomic */
	uint64_t flight_ns; /* what batches that await their end are thought to take; atomic */
	uint64_t oldest;    /* when the oldest of them was closed; atomic */
	uint64_t used;      /* when it was; atomic */
	uint64_t orders, passes;
	uint64_t lately_ns, lately_launches; /* what launches took, the older the less it counts */
	uint64_t total_seen;                 /* all that the job was charged for, when it was looked at */
	uint64_t total_ns, own_ns;           /* what was lately, the job and this context */
	CUevent base;                        /* what all times are measured from */
	double origin;                       /* its time, in ms */
	unsigned count;
	struct cap_interval {
		double from, to;
	} charged[CAP_INTERVALS];
	struct cap_batch batch[CAP_BATCHES];
	struct cap_stream stream[CAP_STREAMS];
} cap_contexts[CAP_CONTEXTS] __attribute__((aligned(64)));

uint32_t cap_devices;
static uint32_t cap_places; /* of contexts, that were ever used; atomic */
static unsigned (*cap_workers)(struct device *d);

static __thread struct cap_stream *cap_cache[CAP_CACHE] __attribute__((tls_model("initial-exec")));

void cap_reset(unsigned (*workers)(struct device *d))
{
	for (unsigned i = 0; i < cap_places; i++)
		memset(&cap_contexts[i], 0, sizeof cap_contexts[i]);
	memset(cap_cache, 0, sizeof cap_cache);
	cap_workers = workers;
	cap_devices = cap_places = 0;
}

void cap_update(const struct device *d)
{
	uint32_t bit = 1u << d->index;
	if (region_cap(attach_region(), d->index))
		__atomic_fetch_or(&cap_devices, bit, __ATOMIC_RELAXED);
	else
		__atomic_fetch_and(&cap_devices, ~bit, __ATOMIC_RELAXED);
}

static void cap_sleep(uint64_t until)
{
	struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

/* cap_take takes a context's mark, if no thread has it. A thread that is cancelled meanwhile
 * would keep it for ever: none is. */
static bool cap_take(struct cap_context *c, int *cancel)
{
	uint32_t none = 0;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, cancel);
	if (__atomic_compare_exchange_n(&c->mark, &none, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return true;
	pthread_setcancelstate(*cancel, cancel);
	return false;
}

/* cap_take_soon is for a thread that would like to have it: another one may just be looking
 * whether a batch has ended. It yields a few times, and then does without. */
static bool cap_take_soon(struct cap_context *c, int *cancel)
{
	for (int i = 0; i < 16; i++) {
		if (cap_take(c, cancel))
			return true;
		sched_yield();
	}
	return false;
}

static void cap_give(struct cap_context *c, int cancel)
{
	__atomic_store_n(&c->mark, 0, __ATOMIC_RELEASE);
	pthread_setcancelstate(cancel, &cancel);
}

static bool cap_is(const struct cap_context *c, CUcontext handle)
{
	return __atomic_load_n(&c->handle, __ATOMIC_ACQUIRE) == handle && relaxed(&c->state) == CONTEXT_LIVES;
}

/* Charging. */

/* cap_divided returns which part of the time in which a context has work is its own, where
 * others of the job have some at the same time: the device is theirs by turns. They are as many as
 * show that they have work, each for as much as it was charged for lately beside this one. */
static uint64_t cap_divided(struct cap_context *c, uint64_t ns)
{
	uint64_t total = region_cap_used(attach_region(), c->device->index), workers;
	c->total_ns += total - c->total_seen;
	c->total_seen = total;
	if (c->total_ns <= c->own_ns || (workers = cap_workers(c->device)) < 2)
		return ns;
	return c->total_ns >= c->own_ns * workers ? ns / workers : (uint64_t)((double)ns * (double)c->own_ns / (double)c->total_ns);
}

/* cap_charge charges a context's time. With the mark. */
static void cap_charge(struct cap_context *c, uint64_t ns)
{
	unsigned device = c->device->index, percent = region_cap(attach_region(), device);
	if (!ns || !percent || !attach_on())
		return;
	ns = cap_divided(c, ns);
	region_cap_charge(attach_region(), device, ns, percent, clock_exact());
	c->own_ns += ns;
	if (c->own_ns > CAP_OLD) {
		c->own_ns /= 2;
		c->total_ns /= 2;
	}
}

/* cap_guess returns what so many launches take that are not measured: as long as the last ones of
 * the stream, or else of the context. */
static uint64_t cap_guess(const struct cap_context *c, const struct cap_stream *e, uint64_t launches)
{
	if (e && e->guess_ns)
		return e->guess_ns * launches;
	return c->lately_launches ? c->lately_ns / c->lately_launches * launches : 0;
}

/* cap_add adds an interval to what is charged, and returns how much of it was charged before.
 * The oldest one makes room. */
static double cap_add(struct cap_context *c, struct cap_interval new)
{
	double before = 0;
	unsigned n = 0, oldest = 0;
	struct cap_interval all = new;
	for (unsigned i = 0; i < c->count; i++) {
		struct cap_interval old = c->charged[i];
		if (old.to < new.from || old.from > new.to) {
			c->charged[n++] = old;
			continue;
		}
		before += (old.to < new.to ? old.to : new.to) - (old.from > new.from ? old.from : new.from);
		all.from = old.from < all.from ? old.from : all.from;
		all.to = old.to > all.to ? old.to : all.to;
	}
	for (unsigned i = 1; i < n; i++)
		oldest = c->charged[i].to < c->charged[oldest].to ? i : oldest;
	c->charged[n == CAP_INTERVALS ? oldest : n++] = all;
	c->count = n;
	return before;
}

/* cap_time returns when an event was, in ms. A late one becomes the new base, and the old base
 * will be recorded again in its place. */
static bool cap_time(struct cap_context *c, CUevent *event, double *at)
{
	float ms = 0;
	if (c->base && REAL(cuEventElapsedTime, &ms, c->base, *event) != CUDA_SUCCESS)
		return false;
	*at = c->origin + ms;
	if (!c->base || ms > CAP_FAR_MS) {
		CUevent old = c->base;
		c->base = *event;
		c->origin = *at;
		*event = old;
	}
	return true;
}

/* cap_measure charges a batch that has ended, and learns from it. With the mark. */
static void cap_measure(struct cap_context *c, struct cap_stream *e, struct cap_batch *b)
{
	float took = 0;
	double to = -1, from = e->until;
	bool known = b->follows ? from >= 0 : REAL(cuEventElapsedTime, &took, b->start, b->end) == CUDA_SUCCESS && took >= 0;
	if (!cap_time(c, &b->end, &to))
		known = false;
	e->until = to;
	if (!known || (b->follows && from > to)) {
		cap_charge(c, b->guess_ns);
		return;
	}
	if (!b->follows)
		from = to - took;
	double before = cap_add(c, (struct cap_interval){from, to});
	uint64_t all = (uint64_t)((to - from) * 1e6), used = before < 1e-3        ? all
							     : before < to - from ? (uint64_t)((to - from - before) * 1e6)
										  : 0;
	if (b->launches) {
		e->launch_ns = all / b->launches;
		/* Beside other streams only all together say what a launch takes. */
		e->guess_ns = used < all ? 0 : e->launch_ns;
		c->lately_ns += used * 16 - c->lately_ns / 8;
		c->lately_launches += (uint64_t)b->launches * 16 - c->lately_launches / 8;
	}
	cap_charge(c, used);
}

/* cap_free gives a batch's place back. With the mark. */
static void cap_free(struct cap_context *c, struct cap_batch *b)
{
	struct cap_stream *e = &c->stream[b->stream];
	if (b->state == BATCH_CLOSED) {
		set(&c->closed, c->closed - 1);
		set(&c->under_way, c->under_way - b->launches);
		set(&c->flight_ns, c->flight_ns - b->guess_ns);
		set(&c->stuck, 0);
		e->ends--;
	} else {
		e->open = -1;
	}
	b->state = BATCH_FREE;
}

/* cap_tail charges by guess what was launched on a stream and is covered by no end, but no more
 * than a given time. With the mark. */
static void cap_tail(struct cap_context *c, struct cap_stream *e, uint64_t most)
{
	uint64_t guess = cap_guess(c, e, __atomic_exchange_n(&e->pending, 0, __ATOMIC_RELAXED));
	e->follows = false;
	if (e->open >= 0)
		cap_free(c, &c->batch[e->open]);
	cap_charge(c, guess < most ? guess : most);
}

/* cap_first returns the batch that was closed first, after a given one; NULL: there is none. */
static struct cap_batch *cap_first(struct cap_context *c, uint64_t after)
{
	struct cap_batch *found = NULL;
	for (struct cap_batch *b = c->batch; b < c->batch + CAP_BATCHES; b++)
		if (b->state == BATCH_CLOSED && b->order > after && (!found || b->order < found->order))
			found = b;
	return found;
}

/* cap_harvest charges all batches of a context, which is current, that have ended: the oldest
 * first, as only the latest intervals are remembered, and a batch may begin with the end of
 * another. With the mark. */
static void cap_harvest(struct cap_context *c, uint64_t now)
{
	struct cap_batch *b;
	uint64_t order = 0, pass = ++c->passes;
	int mode = capture_relax_always();
	while (relaxed(&c->closed) && (b = cap_first(c, order))) {
		struct cap_stream *e = &c->stream[b->stream];
		order = b->order;
		int result = e->pass == pass ? CUDA_ERROR_NOT_READY : REAL(cuEventQuery, b->end);
		if (result == CUDA_ERROR_NOT_READY) {
			e->pass = pass;
			continue;
		}
		if (result == CUDA_SUCCESS)
			cap_measure(c, e, b);
		else
			e->until = -1;
		cap_free(c, b);
	}
	capture_restore(mode);
	for (b = c->batch; b < c->batch + CAP_BATCHES; b++)
		if (b->state == BATCH_OPEN && now - b->at > CAP_OLD)
			cap_tail(c, &c->stream[b->stream], UINT64_MAX);
	b = cap_first(c, 0);
	set(&c->oldest, b ? b->at : UINT64_MAX);
	cap_charge(c, cap_guess(c, NULL, __atomic_exchange_n(&c->missed, 0, __ATOMIC_RELAXED)));
}

/* cap_harvest_soon does so if no other thread is at it. */
static void cap_harvest_soon(struct cap_context *c, CUcontext handle)
{
	int cancel;
	if (!cap_take(c, &cancel))
		return;
	if (cap_is(c, handle))
		cap_harvest(c, clock_exact());
	cap_give(c, cancel);
}

/* Contexts. */

/* cap_renew makes a place a new context's. With the mark. The events of a context that has
 * ended are gone; those of one that lives were its own. */
static void cap_renew(struct cap_context *c, CUcontext handle, struct device *d)
{
	bool lives = c->handle && relaxed(&c->state) == CONTEXT_LIVES;
	for (unsigned i = 0; lives && i < CAP_BATCHES; i++) {
		if (c->batch[i].start)
			REAL(cuEventDestroy_v2, c->batch[i].start);
		if (c->batch[i].end)
			REAL(cuEventDestroy_v2, c->batch[i].end);
	}
	if (lives && c->base)
		REAL(cuEventDestroy_v2, c->base);
	__atomic_store_n(&c->handle, NULL, __ATOMIC_RELEASE);
	for (struct cap_stream *e = c->stream; e < c->stream + CAP_STREAMS; e++) {
		set(&e->context, NULL);
		set(&e->allowance, 0);
	}
	memset(c->batch, 0, sizeof c->batch);
	set(&c->under_way, 0);
	set(&c->closed, 0);
	set(&c->missed, 0);
	set(&c->stuck, 0);
	set(&c->flight_ns, 0);
	c->lately_ns = c->lately_launches = c->total_ns = c->own_ns = 0;
	c->total_seen = region_cap_used(attach_region(), d->index);
	c->base = NULL;
	c->origin = 0;
	c->count = 0;
	c->device = d;
	set(&c->state, CONTEXT_LIVES);
	__atomic_store_n(&c->handle, handle, __ATOMIC_RELEASE);
}

/* cap_settle charges by guess what is not measured. With the mark. */
static void cap_settle(struct cap_context *c)
{
	uint64_t ns = c->flight_ns + cap_guess(c, NULL, c->missed);
	for (struct cap_stream *e = c->stream; e < c->stream + CAP_STREAMS; e++)
		ns += e->context ? cap_guess(c, e, relaxed(&e->pending)) : 0;
	cap_charge(c, ns);
}

/* cap_evict measures what it can of a context that need not be current, and settles the rest.
 * With the mark. */
static void cap_evict(struct cap_context *c)
{
	CUcontext popped;
	if (REAL(cuCtxPushCurrent_v2, c->handle) == CUDA_SUCCESS) {
		cap_harvest(c, clock_exact());
		REAL(cuCtxPopCurrent_v2, &popped);
	}
	cap_settle(c);
}

/* cap_claim makes the place a context's, if it is free, or may be taken from another. */
static bool cap_claim(struct cap_context *c, CUcontext handle, struct device *d, bool evict)
{
	int cancel;
	if (!cap_take(c, &cancel))
		return false;
	bool lives = c->handle && relaxed(&c->state) == CONTEXT_LIVES;
	bool usable = !c->handle || relaxed(&c->state) == CONTEXT_ENDED || (evict && lives);
	if (usable && lives)
		cap_evict(c);
	if (usable)
		cap_renew(c, handle, d);
	cap_give(c, cancel);
	uint32_t places = relaxed(&cap_places), needed = (uint32_t)(c - cap_contexts) + 1;
	while (usable && places < needed &&
	       !__atomic_compare_exchange_n(&cap_places, &places, needed, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
	return usable;
}

static struct cap_context *cap_known(CUcontext handle)
{
	uint32_t places = __atomic_load_n(&cap_places, __ATOMIC_ACQUIRE);
	for (struct cap_context *c = cap_contexts; c < cap_contexts + places; c++)
		if (cap_is(c, handle))
			return c;
	return NULL;
}

/* cap_context returns a context's place, if need be that of the one that has not been used for
 * longest; NULL where there is none. */
static struct cap_context *cap_context(CUcontext handle, struct device *d)
{
	struct cap_context *c = cap_known(handle), *oldest = NULL;
	if (likely(c != NULL))
		return c;
	for (c = cap_contexts; c < cap_contexts + CAP_CONTEXTS; c++) {
		bool free = !__atomic_load_n(&c->handle, __ATOMIC_ACQUIRE) || relaxed(&c->state) == CONTEXT_ENDED;
		if (free && cap_claim(c, handle, d, false))
			return c;
		if (relaxed(&c->state) == CONTEXT_LIVES && (!oldest || relaxed(&c->used) < relaxed(&oldest->used)))
			oldest = c;
	}
	return oldest && cap_claim(oldest, handle, d, true) ? oldest : NULL;
}

/* Streams. */

static const void *cap_thread(CUstream stream) { return stream == CU_STREAM_PER_THREAD ? (const void *)cap_cache : NULL; }

static struct cap_stream **cap_cached(CUstream stream)
{
	uintptr_t at = (uintptr_t)stream;
	return &cap_cache[(at ^ at >> 6 ^ at >> 12) % CAP_CACHE];
}

static bool cap_is_stream(const struct cap_stream *e, CUstream stream, CUcontext context)
{
	return relaxed(&e->stream) == stream && __atomic_load_n(&e->context, __ATOMIC_ACQUIRE) == context &&
	       relaxed(&e->thread) == cap_thread(stream);
}

/* cap_release frees a stream's place. What was launched on it may not have begun. With the mark. */
static void cap_release(struct cap_context *c, struct cap_stream *e)
{
	cap_tail(c, e, UINT64_MAX);
	set(&e->context, NULL);
	set(&e->allowance, 0);
}

/* cap_stream returns a stream's place, if need be that of the one that has not been launched on for
 * longest. As there are more places than batches, there is one. With the mark. */
static struct cap_stream *cap_stream(struct cap_context *c, CUstream stream, uint64_t now)
{
	struct cap_stream *free = NULL;
	for (struct cap_stream *e = c->stream; e < c->stream + CAP_STREAMS; e++) {
		if (cap_is_stream(e, stream, c->handle))
			return e;
		if (e->ends || (e->context && e->open >= 0))
			continue;
		if (!free || (free->context && (!e->context || relaxed(&e->last) < relaxed(&free->last))))
			free = e;
	}
	if (!free)
		return NULL;
	if (free->context)
		cap_release(c, free);
	set(&free->stream, stream);
	set(&free->thread, cap_thread(stream));
	set(&free->last, 0);
	set(&free->look, 0);
	set(&free->allowance, 0);
	set(&free->pending, 0);
	free->follows = false;
	free->open = -1;
	free->run = 0;
	free->launch_ns = free->guess_ns = 0;
	free->until = -1;
	free->recorded = now;
	__atomic_store_n(&free->context, c->handle, __ATOMIC_RELEASE);
	return free;
}

/* cap_new returns a place for a batch with its events, or NULL. With the mark. */
static struct cap_batch *cap_new(struct cap_context *c, struct cap_stream *e)
{
	for (struct cap_batch *b = c->batch; b < c->batch + CAP_BATCHES; b++)
		if (b->state == BATCH_FREE) {
			if ((!b->start && REAL(cuEventCreate, &b->start, 0) != CUDA_SUCCESS) ||
			    (!b->end && REAL(cuEventCreate, &b->end, 0) != CUDA_SUCCESS))
				return NULL;
			b->stream = (unsigned)(e - c->stream);
			return b;
		}
	return NULL;
}

/* cap_record ends what was launched on a stream so far. With the mark, by a thread that launches
 * there. */
static void cap_record(struct cap_context *c, struct cap_stream *e, uint64_t now)
{
	struct cap_batch *b = e->open >= 0 ? &c->batch[e->open] : e->follows ? cap_new(c, e) : NULL;
	if (!b || REAL(cuEventRecord, b->end, e->stream) != CUDA_SUCCESS)
		return;
	b->follows = e->open < 0;
	b->launches = __atomic_exchange_n(&e->pending, 0, __ATOMIC_RELAXED);
	b->guess_ns = cap_guess(c, e, b->launches);
	b->state = BATCH_CLOSED;
	b->at = now;
	b->order = ++c->orders;
	e->open = -1;
	e->follows = true;
	e->recorded = now;
	e->ends++;
	if (!c->closed)
		set(&c->oldest, now);
	set(&c->closed, c->closed + 1);
	set(&c->under_way, c->under_way + b->launches);
	set(&c->flight_ns, c->flight_ns + b->guess_ns);
}

/* cap_allow says after how many launches the next event is due: after each of the first, then
 * after ever more, but not after more than take long. With the mark. */
static void cap_allow(struct cap_stream *e)
{
	uint64_t size = e->run / 4 < CAP_MOST_SIZE ? e->run / 4 : CAP_MOST_SIZE;
	if (e->launch_ns && size > CAP_BATCH / e->launch_ns)
		size = CAP_BATCH / e->launch_ns;
	set(&e->allowance, size ? (uint32_t)size : 1);
	set(&e->look, e->recorded + CAP_BATCH);
}

/* cap_captured says whether a launch is not one now, but part of a graph. A stream that cannot be
 * asked is one that a capture forbids. */
static bool cap_captured(CUstream stream)
{
	int status = 0;
	return unlikely(capture_seen()) && (REAL(cuStreamIsCapturing, stream, &status) != CUDA_SUCCESS || status != 0);
}

/* cap_busy says whether a stream has work. */
static bool cap_busy(const struct cap_stream *e)
{
	int mode = capture_relax_always(), result = REAL(cuStreamQuery, e->stream);
	capture_restore(mode);
	return result == CUDA_ERROR_NOT_READY;
}

/* cap_enter puts a launch among those of its stream, and says whether an event is due after it.
 * With the mark. */
static bool cap_enter(struct cap_context *c, struct cap_stream *e, uint64_t now, bool slept, bool alone)
{
	bool gap = slept || now - relaxed(&e->last) >= CAP_GAP;
	struct cap_batch *b;
	/* What no end covers yet: where it is still under way, one that is recorded now is right. */
	if ((gap || alone) && relaxed(&e->pending) && (!gap || cap_busy(e)))
		cap_record(c, e, now);
	if (gap || !(e->follows || e->open >= 0)) {
		/* What is left has ended since. */
		cap_tail(c, e, now - e->recorded);
		e->run = 0;
		if (!(b = cap_new(c, e)) || REAL(cuEventRecord, b->start, e->stream) != CUDA_SUCCESS) {
			__atomic_fetch_add(&c->missed, 1, __ATOMIC_RELAXED);
			return false;
		}
		b->state = BATCH_OPEN;
		b->at = now;
		e->open = (int)(b - c->batch);
		e->recorded = now;
	}
	uint32_t n = __atomic_add_fetch(&e->pending, 1, __ATOMIC_RELAXED);
	e->run += n > e->allowance ? 1 : n;
	set(&e->last, now);
	cap_allow(e);
	return alone || n >= e->allowance || now - e->recorded >= CAP_BATCH;
}

/* Waiting. */

/* cap_drain waits, no longer than a launch would, until nothing is under way, and charges it. */
static void cap_drain(struct cap_context *c, CUcontext handle, unsigned device)
{
	uint64_t begun = clock_exact(), now = begun;
	while (relaxed(&c->closed) && !relaxed(&c->stuck) && cap_is(c, handle) && now - begun < CAP_MOST_WAIT &&
	       region_cap_due(attach_region(), device, now) > now) {
		uint64_t nap = relaxed(&c->flight_ns) / 4;
		cap_sleep(now + (nap < CAP_LEAST_NAP ? CAP_LEAST_NAP : nap > CAP_MOST_NAP ? CAP_MOST_NAP : nap));
		uint64_t after = clock_exact();
		region_cap_waited(attach_region(), device, after - now);
		now = after;
		cap_harvest_soon(c, handle);
	}
}

/* cap_wait_due waits until all that the job has used is due, and says whether it did. Nothing is
 * held. A context that sleeps and has nothing under way shows that it has no work: others of the
 * job have the device for themselves. */
static bool cap_wait_due(struct cap_context *c, CUcontext handle, struct device *d)
{
	struct region *r = attach_region();
	unsigned device = d->index;
	bool slept = false;
	if (c && region_cap_due(r, device, clock_exact()) > clock_exact()) {
		slept = true;
		cap_drain(c, handle, device);
		if (!relaxed(&c->closed)) {
			slice_idle(handle);
			cap_workers(d);
		}
	}
	for (uint64_t now = clock_exact(), due; region_cap(r, device) && attach_on() && (due = region_cap_due(r, device, now)) > now;) {
		FAILPOINT(CAP_WAITING);
		cap_sleep(due - now > CAP_MOST_WAIT ? now + CAP_MOST_WAIT : due);
		uint64_t after = clock_exact();
		region_cap_waited(r, device, after - now);
		now = after;
		slept = true;
	}
	if (slept && slice_sign(handle, clock_coarse() / 1000))
		cap_workers(d);
	return slept;
}

/* cap_too_much says whether more is under way than should be before it is measured, or it has been
 * for longer than was thought. Of what is not known yet, two. */
static bool cap_too_much(const struct cap_context *c, uint64_t now)
{
	uint32_t closed = relaxed(&c->closed);
	uint64_t oldest = relaxed(&c->oldest), flight = relaxed(&c->flight_ns);
	return closed && (closed > CAP_BATCHES - 8 || flight > CAP_FLIGHT || relaxed(&c->under_way) > CAP_MOST_LAUNCHES ||
			  (!flight && closed > 1) || (oldest < now && now - oldest > CAP_FLIGHT));
}

/* cap_wait_flight waits until less is. Not for ever: a kernel may wait for the very launch that
 * waits here. */
static void cap_wait_flight(struct cap_context *c, CUcontext handle)
{
	uint64_t begun = clock_exact(), now = begun, nap = relaxed(&c->flight_ns) / 16;
	nap = nap < CAP_LEAST_NAP ? CAP_LEAST_NAP : nap > CAP_MOST_NAP ? CAP_MOST_NAP : nap;
	while (cap_too_much(c, now) && !relaxed(&c->stuck) && cap_is(c, handle)) {
		if (now - begun >= CAP_MOST_WAIT) {
			set(&c->stuck, 1);
			break;
		}
		cap_sleep(now + nap);
		cap_harvest_soon(c, handle);
		now = clock_exact();
	}
}

/* Launches. */

/* cap_device returns the device of a context that is current. */
static struct device *cap_device(CUcontext context)
{
	struct device *d = slice_sign(context, 0);
	CUdevice ordinal;
	if (unlikely(!d) && (REAL(cuCtxGetDevice, &ordinal) != CUDA_SUCCESS || device_of(ordinal, &d) != 1))
		return NULL;
	return d;
}

/* cap_look is for a launch that has to be looked at. */
static bool cap_look(CUstream stream, bool alone)
{
	CUcontext context = NULL;
	struct device *d;
	struct cap_context *c;
	int cancel;
	if (!attach_on() || cap_captured(stream) || REAL(cuCtxGetCurrent, &context) != CUDA_SUCCESS || !context ||
	    !(d = cap_device(context)) || !region_cap(attach_region(), d->index))
		return false;
	if ((c = cap_known(context)) && relaxed(&c->closed))
		cap_harvest_soon(c, context);
	bool slept = cap_wait_due(c, context, d);
	if (!(c = cap_context(context, d)))
		return false;
	cap_wait_flight(c, context);
	if (!cap_take_soon(c, &cancel)) {
		__atomic_fetch_add(&c->missed, 1, __ATOMIC_RELAXED);
		return false;
	}
	uint64_t now = clock_exact();
	struct cap_stream *e = cap_is(c, context) ? cap_stream(c, stream, now) : NULL;
	bool after = e && cap_enter(c, e, now, slept, alone);
	set(&c->used, now);
	cap_give(c, cancel);
	*cap_cached(stream) = e;
	return after;
}

bool cap_launch_begins(CUstream stream, bool alone)
{
	struct cap_stream *e = *cap_cached(stream);
	CUcontext context = NULL;
	uint64_t now = clock_exact();
	if (unlikely(!e || alone || relaxed(&e->stream) != stream || now - relaxed(&e->last) >= CAP_GAP || now >= relaxed(&e->look)))
		return cap_look(stream, alone);
	if (unlikely(relaxed(&e->pending) + 1 >= relaxed(&e->allowance) || capture_any()))
		return cap_look(stream, alone);
	/* The default streams of all contexts have the same names. */
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD &&
	    (REAL(cuCtxGetCurrent, &context) != CUDA_SUCCESS || context != relaxed(&e->context)))
		return cap_look(stream, alone);
	set(&e->last, now);
	/* Of two threads one may lose the other's count: no more than a longer batch. */
	set(&e->pending, relaxed(&e->pending) + 1);
	return false;
}

void cap_launch_ended(CUstream stream)
{
	struct cap_stream *e = *cap_cached(stream);
	CUcontext context = e ? relaxed(&e->context) : NULL;
	struct cap_context *c = context ? cap_known(context) : NULL;
	int cancel;
	if (!c || cap_captured(stream) || !cap_take_soon(c, &cancel))
		return;
	if (cap_is(c, context) && cap_is_stream(e, stream, context)) {
		cap_record(c, e, clock_exact());
		cap_allow(e);
	}
	cap_give(c, cancel);
}

void cap_waited(void)
{
	CUcontext context = NULL;
	struct cap_context *c;
	if (cap_any() && attach_on() && REAL(cuCtxGetCurrent, &context) == CUDA_SUCCESS && context && (c = cap_known(context)) &&
	    relaxed(&c->closed))
		cap_harvest_soon(c, context);
}

void cap_stream_ends(CUstream stream)
{
	int cancel;
	uint32_t places = __atomic_load_n(&cap_places, __ATOMIC_ACQUIRE);
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD)
		return;
	for (struct cap_context *c = cap_contexts; c < cap_contexts + places; c++)
		for (struct cap_stream *e = c->stream; e < c->stream + CAP_STREAMS; e++)
			if (relaxed(&e->stream) == stream && __atomic_load_n(&e->context, __ATOMIC_ACQUIRE) && cap_take_soon(c, &cancel)) {
				if (relaxed(&e->stream) == stream && e->context)
					cap_release(c, e);
				cap_give(c, cancel);
			}
}

void cap_context_ends(CUcontext context)
{
	struct cap_context *c = context ? cap_known(context) : NULL;
	int cancel;
	if (!c)
		return;
	/* From here on nobody touches its events, once those who do have done so. */
	set(&c->state, CONTEXT_ENDS);
	if (cap_take_soon(c, &cancel))
		cap_give(c, cancel);
}

static struct cap_context *cap_ending(CUcontext context)
{
	for (struct cap_context *c = cap_contexts; context && c < cap_contexts + CAP_CONTEXTS; c++)
		if (__atomic_load_n(&c->handle, __ATOMIC_ACQUIRE) == context && relaxed(&c->state) != CONTEXT_ENDED)
			return c;
	return NULL;
}

void cap_context_lives(CUcontext context)
{
	struct cap_context *c = cap_ending(context);
	if (c)
		set(&c->state, CONTEXT_LIVES);
}

/* What nobody measured is charged by guess. */
void cap_forget(CUcontext context)
{
	struct cap_context *c = cap_ending(context);
	int cancel;
	if (!c)
		return;
	if (cap_take_soon(c, &cancel)) {
		cap_settle(c);
		cap_give(c, cancel);
	}
	set(&c->state, CONTEXT_ENDED);
}
