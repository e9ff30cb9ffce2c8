#include "meter.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "attach.h"
#include "capture.h"
#include "clock.h"
#include "hooks.h"

/* relaxed reads and set writes what other threads use at the same time, where no order with
 * anything else is needed. */
#define relaxed(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define set(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)

enum {
	METER_CONTEXTS = 32,
	METER_BATCHES = 64, /* of a context, and launches of a batch */
	METER_STREAMS = 96, /* of a context: more than can have a batch */
	METER_INTERVALS = 16,
	METER_LAUNCHES = 512, /* under way: the driver's queue, in which a thread would wait, has 1024 */
	METER_YIELDS = 16,
	METER_NAPS = 1000,
	METER_NAP = 20000, /* ns; and ever longer ones */
	METER_LONGEST_NAP = 1000000,
	METER_CACHE = 8, /* streams that a thread finds without a search */
	METER_WARY = 64, /* bursts like one of which the end was missed, that are looked at launch by launch */
	METER_MOST_WARY = 1 << 20
};

/* A launch that comes later than METER_PAUSE after the last one of its stream is looked at: a few
 * microseconds are little then. So is one METER_BATCH after the last event. Both in ns. */
#define METER_PAUSE UINT64_C(30000)
#define METER_BATCH UINT64_C(2000000)
/* An event's distance to the one that all are measured from is a float. */
#define METER_FAR_MS 30000

/* Launches of a stream, the last of which an event follows. */
struct meter_batch {
	CUevent start, end;
	bool follows;    /* it begins with the end of the stream's last batch, and not with start */
	unsigned stream; /* its place */
	uint32_t launches;
	uint64_t guess_ns; /* what it was thought to take */
	uint64_t started;  /* when start was recorded, if nothing of the context was under way; or 0 */
	uint64_t at;       /* when end was */
};

/* A stream. What every launch reads without the mark is atomic. */
struct meter_stream {
	CUstream stream;
	CUcontext context;  /* NULL: the place is free; atomic */
	const void *thread; /* whose stream it is, for the per-thread stream; atomic */
	uint64_t last;      /* when a launch last came here; atomic */
	uint64_t look;      /* when one has to be looked at; atomic */
	uint32_t allowance; /* and after how many without an event; atomic */
	uint32_t pending;   /* launches since the last event; atomic */
	enum {
		AFTER_NOTHING,
		AFTER_START,
		AFTER_END
	} /* which that was. Nothing: it is not known */
	after;
	CUevent start;
	uint64_t started;  /* as in struct meter_batch */
	uint64_t recorded; /* when */
	uint32_t run;      /* launches since the last pause, and which that was */
	uint32_t pauses;
	uint32_t burst;     /* launches since the stream was last found idle, but for pending */
	uint32_t wary;      /* launches that are looked at each, as some before had no event */
	uint32_t ends;      /* batches that await their end */
	uint64_t launch_ns; /* what a launch took, in the last batch; 0: not known */
	double until;       /* the end of the last batch that was measured; < 0: not known */
};

static struct meter {
	CUcontext handle;                                          /* NULL: free; atomic */
	enum { CONTEXT_LIVES, CONTEXT_ENDS, CONTEXT_ENDED } state; /* atomic */
	uint32_t mark;                                             /* 1: a thread has the rest. Taken by a swap */
	uint32_t stuck; /* it was waited for in vain: nobody does until it is given back; atomic */
	struct device *device;
	uint32_t closed;                   /* batches that await their end, the first ones of batch[]; atomic */
	uint32_t under_way;                /* launches in them; atomic */
	uint64_t flight_ns;                /* what they are thought to take; atomic */
	uint64_t oldest;                   /* when the first of them was closed; atomic */
	uint32_t given_up;                 /* atomic */
	uint64_t used;                     /* when it was; atomic */
	uint64_t found_ns;                 /* what was used, and is not told yet */
	uint32_t pauses;                   /* how often the cap made a thread wait until nothing was under way */
	double lately_ns, lately_launches; /* what launches took, the older the less it counts */
	CUevent base;                      /* what all times are measured from */
	double origin;                     /* its time, in ms */
	double offset;                     /* what to add to a time to have the CPU's, in ms; < 0: not known */
	unsigned count;
	struct meter_interval {
		double from, to;
	} counted[METER_INTERVALS]; /* no two of which overlap */
	struct meter_batch batch[METER_BATCHES];
	struct meter_stream stream[METER_STREAMS];
} meters[METER_CONTEXTS] __attribute__((aligned(64)));

