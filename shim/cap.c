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

/* relaxed reads what other threads write, where no order with anything else is needed. */
#define relaxed(p) __atomic_load_n(p, __ATOMIC_RELAXED)

enum {
	CAP_STREAMS = 64,
	CAP_BATCHES = 3,      /* of a stream: one that is open, and those whose end is awaited */
	CAP_MOST_SIZE = 256,  /* launches in a batch */
	CAP_CACHE = 8,        /* streams that a thread finds without a search */
	CAP_LEAST_NAP = 50000 /* ns */
};

/* What a batch should take of the device, and how much may be under way unmeasured, in ns: the
 * first is so long that two events cost nothing beside it. */
#define CAP_BATCH_NS UINT64_C(5000000)
#define CAP_FLIGHT_NS UINT64_C(10000000)
#define CAP_MOST_NAP UINT64_C(1000000)
/* Nobody waits longer at a time, for whatever it is. */
#define CAP_MOST_WAIT UINT64_C(1000000000)
/* An event's distance to the one that all are measured from is a float in milliseconds. */
#define CAP_FAR_MS 30000

struct cap_batch {
	CUevent start, end;
	uint32_t launches; /* in all */
	uint32_t covered;  /* of these, before the end was recorded */
	uint64_t guess_ns; /* what it was thought to take */
	uint64_t order;    /* among all batches of this process, by when they were closed */
};

/* A stream. The first group is read by every launch without the mark; atomic. */
static struct cap_stream {
	CUstream stream;
	CUcontext context;  /* NULL: the place is free */
	const void *thread; /* whose stream it is, for the per-thread stream */
	uint64_t tick;      /* clock_coarse at the last launch that was looked at */
	uint32_t launches;  /* in the open batch */
	uint32_t allowance; /* how many of them need not be looked at; 0: none is open */
	const void *last;   /* the thread that launched last in a way that was looked at */
	uint32_t missed;    /* launches that are in no batch, as another thread had the mark */
	uint32_t stale;     /* its context has ended, and with it its events */

	uint32_t mark; /* 1: a thread has the rest. Taken by a swap, never waited for */
	struct device *device;
	uint32_t size;      /* launches that a batch should have */
	uint64_t launch_ns; /* what one takes, by the last batch; 0: not known */
	uint64_t opened;    /* clock_coarse */
	bool open;
	uint32_t stuck;       /* a launch waited in vain for one of its batches; atomic */
	uint32_t first, ends; /* the oldest batch, and how many await their end; ends is atomic */
	uint64_t oldest;      /* the order of the oldest that does; atomic */
	struct cap_batch batch[CAP_BATCHES];
} cap_streams[CAP_STREAMS] __attribute__((aligned(64)));

/* A context's measure of time: what has been charged lately, in intervals that do not overlap,
 * so that batches of several streams that do are charged once. The mark is as a stream's. */
enum { CAP_INTERVALS = 16 };
static struct cap_context {
	CUcontext handle; /* NULL: free; atomic */
	uint32_t mark;
	CUevent base; /* what the intervals are measured from, in ms */
	unsigned count;
	struct cap_interval {
		double from, to;
	} charged[CAP_INTERVALS];
} cap_contexts[CAP_STREAMS];

uint32_t cap_devices;
static uint32_t cap_places; /* of streams, that were ever used; atomic */
static uint64_t cap_closed; /* batches, so far; atomic */
/* What launches took lately, by device, without what others took at the same time. Atomic. */
static struct cap_average {
	uint64_t ns, launches;
} cap_averages[RATION_DEVICES];
static uint64_t cap_flight[RATION_DEVICES]; /* what batches that await their end are thought to take; atomic */

static __thread struct cap_stream *cap_cache[CAP_CACHE] __attribute__((tls_model("initial-exec")));

void cap_reset(void)
{
	memset(cap_streams, 0, sizeof cap_streams);
	memset(cap_contexts, 0, sizeof cap_contexts);
	memset(cap_flight, 0, sizeof cap_flight);
	memset(cap_averages, 0, sizeof cap_averages);
	memset(cap_cache, 0, sizeof cap_cache);
	cap_devices = cap_places = 0;
}

/* cap_end is where the places that were ever used end. */
static struct cap_stream *cap_end(void) { return cap_streams + __atomic_load_n(&cap_places, __ATOMIC_ACQUIRE); }

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

/* cap_take takes a mark, if no thread has it. A thread that is cancelled meanwhile would keep
 * it for ever: none is. */