static uint32_t meter_places;   /* that were ever used; atomic */
static uint32_t meter_claiming; /* the mark of a thread that makes a meter: a context has one */
static uint32_t meter_claiming_stuck;
static void (*meter_used)(const struct device *d, uint64_t ns);

static __thread struct meter_stream *meter_cache[METER_CACHE] __attribute__((tls_model("initial-exec")));

void meter_reset(void (*used)(const struct device *d, uint64_t ns))
{
	for (unsigned i = 0; i < meter_places; i++)
		memset(&meters[i], 0, sizeof meters[i]);
	memset(meter_cache, 0, sizeof meter_cache);
	meter_places = meter_claiming = meter_claiming_stuck = 0;
	meter_used = used;
}

/* meter_try takes a mark, if no thread has it. A thread that is cancelled meanwhile would keep it for
 * ever: none is. */
static bool meter_try(uint32_t *mark, int *cancel)
{
	uint32_t none = 0;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, cancel);
	if (__atomic_compare_exchange_n(mark, &none, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return true;
	pthread_setcancelstate(*cancel, cancel);
	return false;
}

/* meter_take is for a thread that needs it. Another one has it for microseconds, or, if it lost the processor
 * meanwhile, for milliseconds: launches that went past the meter then would be charged by guess, or not at all. So it
 * yields, and then naps; but not for a thread that is stopped, or kept by the driver: after a second it does
 * without, as do all that come before the mark is given back. */
static bool meter_take(uint32_t *mark, uint32_t *stuck, int *cancel)
{
	long nap = METER_NAP;
	for (unsigned i = 0; !relaxed(stuck); i++) {
		if (meter_try(mark, cancel))
			return true;
		if (i < METER_YIELDS) {
			sched_yield();
			continue;
		}
		if (i == METER_YIELDS + METER_NAPS)
			set(stuck, 1);
		nanosleep(&(struct timespec){0, nap}, NULL);
		nap = nap * 2 < METER_LONGEST_NAP ? nap * 2 : METER_LONGEST_NAP;
	}
	return meter_try(mark, cancel);
}

static void meter_release(uint32_t *mark, uint32_t *stuck, int cancel)
{
	__atomic_store_n(mark, 0, __ATOMIC_RELEASE);
	if (unlikely(relaxed(stuck)))
		set(stuck, 0);
	pthread_setcancelstate(cancel, &cancel);
}

/* meter_tell tells what was found. With the mark. */
static void meter_tell(struct meter *m)
{
	uint64_t ns = m->found_ns;
	m->found_ns = 0;
	if (ns)
		meter_used(m->device, ns);
}

static void meter_give(struct meter *m, int cancel)
{
	meter_tell(m);
	meter_release(&m->mark, &m->stuck, cancel);
}

static bool meter_is(const struct meter *m, CUcontext handle)
{
	return __atomic_load_n(&m->handle, __ATOMIC_ACQUIRE) == handle && relaxed(&m->state) == CONTEXT_LIVES;
}

/* Measuring. All with the mark. */

/* meter_guess returns what so many launches take that are not measured: as long as the last ones
 * of the stream, or else of the context. */
static uint64_t meter_guess(const struct meter *m, const struct meter_stream *e, uint64_t launches)
{
	if (e && e->launch_ns)
		return e->launch_ns * launches;
	return m->lately_launches > 0 ? (uint64_t)(m->lately_ns / m->lately_launches * (double)launches) : 0;
}

/* meter_claim counts so many ns until a time of the CPU's clock, but for what others of the job have
 * claimed of that time. */
static void meter_claim(struct meter *m, uint64_t until, uint64_t ns)
{
	m->found_ns += ns ? region_cap_claim(attach_region(), m->device->index, until > ns ? until - ns : 0, until) : 0;
}

/* meter_claim_new claims what of an interval is in none of those that are counted, from the i-th on, and returns
 * how long that is. The interval new.to is at the CPU's time until. */
static double meter_claim_new(struct meter *m, struct meter_interval new, uint64_t until, unsigned i)
{
	double before = 0;
	for (; i < m->count && new.from < new.to; i++) {
		struct meter_interval old = m->counted[i];
		if (old.to <= new.from || old.from >= new.to)
			continue;
		if (old.from > new.from) {
			uint64_t later = (uint64_t)((new.to - old.from) * 1e6);
			before += meter_claim_new(m, (struct meter_interval){new.from, old.from}, until - later, i + 1);
		}
		new.from = old.to;
	}
	if (new.from >= new.to)
		return before;
	meter_claim(m, until, (uint64_t)((new.to - new.from) * 1e6));
	return before + new.to - new.from;
}

/* meter_count counts an interval that ended at the CPU's time until, but for what is counted already, and returns
 * how much was new. The oldest one makes room. */
static double meter_count(struct meter *m, struct meter_interval new, uint64_t until)
{
	unsigned n = 0, oldest = 0;
	double used = meter_claim_new(m, new, until, 0);
	for (unsigned i = 0; i < m->count; i++) {
		struct meter_interval old = m->counted[i];
		if (old.to < new.from || old.from > new.to) {
			m->counted[n++] = old;
			continue;
		}
		new.from = old.from < new.from ? old.from : new.from;
		new.to = old.to > new.to ? old.to : new.to;
	}
	for (unsigned i = 1; i < n; i++)
		oldest = m->counted[i].to < m->counted[oldest].to ? i : oldest;
	m->counted[n == METER_INTERVALS ? oldest : n++] = new;
	m->count = n;
	return used;
}

/* meter_time returns when an event was, in ms. A late one becomes the new base, and the old base
 * will be recorded again in its place. */
static bool meter_time(struct meter *m, CUevent *event, double *at)
{
	float ms = 0;
	if (m->base && REAL(cuEventElapsedTime, &ms, m->base, *event) != CUDA_SUCCESS)
		return false;
	*at = m->origin + ms;
	if (!m->base || ms > METER_FAR_MS) {
		CUevent old = m->base;
		m->base = *event;
		m->origin = *at;
		*event = old;
	}
	return true;
}

/* meter_clock returns the CPU's time of one by events; 0 where that is not known. */
static uint64_t meter_clock(const struct meter *m, double at) { return at >= 0 && m->offset >= 0 ? (uint64_t)((at + m->offset) * 1e6) : 0; }

/* meter_until returns when a batch ended, by the CPU's clock. An event before which nothing was under
 * way is reached a moment after it is recorded: the shortest such moment tells how far apart the clocks
 * are, and a longer one that they drift. */
static uint64_t meter_until(struct meter *m, const struct meter_batch *b, double from, double to, uint64_t now)
{
	double offset = (double)b->started / 1e6 - from;
	if (b->started)
		m->offset = offset > m->offset ? offset : m->offset - (m->offset - offset) / 16;
	uint64_t until = meter_clock(m, to);
	return until && until < now ? until : now;
}

/* meter_measure counts a batch that has ended, and learns from it. */
static void meter_measure(struct meter *m, struct meter_stream *e, struct meter_batch *b, uint64_t now)
{
	float took = 0;
	double from = e->until, to = -1;
	bool known = b->follows ? from >= 0 : REAL(cuEventElapsedTime, &took, b->start, b->end) == CUDA_SUCCESS && took >= 0;
	known = meter_time(m, &b->end, &to) && known;
	e->until = to;
	if (!b->follows)
		from = to - took;
	if (!known || from > to) {
		meter_claim(m, now, b->guess_ns);
		return;
	}
	double all = to - from, used = meter_count(m, (struct meter_interval){from, to}, meter_until(m, b, from, to, now));
	/* Beside other streams only all together say what a launch takes. */
	e->launch_ns = used < all - 1e-3 ? 0 : (uint64_t)(all * 1e6 / b->launches);
	m->lately_ns = m->lately_ns * 7 / 8 + used * 1e6;
	m->lately_launches = m->lately_launches * 7 / 8 + b->launches;
}

/* meter_sweep measures all batches that have ended, those that were closed first before others: a
 * batch may begin with the end of another, and only the latest intervals are remembered. */
static void meter_sweep(struct meter *m)
{
	bool busy[METER_STREAMS] = {false};
	uint32_t n = m->closed, kept = 0;
	int mode = capture_relax_always();
	uint64_t now = clock_exact();
	for (uint32_t i = 0; i < n; i++) {
		struct meter_batch b = m->batch[i];
		struct meter_stream *e = &m->stream[b.stream];
		int result = busy[b.stream] ? CUDA_ERROR_NOT_READY : REAL(cuEventQuery, b.end);
		if (result == CUDA_ERROR_NOT_READY) {
			busy[b.stream] = true;
			m->batch[i] = m->batch[kept];
			m->batch[kept++] = b;
			continue;
		}
		if (result == CUDA_SUCCESS) {
			meter_measure(m, e, &m->batch[i], now);
		} else {
			e->until = -1;
			meter_claim(m, now, b.guess_ns);
		}
		e->ends--;
		set(&m->under_way, m->under_way - b.launches);
		set(&m->flight_ns, m->flight_ns - b.guess_ns);
		set(&m->given_up, 0);
	}
	capture_restore(mode);
	set(&m->closed, kept);
	set(&m->oldest, kept ? m->batch[0].at : UINT64_MAX);
}

void meter_read(struct meter *m, CUcontext context)
{
	int cancel;
	if (!relaxed(&m->closed) || !meter_try(&m->mark, &cancel))
		return;
	if (meter_is(m, context))
		meter_sweep(m);
	meter_give(m, cancel);
}

uint64_t meter_flight(const struct meter *m, CUcontext context, uint64_t now)
{
	uint32_t closed = relaxed(&m->closed);
	uint64_t flight = relaxed(&m->flight_ns), oldest = relaxed(&m->oldest), age = now > oldest ? now - oldest : 0;
	if (relaxed(&m->given_up) || !meter_is(m, context))
		return 0;
	if (!closed)
		return 0;
	/* Of what is not known yet, two. And what is under way for longer than was thought takes
	 * longer than that. */
	if (relaxed(&m->under_way) > METER_LAUNCHES || closed == METER_BATCHES || (!flight && closed > 1))
		return METER_MUCH;
	return flight + age ? (flight > age ? flight : age) : 1;
}

void meter_give_up(struct meter *m) { set(&m->given_up, 1); }

/* Contexts. */

/* meter_settle counts by guess what is not measured, as of a context whose streams cannot be asked.
 * With the mark. */
static void meter_settle(struct meter *m)
{
	uint64_t ns = m->flight_ns;
	for (struct meter_stream *e = m->stream; e < m->stream + METER_STREAMS; e++)
		ns += e->context ? meter_guess(m, e, relaxed(&e->pending)) : 0;
	meter_claim(m, clock_exact(), ns);
	meter_tell(m);
}

/* meter_evict does so for a context that lives and need not be current, and gives its events
 * back. With the mark. */
static void meter_evict(struct meter *m)
{
	CUcontext popped;
	if (REAL(cuCtxPushCurrent_v2, m->handle) == CUDA_SUCCESS) {
		meter_sweep(m);
		REAL(cuCtxPopCurrent_v2, &popped);
	}
	meter_settle(m);
	CUevent events[2 * METER_BATCHES + METER_STREAMS + 1] = {m->base};
	unsigned n = 1;
	for (unsigned i = 0; i < METER_BATCHES; i++) {
		events[n++] = m->batch[i].start;
		events[n++] = m->batch[i].end;
	}
	for (unsigned i = 0; i < METER_STREAMS; i++)
		events[n++] = m->stream[i].start;
	for (unsigned i = 0; i < n; i++)
		if (events[i])
			REAL(cuEventDestroy_v2, events[i]);
}

/* meter_renew makes a meter another context's. With the mark. Threads may read what is atomic
 * meanwhile: they find no stream, and no context. */
static void meter_renew(struct meter *m, CUcontext handle, struct device *d)
{
	__atomic_store_n(&m->handle, NULL, __ATOMIC_RELEASE);
	for (struct meter_stream *e = m->stream; e < m->stream + METER_STREAMS; e++) {
		set(&e->context, NULL);
		set(&e->allowance, 0);
		e->start = NULL;
		e->ends = 0;
	}
	memset(m->batch, 0, sizeof m->batch);
	set(&m->closed, 0);
	set(&m->under_way, 0);
	set(&m->flight_ns, 0);
	set(&m->given_up, 0);
	m->lately_ns = m->lately_launches = m->origin = 0;
	m->base = NULL;
	m->offset = -1;
	m->count = 0;
	m->device = d;
	set(&m->state, CONTEXT_LIVES);
	__atomic_store_n(&m->handle, handle, __ATOMIC_RELEASE);
}

static bool meter_is_free(const struct meter *m)
{
	return !__atomic_load_n(&m->handle, __ATOMIC_ACQUIRE) || relaxed(&m->state) == CONTEXT_ENDED;
}

/* meter_occupy makes a meter a context's, if it is free, or may be taken from another. With
 * meter_claiming. */
static bool meter_occupy(struct meter *m, CUcontext handle, struct device *d, bool evict)
{
	int cancel;
	if (!meter_try(&m->mark, &cancel))
		return false;
	bool usable = meter_is_free(m) || (evict && relaxed(&m->state) == CONTEXT_LIVES);
	if (usable && !meter_is_free(m))
		meter_evict(m);
	if (usable)
		meter_renew(m, handle, d);
	meter_give(m, cancel);
	if (usable && m >= meters + relaxed(&meter_places))
		__atomic_store_n(&meter_places, (uint32_t)(m - meters) + 1, __ATOMIC_RELEASE);
	return usable;
}

struct meter *meter_find(CUcontext handle)
{
	uint32_t places = __atomic_load_n(&meter_places, __ATOMIC_ACQUIRE);
	for (struct meter *m = meters; m < meters + places; m++)
		if (meter_is(m, handle))
			return m;
	return NULL;
}

/* meter_new finds a meter for a context that has none. With meter_claiming. */
static struct meter *meter_new(CUcontext handle, struct device *d)
{
	struct meter *m, *oldest = NULL;
	for (m = meters; m < meters + METER_CONTEXTS; m++) {
		if (meter_is_free(m) && meter_occupy(m, handle, d, false))
			return m;
		if (relaxed(&m->state) == CONTEXT_LIVES && (!oldest || relaxed(&m->used) < relaxed(&oldest->used)))
			oldest = m;
	}
	return oldest && meter_occupy(oldest, handle, d, true) ? oldest : NULL;
}

struct meter *meter_of(CUcontext handle, struct device *d)
{
	struct meter *m = meter_find(handle);
	int cancel;
	if (likely(m != NULL) || !meter_take(&meter_claiming, &meter_claiming_stuck, &cancel))
		return m;
	if (!(m = meter_find(handle)))
		m = meter_new(handle, d);
	meter_release(&meter_claiming, &meter_claiming_stuck, cancel);
	return m;
}

void meter_context_ends(CUcontext context)
{
	struct meter *m = context ? meter_find(context) : NULL;
	int cancel;
	if (!m)
		return;
	/* From here on nobody touches its events, once those who do have done so. */
	set(&m->state, CONTEXT_ENDS);
	if (meter_take(&m->mark, &m->stuck, &cancel))
		meter_give(m, cancel);
}

static struct meter *meter_ending(CUcontext context)
{
	for (struct meter *m = meters; context && m < meters + METER_CONTEXTS; m++)
		if (__atomic_load_n(&m->handle, __ATOMIC_ACQUIRE) == context && relaxed(&m->state) != CONTEXT_ENDED)
			return m;
	return NULL;
}

void meter_context_lives(CUcontext context)
{
	struct meter *m = meter_ending(context);
	if (m)
		set(&m->state, CONTEXT_LIVES);
}

void meter_forget(CUcontext context)
{
	struct meter *m = meter_ending(context);
	int cancel;
	if (!m)
		return;
	if (meter_take(&m->mark, &m->stuck, &cancel)) {
		meter_settle(m);
		meter_give(m, cancel);
	}
	set(&m->state, CONTEXT_ENDED);
}

/* Streams. */

static const void *meter_thread(CUstream stream) { return stream == CU_STREAM_PER_THREAD ? (const void *)meter_cache : NULL; }

static struct meter_stream **meter_cached(CUstream stream)
{
	uintptr_t at = (uintptr_t)stream;
	return &meter_cache[(at ^ at >> 6 ^ at >> 12) % METER_CACHE];
}

static bool meter_is_stream(const struct meter_stream *e, CUstream stream, CUcontext context)
{
	return relaxed(&e->stream) == stream && __atomic_load_n(&e->context, __ATOMIC_ACQUIRE) == context &&
	       relaxed(&e->thread) == meter_thread(stream);
}

/* meter_last returns when the last event of a stream was, in ms; < 0: that is not known. With the mark. */
static double meter_last(const struct meter *m, const struct meter_stream *e)
{
	float ms;
	if (e->after == AFTER_START && m->base && REAL(cuEventElapsedTime, &ms, m->base, e->start) == CUDA_SUCCESS)
		return m->origin + ms;
	return e->after == AFTER_END ? e->until : -1;
}

/* meter_tail counts by guess what was launched on a stream and no event follows, as if it began with the
 * last event; but no more than the time since, and not what was counted with other streams. With the mark. */
static void meter_tail(struct meter *m, struct meter_stream *e, uint64_t now)
{
	uint64_t guess = meter_guess(m, e, __atomic_exchange_n(&e->pending, 0, __ATOMIC_RELAXED)), from = e->recorded;
	double last = guess ? meter_last(m, e) : -1;
	if (last >= 0 && meter_clock(m, last) > from)
		from = meter_clock(m, last);
	guess = from > now ? 0 : guess < now - from ? guess : now - from;
	if (last >= 0)
		meter_count(m, (struct meter_interval){last, last + (double)guess / 1e6}, from + guess);
	else
		meter_claim(m, from + guess, guess);
	e->after = AFTER_NOTHING;
}

/* meter_leave frees a stream's place. With the mark. */
static void meter_leave(struct meter *m, struct meter_stream *e)
{
	meter_tail(m, e, UINT64_MAX); /* it may not have begun */
	set(&e->context, NULL);
	set(&e->allowance, 0);
}

/* meter_stream returns a stream's place, if need be that of the one that has not been launched on
 * for longest. As there are more places than batches, there is one. With the mark. */
static struct meter_stream *meter_stream(struct meter *m, CUstream stream, uint64_t now)
{
	struct meter_stream *free = NULL;
	for (struct meter_stream *e = m->stream; e < m->stream + METER_STREAMS; e++) {
		if (meter_is_stream(e, stream, m->handle))
			return e;
		if (!e->ends && (!free || (free->context && (!e->context || relaxed(&e->last) < relaxed(&free->last)))))
			free = e;
	}
	if (free->context)
		meter_leave(m, free);
	set(&free->stream, stream);
	set(&free->thread, meter_thread(stream));
	set(&free->last, 0);
	set(&free->look, 0);
	set(&free->pending, 0);
	free->after = AFTER_NOTHING;
	free->recorded = now;
	free->run = free->burst = free->wary = 0;
	free->launch_ns = 0;
	free->until = -1;
	__atomic_store_n(&free->context, m->handle, __ATOMIC_RELEASE);
	return free;
}

/* Launches. */

/* meter_captured says whether a launch is not one now, but part of a graph. A stream that cannot be
 * asked is one that a capture forbids. */
static bool meter_captured(CUstream stream)
{
	int status = 0;
	return unlikely(capture_seen()) && (REAL(cuStreamIsCapturing, stream, &status) != CUDA_SUCCESS || status != 0);
}

/* meter_busy says whether a stream has work. With the mark. */
static bool meter_busy(const struct meter_stream *e)
{
	if (e->ends || !relaxed(&e->pending))
		return e->ends;
	int mode = capture_relax_always(), result = REAL(cuStreamQuery, e->stream);
	capture_restore(mode);
	return result == CUDA_ERROR_NOT_READY;
}

static bool meter_record(CUevent *event, CUstream stream)
{
	return (*event || REAL(cuEventCreate, event, 0) == CUDA_SUCCESS) && REAL(cuEventRecord, *event, stream) == CUDA_SUCCESS;
}

/* meter_start begins anew, on a stream that is idle, or of which nothing is known. With the mark. */
static void meter_start(struct meter *m, struct meter_stream *e, uint64_t now)
{
	/* Of launches that no event followed before the stream was idle only a guess is known: a long one may be
	 * among them, again and again. From here on such bursts have an event after each launch. */
	uint64_t lost = relaxed(&e->pending), wary = (e->burst + lost) * METER_WARY;
	if (lost)
		e->wary = wary < METER_MOST_WARY ? (uint32_t)wary : METER_MOST_WARY;
	e->burst = 0;
	meter_tail(m, e, now);
	if (meter_record(&e->start, e->stream))
		e->after = AFTER_START;
	e->started = m->closed ? 0 : now;
	e->recorded = now;
}

/* meter_close ends the batch of what was launched on a stream so far. Where that cannot be, it goes
 * on. With the mark. */
static void meter_close(struct meter *m, struct meter_stream *e, uint64_t now)
{
	struct meter_batch *b = &m->batch[m->closed];
	if (!relaxed(&e->pending) || m->closed == METER_BATCHES || e->after == AFTER_NOTHING || !meter_record(&b->end, e->stream))
		return;
	b->follows = e->after == AFTER_END;
	if (!b->follows) {
		CUevent start = b->start;
		b->start = e->start;
		e->start = start;
	}
	b->started = b->follows ? 0 : e->started;
	b->stream = (unsigned)(e - m->stream);
	b->launches = __atomic_exchange_n(&e->pending, 0, __ATOMIC_RELAXED);
	e->burst += b->launches;
	b->guess_ns = meter_guess(m, e, b->launches);
	b->at = e->recorded = now;
	e->after = AFTER_END;
	e->ends++;
	if (!m->closed)
		set(&m->oldest, now);
	set(&m->closed, m->closed + 1);
	set(&m->under_way, m->under_way + b->launches);
	set(&m->flight_ns, m->flight_ns + b->guess_ns);
}

/* meter_allow says after how many launches the next one is looked at: after each of the first ones
 * since a pause, then after ever more, but not after more than take long. With the mark. */
static void meter_allow(struct meter_stream *e)
{
	uint64_t size = e->run / 8 < METER_BATCHES ? e->run / 8 : METER_BATCHES;
	if (e->launch_ns && size > METER_BATCH / e->launch_ns)
		size = METER_BATCH / e->launch_ns;
	if (e->wary)
		size = 1;
	set(&e->allowance, size ? (uint32_t)size : 1);
	set(&e->look, e->recorded + METER_BATCH);
}

/* meter_enter puts a launch among those of its stream, and says whether an event is due after it.
 * With the mark. */
static bool meter_enter(struct meter *m, struct meter_stream *e, uint64_t now, bool alone, bool idle)
{
	bool busy = meter_busy(e);
	if (busy && alone)
		meter_close(m, e, now);
	if (!busy || e->after == AFTER_NOTHING)
		meter_start(m, e, now);
	uint32_t n = __atomic_add_fetch(&e->pending, 1, __ATOMIC_RELAXED);
	e->wary -= e->wary > 0;
	m->pauses += idle;
	e->run = e->pauses == m->pauses ? e->run + n : 0;
	e->pauses = m->pauses;
	set(&e->last, now);
	meter_allow(e);
	return alone || n >= e->allowance || now - e->recorded >= METER_BATCH;
}

bool meter_begins(struct meter *m, CUcontext context, CUstream stream, bool alone, bool idle)
{
	struct meter_stream **cached = meter_cached(stream), *e = *cached;
	int cancel;
	if (!meter_take(&m->mark, &m->stuck, &cancel)) {
		if (e && meter_is_stream(e, stream, context))
			__atomic_fetch_add(&e->pending, 1, __ATOMIC_RELAXED);
		return false;
	}
	uint64_t now = clock_exact();
	*cached = e = meter_is(m, context) ? meter_stream(m, stream, now) : NULL;
	bool after = e && meter_enter(m, e, now, alone, idle);
	set(&m->used, now);
	meter_give(m, cancel);
	return after;
}

bool meter_passes(CUstream stream, bool alone)
{
	struct meter_stream *e = *meter_cached(stream);
	CUcontext context = NULL;
	uint64_t now = clock_exact();
	if (unlikely(!e || alone || relaxed(&e->stream) != stream || now - relaxed(&e->last) >= METER_PAUSE || now >= relaxed(&e->look)))
		return meter_captured(stream);
	if (unlikely(relaxed(&e->pending) + 1 >= relaxed(&e->allowance) || capture_any()))
		return meter_captured(stream);
	/* The default streams of all contexts have the same names. */
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD &&
	    (REAL(cuCtxGetCurrent, &context) != CUDA_SUCCESS || context != relaxed(&e->context)))
		return meter_captured(stream);
	set(&e->last, now);
	/* Of two threads one may lose the other's count: no more than a longer batch. */
	set(&e->pending, relaxed(&e->pending) + 1);
	return true;
}

void meter_ends(CUstream stream)
{
	struct meter_stream *e = *meter_cached(stream);
	struct meter *m = e ? &meters[(size_t)((char *)e - (char *)meters) / sizeof *m] : NULL;
	int cancel;
	if (!m || meter_captured(stream) || !meter_take(&m->mark, &m->stuck, &cancel))
		return;
	if (m->handle && relaxed(&m->state) == CONTEXT_LIVES && meter_is_stream(e, stream, m->handle)) {
		meter_close(m, e, clock_exact());
		meter_allow(e);
	}
	meter_give(m, cancel);
}

void meter_pauses(struct meter *m, CUcontext context, CUstream stream)
{
	struct meter_stream *e = *meter_cached(stream);
	int cancel;
	if (!e || !relaxed(&e->pending) || !meter_take(&m->mark, &m->stuck, &cancel))
		return;
	if (meter_is(m, context) && meter_is_stream(e, stream, context) && meter_busy(e))
		meter_close(m, e, clock_exact());
	meter_give(m, cancel);
}

void meter_waits(struct meter *m, CUcontext context)
{
	int cancel;
	bool pending = false;
	for (unsigned i = 0; i < METER_CACHE; i++)
		pending |= meter_cache[i] && relaxed(&meter_cache[i]->context) == context && relaxed(&meter_cache[i]->pending);
	if (!pending || !meter_take(&m->mark, &m->stuck, &cancel))
		return;
	if (meter_is(m, context) && m->closed)
		meter_sweep(m); /* so that what has ended makes no stream look busy */
	for (unsigned i = 0; i < METER_CACHE && meter_is(m, context); i++) {
		struct meter_stream *e = meter_cache[i];
		if (e && e >= m->stream && e < m->stream + METER_STREAMS && meter_is_stream(e, e->stream, context) &&
		    !meter_captured(e->stream) && meter_busy(e))
			meter_close(m, e, clock_exact());
	}
	meter_give(m, cancel);
}

void meter_stream_ends(CUstream stream)
{
	int cancel;
	uint32_t places = __atomic_load_n(&meter_places, __ATOMIC_ACQUIRE);
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD)
		return;
	for (struct meter *m = meters; m < meters + places; m++)
		for (struct meter_stream *e = m->stream; e < m->stream + METER_STREAMS; e++)
			if (relaxed(&e->stream) == stream && __atomic_load_n(&e->context, __ATOMIC_ACQUIRE) &&
			    meter_take(&m->mark, &m->stuck, &cancel)) {
				if (relaxed(&e->stream) == stream && e->context) {
					if (!meter_captured(stream) && meter_busy(e))
						meter_close(m, e, clock_exact());
					meter_leave(m, e);
				}
				meter_give(m, cancel);
			}
}