static bool cap_take(uint32_t *mark, int *cancel)
{
	uint32_t none = 0;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, cancel);
	if (__atomic_compare_exchange_n(mark, &none, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return true;
	pthread_setcancelstate(*cancel, cancel);
	return false;
}

/* cap_take_soon is for a thread that would like to have it: another one may just be looking
 * whether a batch has ended. It yields a few times, and then does without. */
static bool cap_take_soon(uint32_t *mark, int *cancel)
{
	for (int i = 0; i < 8; i++) {
		if (cap_take(mark, cancel))
			return true;
		sched_yield();
	}
	return false;
}

static void cap_give(uint32_t *mark, int cancel)
{
	__atomic_store_n(mark, 0, __ATOMIC_RELEASE);
	pthread_setcancelstate(cancel, &cancel);
}

static const void *cap_thread(CUstream stream) { return stream == CU_STREAM_PER_THREAD ? (const void *)cap_cache : NULL; }

static struct cap_stream **cap_cached(CUstream stream)
{
	uintptr_t at = (uintptr_t)stream;
	return &cap_cache[(at ^ at >> 6 ^ at >> 12) % CAP_CACHE];
}

static bool cap_is(const struct cap_stream *e, CUstream stream, CUcontext context)
{
	return relaxed(&e->stream) == stream && __atomic_load_n(&e->context, __ATOMIC_ACQUIRE) == context &&
	       relaxed(&e->thread) == cap_thread(stream);
}

/* cap_drop_oldest forgets the oldest batch that awaits its end. With the mark. */
static void cap_drop_oldest(struct cap_stream *e)
{
	__atomic_fetch_sub(&cap_flight[e->device->index], e->batch[e->first].guess_ns, __ATOMIC_RELAXED);
	e->first = (e->first + 1) % CAP_BATCHES;
	__atomic_store_n(&e->oldest, e->batch[e->first].order, __ATOMIC_RELAXED);
	__atomic_store_n(&e->ends, e->ends - 1, __ATOMIC_RELAXED);
	__atomic_store_n(&e->stuck, 0, __ATOMIC_RELAXED);
}

/* cap_renew makes a place a new stream's. With the mark. The events of a context that lives
 * stay its own; those of one that has ended are gone. */
static void cap_renew(struct cap_stream *e, CUstream stream, CUcontext context, struct device *d)
{
	bool keep = e->context == context && !relaxed(&e->stale);
	while (e->ends)
		cap_drop_oldest(e);
	for (unsigned i = 0; i < CAP_BATCHES && !keep; i++) {
		if (!relaxed(&e->stale) && e->batch[i].start)
			REAL(cuEventDestroy_v2, e->batch[i].start);
		if (!relaxed(&e->stale) && e->batch[i].end)
			REAL(cuEventDestroy_v2, e->batch[i].end);
		e->batch[i] = (struct cap_batch){.start = NULL};
	}
	__atomic_store_n(&e->allowance, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->launches, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->tick, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->missed, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->stale, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->stream, stream, __ATOMIC_RELAXED);
	__atomic_store_n(&e->thread, cap_thread(stream), __ATOMIC_RELAXED);
	e->device = d;
	e->size = 1;
	e->launch_ns = 0;
	e->open = false;
	__atomic_store_n(&e->stuck, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->context, context, __ATOMIC_RELEASE);
}

/* cap_find returns the place of a stream, or NULL where there is none left. */
static struct cap_stream *cap_find(CUstream stream, CUcontext context, struct device *d)
{
	struct cap_stream *e;
	int cancel;
	for (e = cap_streams; e < cap_end(); e++)
		if (cap_is(e, stream, context) && !relaxed(&e->stale))
			return e;
	/* First one that nobody has, then one that is not in use now. */
	for (int used = 0; used < 2; used++)
		for (e = cap_streams; e < cap_streams + CAP_STREAMS; e++) {
			bool free = !__atomic_load_n(&e->context, __ATOMIC_ACQUIRE) || relaxed(&e->stale);
			if ((!free && !used) || !cap_take(&e->mark, &cancel))
				continue;
			/* It may have become another thread's since. */
			bool idle = !e->context || relaxed(&e->stale) || (used && !e->open && !e->ends);
			if (idle)
				cap_renew(e, stream, context, d);
			cap_give(&e->mark, cancel);
			uint32_t places = relaxed(&cap_places), needed = (uint32_t)(e - cap_streams) + 1;
			while (idle && places < needed &&
			       !__atomic_compare_exchange_n(&cap_places, &places, needed, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
				;
			if (idle)
				return e;
		}
	return NULL;
}

static struct cap_context *cap_context(CUcontext handle)
{
	for (unsigned i = 0; i < CAP_STREAMS; i++) {
		struct cap_context *c = &cap_contexts[i];
		CUcontext none = NULL;
		if (__atomic_load_n(&c->handle, __ATOMIC_ACQUIRE) == handle)
			return c;
		if (__atomic_compare_exchange_n(&c->handle, &none, handle, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) || none == handle)
			return c;
	}
	return NULL;
}

static bool cap_event(CUevent *e) { return *e || REAL(cuEventCreate, e, 0) == CUDA_SUCCESS; }

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

/* cap_used returns what a batch took that no other one has been charged for, in ms. With both
 * marks. */
static double cap_used(struct cap_context *c, struct cap_batch *b, float took)
{
	float to = 0;
	if (c->base && REAL(cuEventElapsedTime, &to, c->base, b->end) != CUDA_SUCCESS)
		return took;
	double before = cap_add(c, (struct cap_interval){(double)to - took, to});
	if (!c->base || to > CAP_FAR_MS) {
		/* This end is the new base, and the old one will be recorded again in its place. */
		CUevent old = c->base;
		c->base = b->end;
		b->end = old;
		for (unsigned i = 0; i < c->count; i++)
			c->charged[i].from -= to, c->charged[i].to -= to;
	}
	return before < took ? took - before : 0;
}

/* cap_guess returns what so many launches take that are not measured. */
static uint64_t cap_guess(unsigned device, uint64_t launches)
{
	const struct cap_average *a = &cap_averages[device];
	uint64_t n = load_relaxed(&a->launches);
	return n ? load_relaxed(&a->ns) / n * launches : 0;
}

/* cap_learn adds to the average, in which each batch counts for less the older it is. */
static void cap_learn(unsigned device, uint64_t ns, uint64_t launches)
{
	struct cap_average *a = &cap_averages[device];
	uint64_t old_ns = load_relaxed(&a->ns), old_launches = load_relaxed(&a->launches);
	__atomic_store_n(&a->ns, old_ns - old_ns / 8 + ns * 16, __ATOMIC_RELAXED);
	__atomic_store_n(&a->launches, old_launches - old_launches / 8 + launches * 16, __ATOMIC_RELAXED);
}

/* cap_measure charges a batch that has ended. With its stream's mark. It returns false where
 * another thread is charging: later, then. */
static bool cap_measure(struct cap_stream *e, struct cap_batch *b)
{
	struct cap_context *c = cap_context(e->context);
	unsigned percent = region_cap(attach_region(), e->device->index);
	float took = 0;
	int cancel;
	if (!c || REAL(cuEventElapsedTime, &took, b->start, b->end) != CUDA_SUCCESS || !(took >= 0))
		return true;
	if (!cap_take(&c->mark, &cancel))
		return false;
	double used = cap_used(c, b, took);
	cap_give(&c->mark, cancel);
	uint64_t ns = (uint64_t)(used * 1e6);
	cap_learn(e->device->index, ns, b->covered);
	if (b->covered)
		e->launch_ns = (uint64_t)((double)took * 1e6 / b->covered);
	/* And those whose end nobody saw. */
	ns += cap_guess(e->device->index, b->launches - b->covered + __atomic_exchange_n(&e->missed, 0, __ATOMIC_RELAXED));
	uint64_t size = e->launch_ns ? CAP_BATCH_NS / e->launch_ns : CAP_MOST_SIZE;
	e->size = size < 1 ? 1 : size > CAP_MOST_SIZE ? CAP_MOST_SIZE : (uint32_t)size;
	if (percent && ns)
		region_cap_charge(attach_region(), e->device->index, ns, percent, clock_exact());
	return true;
}

/* cap_harvest charges the oldest batch of a stream, if it has ended. With its mark. */
static void cap_harvest(struct cap_stream *e)
{
	struct cap_batch *b = &e->batch[e->first];
	int result = REAL(cuEventQuery, b->end);
	if (result != CUDA_ERROR_NOT_READY && (result != CUDA_SUCCESS || cap_measure(e, b)))
		cap_drop_oldest(e);
}

/* cap_next returns the stream of a context whose oldest batch that awaits its end was closed
 * first, after a given one; NULL where there is none. */
static struct cap_stream *cap_next(CUcontext context, uint64_t after)
{
	struct cap_stream *found = NULL;
	for (struct cap_stream *e = cap_streams; e < cap_end(); e++) {
		uint64_t order = relaxed(&e->oldest);
		if (relaxed(&e->ends) && __atomic_load_n(&e->context, __ATOMIC_ACQUIRE) == context && order > after &&
		    (!found || order < relaxed(&found->oldest)))
			found = e;
	}
	return found;
}

/* cap_harvest_all charges all batches of a context, which is current, that have ended: the
 * oldest first, as only the latest intervals are remembered. */
static void cap_harvest_all(CUcontext context)
{
	struct cap_stream *e = cap_next(context, 0);
	int cancel, mode = e && capture_any() ? capture_relax() : -1;
	for (; e;) {
		uint64_t order = relaxed(&e->oldest);
		if (cap_take(&e->mark, &cancel)) {
			if (e->context == context && !relaxed(&e->stale) && e->ends && e->oldest == order)
				cap_harvest(e);
			cap_give(&e->mark, cancel);
		}
		e = cap_next(context, order);
	}
	capture_restore(mode);
}

static struct cap_batch *cap_newest(struct cap_stream *e) { return &e->batch[(e->first + e->ends) % CAP_BATCHES]; }

/* cap_record records the end of the open batch, for now. With the mark. */
static void cap_record(struct cap_stream *e)
{
	struct cap_batch *b = cap_newest(e);
	uint32_t launches = relaxed(&e->launches);
	if (REAL(cuEventRecord, b->end, e->stream) == CUDA_SUCCESS)
		b->covered = launches;
}

/* cap_close ends the open batch: it is charged once its end has come. With the mark. */
static void cap_close(struct cap_stream *e)
{
	struct cap_batch *b = cap_newest(e);
	b->launches = relaxed(&e->launches);
	__atomic_store_n(&e->allowance, 0, __ATOMIC_RELAXED);
	e->open = false;
	if (!b->covered) {
		/* Its end was never recorded: the next one that is charged has these, too. */
		__atomic_fetch_add(&e->missed, b->launches, __ATOMIC_RELAXED);
		return;
	}
	b->guess_ns = cap_guess(e->device->index, b->launches);
	__atomic_fetch_add(&cap_flight[e->device->index], b->guess_ns, __ATOMIC_RELAXED);
	b->order = __atomic_add_fetch(&cap_closed, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&e->oldest, e->batch[e->first].order, __ATOMIC_RELAXED);
	__atomic_store_n(&e->ends, e->ends + 1, __ATOMIC_RELAXED);
}

/* cap_open begins a batch. With the mark. */
static bool cap_open(struct cap_stream *e, uint64_t now)
{
	struct cap_batch *b = cap_newest(e);
	if (e->ends == CAP_BATCHES - 1 || !cap_event(&b->start) || !cap_event(&b->end) ||
	    REAL(cuEventRecord, b->start, e->stream) != CUDA_SUCCESS)
		return false;
	b->covered = 0;
	e->open = true;
	e->opened = now;
	__atomic_store_n(&e->launches, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->allowance, e->size - 1, __ATOMIC_RELAXED);
	return true;
}

/* cap_capturing says whether a launch is not one now, but part of a graph; or the thread that
 * makes it holds a capture. A stream that cannot be asked is one that a capture forbids. */
static bool cap_capturing(CUstream stream)
{
	int status = 0;
	return unlikely(capture_any()) && (capture_own() || REAL(cuStreamIsCapturing, stream, &status) != CUDA_SUCCESS || status != 0);
}

/* cap_finish records and ends the open batch of a stream, unless that is captured. With the
 * mark. */
static void cap_finish(struct cap_stream *e)
{
	if (!e->open || relaxed(&e->stale) || cap_capturing(e->stream))
		return;
	int mode = capture_any() ? capture_relax() : -1;
	if (cap_newest(e)->covered < relaxed(&e->launches))
		cap_record(e);
	cap_close(e);
	capture_restore(mode);
}

/* cap_finish_streams records and ends the open batches of a context: all, or those of this
 * thread. */
static void cap_finish_streams(CUcontext context, bool all)
{
	int cancel;
	for (struct cap_stream *e = cap_streams; e < cap_end(); e++)
		/* Another thread's own stream cannot be named here. */
		if (__atomic_load_n(&e->context, __ATOMIC_ACQUIRE) == context && relaxed(&e->allowance) &&
		    (all || relaxed(&e->last) == cap_cache) && relaxed(&e->thread) == cap_thread(relaxed(&e->stream)) &&
		    cap_take(&e->mark, &cancel)) {
			if (e->context == context)
				cap_finish(e);
			cap_give(&e->mark, cancel);
		}
}

/* cap_too_much says whether more is under way than should be before it is measured. */
static bool cap_too_much(const struct cap_stream *e, unsigned device)
{
	uint64_t flight = relaxed(&cap_flight[device]);
	return relaxed(&e->ends) == CAP_BATCHES - 1 || flight > CAP_FLIGHT_NS;
}

/* cap_due_later says whether a launch has to wait. */
static bool cap_due_later(unsigned device)
{
	uint64_t now = clock_exact();
	return region_cap_due(attach_region(), device, now) > now;
}

/* cap_wait_due waits until all that the job has used is due. Nothing is held. */
static void cap_wait_due(unsigned device)
{
	struct region *r = attach_region();
	for (uint64_t now = clock_exact(), due; region_cap(r, device) && attach_on() && (due = region_cap_due(r, device, now)) > now;) {
		FAILPOINT(CAP_WAITING);
		cap_sleep(due - now > CAP_MOST_WAIT ? now + CAP_MOST_WAIT : due);
		uint64_t after = clock_exact();
		region_cap_waited(r, device, after - now);
		now = after;
	}
}

/* cap_wait_flight waits until less is under way. Not for ever: a kernel may wait for the very
 * launch that waits here. */
static void cap_wait_flight(struct cap_stream *e, CUcontext context, unsigned device)
{
	if (likely(!cap_too_much(e, device)))
		return;
	uint64_t begun = clock_exact(), now = begun, nap = relaxed(&cap_flight[device]) / 16;
	nap = nap < CAP_LEAST_NAP ? CAP_LEAST_NAP : nap > CAP_MOST_NAP ? CAP_MOST_NAP : nap;
	while (cap_too_much(e, device) && !relaxed(&e->stuck) && now - begun < CAP_MOST_WAIT) {
		cap_sleep(now + nap);
		cap_harvest_all(context);
		now = clock_exact();
	}
	if (now - begun >= CAP_MOST_WAIT)
		__atomic_store_n(&e->stuck, 1, __ATOMIC_RELAXED);
}

/* cap_gap says whether the stream was idle since the last launch that was looked at: then an
 * end that is recorded now would count that, too. With the mark. */
static bool cap_gap(struct cap_stream *e, uint64_t now)
{
	return relaxed(&e->tick) != now && REAL(cuStreamQuery, e->stream) == CUDA_SUCCESS;
}

/* cap_enter puts a launch into the stream's batch, and says whether the end of that is to be
 * recorded after it: where it is the last, and where the stream had a gap, so that what is
 * launched now and then is measured one by one. With the mark. */
static bool cap_enter(struct cap_stream *e)
{
	uint64_t now = clock_coarse();
	bool gap = relaxed(&e->tick) != now;
	if (e->open && cap_gap(e, now))
		cap_close(e);
	if (!e->open && !cap_open(e, now)) {
		__atomic_fetch_add(&e->missed, 1, __ATOMIC_RELAXED);
		return false;
	}
	__atomic_store_n(&e->tick, now, __ATOMIC_RELAXED);
	__atomic_store_n(&e->last, (const void *)cap_cache, __ATOMIC_RELAXED);
	uint32_t n = relaxed(&e->launches) + 1;
	__atomic_store_n(&e->launches, n, __ATOMIC_RELAXED);
	return gap || n >= e->size;
}

/* cap_look is for a launch that has to be looked at. */
static bool cap_look(CUstream stream, uint64_t now)
{
	CUcontext context = NULL;
	struct device *d;
	int cancel;
	if (!attach_on() || cap_capturing(stream) || REAL(cuCtxGetCurrent, &context) != CUDA_SUCCESS || !context ||
	    !(d = slice_sign(context, 0)))
		return false;
	struct cap_stream *e = cap_find(stream, context, d);
	*cap_cached(stream) = e;
	if (!region_cap(attach_region(), d->index)) {
		if (e && cap_take(&e->mark, &cancel)) {
			/* None until the clock moves. */
			__atomic_store_n(&e->tick, now, __ATOMIC_RELAXED);
			__atomic_store_n(&e->launches, 0, __ATOMIC_RELAXED);
			__atomic_store_n(&e->allowance, UINT32_MAX, __ATOMIC_RELAXED);
			e->open = false;
			cap_give(&e->mark, cancel);
		}
		return false;
	}
	cap_harvest_all(context);
	/* What this thread launched so far ends before it sleeps. */
	if (cap_due_later(d->index) || (e && cap_too_much(e, d->index)))
		cap_finish_streams(context, false);
	cap_wait_due(d->index);
	if (!e)
		return false;
	cap_wait_flight(e, context, d->index);
	if (!cap_take_soon(&e->mark, &cancel)) {
		if (!relaxed(&e->allowance))
			__atomic_fetch_add(&e->missed, 1, __ATOMIC_RELAXED);
		return false;
	}
	int mode = capture_any() ? capture_relax() : -1;
	bool after = cap_is(e, stream, context) && !relaxed(&e->stale) && cap_enter(e);
	capture_restore(mode);
	cap_give(&e->mark, cancel);
	return after;
}

bool cap_launch_begins(CUstream stream, uint64_t now)
{
	struct cap_stream *e = *cap_cached(stream);
	CUcontext context = NULL;
	if (unlikely(!e || relaxed(&e->stream) != stream || relaxed(&e->tick) != now))
		return cap_look(stream, now);
	uint32_t n = relaxed(&e->launches);
	if (unlikely(n >= relaxed(&e->allowance) || capture_any()))
		return cap_look(stream, now);
	/* The default streams of all contexts have the same names. */
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD &&
	    (REAL(cuCtxGetCurrent, &context) != CUDA_SUCCESS || context != relaxed(&e->context)))
		return cap_look(stream, now);
	/* Of two threads one may lose the other's count: no more than a longer batch. */
	__atomic_store_n(&e->launches, n + 1, __ATOMIC_RELAXED);
	/* The batch may have been ended under its eyes, by a thread that waits for the device. */
	if (unlikely(!relaxed(&e->allowance)))
		__atomic_fetch_add(&e->missed, 1, __ATOMIC_RELAXED);
	return false;
}

void cap_launch_ended(CUstream stream)
{
	struct cap_stream *e = *cap_cached(stream);
	int cancel;
	if (!e || !cap_take_soon(&e->mark, &cancel))
		return;
	if (e->stream == stream && e->open && !relaxed(&e->stale) && !cap_capturing(stream)) {
		int mode = capture_any() ? capture_relax() : -1;
		cap_record(e);
		if (relaxed(&e->launches) >= e->size)
			cap_close(e);
		capture_restore(mode);
	}
	cap_give(&e->mark, cancel);
}

void cap_wait_begins(void)
{
	CUcontext context = NULL;
	if (cap_any() && REAL(cuCtxGetCurrent, &context) == CUDA_SUCCESS && context)
		cap_finish_streams(context, true);
}

void cap_wait_ended(void)
{
	CUcontext context = NULL;
	if (cap_any() && attach_on() && REAL(cuCtxGetCurrent, &context) == CUDA_SUCCESS && context)
		cap_harvest_all(context);
}

void cap_stream_ends(CUstream stream)
{
	int cancel;
	for (struct cap_stream *e = cap_streams; stream && e < cap_end(); e++)
		if (__atomic_load_n(&e->context, __ATOMIC_ACQUIRE) && relaxed(&e->stream) == stream && cap_take(&e->mark, &cancel)) {
			if (e->stream == stream)
				cap_finish(e);
			e->open = false;
			__atomic_store_n(&e->allowance, 0, __ATOMIC_RELAXED);
			cap_give(&e->mark, cancel);
		}
}

void cap_forget(CUcontext context)
{
	if (!context)
		return;
	for (struct cap_stream *e = cap_streams; e < cap_end(); e++)
		if (__atomic_load_n(&e->context, __ATOMIC_ACQUIRE) == context) {
			int cancel;
			__atomic_store_n(&e->stale, 1, __ATOMIC_RELAXED);
			__atomic_store_n(&e->allowance, 0, __ATOMIC_RELAXED);
			if (!cap_take(&e->mark, &cancel))
				continue;
			while (e->ends)
				cap_drop_oldest(e);
			cap_give(&e->mark, cancel);
		}
	for (unsigned i = 0; i < CAP_STREAMS; i++)
		if (__atomic_load_n(&cap_contexts[i].handle, __ATOMIC_ACQUIRE) == context) {
			cap_contexts[i].base = NULL;
			cap_contexts[i].count = 0;
			__atomic_store_n(&cap_contexts[i].handle, NULL, __ATOMIC_RELEASE);
		}
}
