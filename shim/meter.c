#include "meter.h"

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
	METER_LAUNCHES = 512,  /* under way: the driver's queue, in which a thread would wait, has 1024 */
	METER_CACHE = 8,       /* streams that a thread finds without a search */
	METER_WARY = 64,       /* bursts like one of which the end was missed, that are looked at launch by launch */
	METER_SAMPLE = 256,    /* launches of which one is measured, where that is left to chance */
	METER_CHANCES = 16384, /* launches that count in what others are taken for */
	METER_MOST_WARY = 1 << 20
};

/* A launch that comes later than METER_PAUSE after the last one of its stream is looked at: a few
 * microseconds are little then. So is one METER_BATCH after the last event. Both in ns. */
#define METER_PAUSE UINT64_C(30000)
#define METER_BATCH UINT64_C(2000000)
/* A kernel that no event followed may have run through a pause longer than this, in ns: too much to be left to chance. */
#define METER_HIDDEN UINT64_C(2000000)
/* But one of a hundred is charged as if it had: a program that lost the processor for a moment goes on as before. */
#define METER_HICCUP UINT64_C(10000000)
#define METER_RARE 100
/* A kernel is handed over so long after the event before it, in ns, and no longer: a launch that takes longer may wait for its kernel. */
#define METER_HANDOVER UINT64_C(5000)
/* An event's distance to the one that all are measured from is a float. */
#define METER_FAR_MS 30000

static uint32_t meter_crowded; /* atomic */
static void (*meter_used)(const struct device *d, uint64_t ns);

static __thread struct meter_stream *meter_cache[METER_CACHE] __attribute__((tls_model("initial-exec")));

void meter_reset(void (*used)(const struct device *d, uint64_t ns))
{
	memset(meter_cache, 0, sizeof meter_cache);
	meter_crowded = 0;
	meter_used = used;
}

void meter_crowd(void) { set(&meter_crowded, 1); }

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
	mark_give(&m->mark, cancel);
}

bool meter_is(const struct meter *m, CUcontext handle)
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

/* meter_lost returns what so many launches took that will not be measured. What the last ones took says nothing of them: a program
 * could choose which that are. */
static uint64_t meter_lost(const struct meter *m, const struct meter_stream *e, uint64_t launches)
{
	return e->chances ? (uint64_t)(e->chance_ns * (double)launches) : meter_guess(m, e, launches);
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
	bool ended = meter_time(m, &b->end, &to);
	e->until = to;
	if (!b->follows)
		from = to - (took > b->handed_ns / 1e6 ? took - b->handed_ns / 1e6 : 0);
	if (b->sure && ended && m->offset >= 0) {
		uint64_t until = meter_clock(m, to), sure = until > b->sure ? until - b->sure : 0;
		double most = (double)(sure > b->guess_ns ? sure : b->guess_ns) / 1e6; /* the guess is for all of it */
		from = known && from > to - most ? from : to - most;
		known = true;
	}
	if (!known || !ended || from > to) {
		meter_claim(m, now, b->guess_ns);
		return;
	}
	double all = to - from, used = meter_count(m, (struct meter_interval){from, to}, meter_until(m, b, from, to, now));
	if (b->sure)
		return;
	/* Beside other streams only all together say what a launch takes. */
	e->launch_ns = used < all - 1e-3 ? 0 : (uint64_t)(all * 1e6 / b->launches) + 1;
	if (b->stands) {
		e->chances = e->chances + b->stands < METER_CHANCES ? e->chances + b->stands : METER_CHANCES;
		e->chance_ns += (used * 1e6 / b->launches - e->chance_ns) * b->stands / e->chances;
	}
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
	if (!relaxed(&m->closed) || !mark_try(&m->mark, &cancel))
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

/* meter_settle counts by guess what is not measured, as of a context whose streams cannot be asked. What
 * is under way was so since it was launched, but what of that is older than most is not asked for. With the mark. */
static void meter_settle(struct meter *m, uint64_t most)
{
	uint64_t now = clock_exact(), ns = m->flight_ns, age = m->closed && now > m->oldest ? now - m->oldest : 0;
	age = age < most ? age : most;
	ns = ns > age ? ns : age;
	for (struct meter_stream *e = m->stream; e < m->stream + METER_STREAMS; e++)
		ns += e->context ? meter_lost(m, e, relaxed(&e->pending)) : 0;
	meter_claim(m, now, ns);
	meter_tell(m);
}

/* meter_sweep_any is for a context that lives and need not be current. With the mark. */
static void meter_sweep_any(struct meter *m)
{
	CUcontext popped;
	if (!m->closed || REAL(cuCtxPushCurrent_v2, m->handle) != CUDA_SUCCESS)
		return;
	meter_sweep(m);
	REAL(cuCtxPopCurrent_v2, &popped);
}

/* meter_evict ends the measuring of a context that lives, and gives its events back. With the mark. */
static void meter_evict(struct meter *m)
{
	meter_settle(m, METER_MUCH);
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
		e->meter = m;
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

bool meter_is_free(const struct meter *m) { return !__atomic_load_n(&m->handle, __ATOMIC_ACQUIRE) || relaxed(&m->state) == CONTEXT_ENDED; }

bool meter_assign(struct meter *m, CUcontext context, struct device *d, enum meter_assignment how)
{
	int cancel;
	if (!mark_try(&m->mark, &cancel))
		return false;
	bool free = meter_is_free(m), usable = free;
	if (!free && how != METER_IF_FREE && relaxed(&m->state) == CONTEXT_LIVES) {
		meter_sweep_any(m);
		usable = !m->closed || how == METER_ANYWAY;
	}
	if (usable && !free)
		meter_evict(m);
	if (usable)
		meter_renew(m, context, d);
	meter_give(m, cancel);
	return usable;
}

void meter_context_ends(struct meter *m)
{
	int cancel;
	/* From here on nobody touches its events, once those who do have done so. */
	bool taken = mark_take(&m->mark, &cancel);
	if (taken && relaxed(&m->state) == CONTEXT_LIVES)
		meter_sweep_any(m);
	set(&m->state, CONTEXT_ENDS);
	if (taken)
		meter_give(m, cancel);
}

void meter_context_lives(struct meter *m) { set(&m->state, CONTEXT_LIVES); }

void meter_context_ended(struct meter *m)
{
	int cancel;
	if (mark_take(&m->mark, &cancel)) {
		meter_settle(m, UINT64_MAX);
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

/* meter_tail counts by guess, and so much more, what was launched on a stream and no event follows, as if it began with the
 * last event; but no more than the time since, and not what was counted with other streams. With the mark. */
static void meter_tail(struct meter *m, struct meter_stream *e, uint64_t now, uint64_t more)
{
	uint64_t guess = meter_lost(m, e, __atomic_exchange_n(&e->pending, 0, __ATOMIC_RELAXED)) + more, from = e->recorded;
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
	meter_tail(m, e, UINT64_MAX, 0); /* it may not have begun */
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
	set(&free->pause, 0);
	set(&free->pending, 0);
	set(&free->copied, 0);
	free->after = AFTER_NOTHING;
	free->recorded = free->missed = now;
	free->run = free->burst = free->wary = free->chances = 0;
	free->sampled = false;
	free->chance_ns = 0;
	free->one_of = 1;
	free->apart_ns = 0;
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
		return e->ends > 0;
	int mode = capture_relax_always(), result = REAL(cuStreamQuery, e->stream);
	capture_restore(mode);
	return result == CUDA_ERROR_NOT_READY;
}

static bool meter_record(CUevent *event, CUstream stream)
{
	return (*event || REAL(cuEventCreate, event, 0) == CUDA_SUCCESS) && REAL(cuEventRecord, *event, stream) == CUDA_SUCCESS;
}

/* meter_missed decides what becomes of launches that no event followed before a pause of their stream, through which
 * the last one may have run, again and again. Returns how much of the pause is charged. With the mark. */
static uint64_t meter_missed(struct meter_stream *e, uint64_t now, uint64_t pause, uint64_t lost)
{
	uint64_t wary = (e->burst + lost) * METER_WARY, since = now - e->missed;
	e->missed = now;
	if (pause < METER_HICCUP && pause < since / METER_RARE)
		return pause;
	wary = wary > e->wary ? wary : e->wary;
	e->wary = wary < METER_MOST_WARY ? (uint32_t)wary : METER_MOST_WARY;
	return 0;
}

/* meter_lose counts what was launched on a stream that is idle, or of which nothing is known. With the mark. */
static void meter_lose(struct meter *m, struct meter_stream *e, uint64_t now)
{
	uint64_t lost = relaxed(&e->pending), pause = now - relaxed(&e->last), more = 0;
	if (lost && pause >= METER_HIDDEN)
		more = meter_missed(e, now, pause, lost);
	else if (lost)
		e->sampled = true;
	e->burst = 0;
	meter_tail(m, e, now, more);
	e->recorded = now;
}

/* meter_start begins anew, on such a stream, or behind a copy. With the mark. */
static void meter_start(struct meter *m, struct meter_stream *e, uint64_t now, bool copied)
{
	if (meter_record(&e->start, e->stream))
		e->after = AFTER_START;
	e->ready = clock_exact();
	e->started = m->closed || copied ? 0 : now; /* behind a copy it is reached when that ends */
}

/* meter_close ends the batch of what was launched on a stream so far. Where that cannot be, it goes
 * on. launched: a moment ago; otherwise the stream has work, and may have had none meanwhile if its last event
 * has been reached. With the mark. */
static void meter_close(struct meter *m, struct meter_stream *e, uint64_t now, bool launched)
{
	bool gaps = !launched && !e->ends;
	struct meter_batch *b = &m->batch[m->closed];
	if (!relaxed(&e->pending) || m->closed == METER_BATCHES || (e->after == AFTER_NOTHING && !gaps) ||
	    !meter_record(&b->end, e->stream))
		return;
	if (e->after == AFTER_NOTHING)
		e->until = -1;
	b->follows = e->after != AFTER_START;
	b->stands = launched ? e->stands : 0;
	if (!b->follows) {
		CUevent start = b->start;
		b->start = e->start;
		e->start = start;
	}
	/* The stream was idle: the event before the launch was reached at once. */
	uint64_t handed = launched && e->started && relaxed(&e->pending) == 1 ? now - e->ready : 0;
	b->handed_ns = b->follows ? 0 : handed < METER_HANDOVER ? handed : METER_HANDOVER;
	b->started = b->follows ? 0 : e->started;
	b->sure = gaps ? relaxed(&e->last) : 0;
	b->stream = (unsigned)(e - m->stream);
	b->launches = __atomic_exchange_n(&e->pending, 0, __ATOMIC_RELAXED);
	e->burst += b->launches;
	b->guess_ns = gaps ? meter_lost(m, e, b->launches) : meter_guess(m, e, b->launches);
	b->at = e->recorded = now;
	e->after = AFTER_END;
	e->ends++;
	if (!m->closed)
		set(&m->oldest, now);
	set(&m->closed, m->closed + 1);
	set(&m->under_way, m->under_way + b->launches);
	set(&m->flight_ns, m->flight_ns + b->guess_ns);
}

/* meter_chance returns how many launches come before one that is measured by chance: so many in the mean, and twice that
 * at most. What came before says nothing of it: the logarithm of a random number. */
static uint64_t meter_chance(uint64_t mean)
{
	static __thread uint64_t random __attribute__((tls_model("initial-exec")));
	if (!random)
		random = (clock_exact() ^ (uintptr_t)&random) | 1;
	random ^= random << 13;
	random ^= random >> 7;
	random ^= random << 17;
	unsigned zeros = (unsigned)__builtin_clzll(random);
	/* In units of 2^-32, 1.5 in the mean. */
	uint64_t log2 = ((uint64_t)(zeros + 1) << 32) - (random << zeros << 1 >> 32), n = log2 / 3 * mean * 2 >> 32;
	return n < 2 * mean ? n : 2 * mean;
}

/* meter_allow says after how many launches the next one is looked at: after each of the first ones
 * since a pause, then after ever more, but not after more than take long. With the mark. */
static void meter_allow(struct meter_stream *e)
{
	uint64_t most = e->sampled ? METER_SAMPLE : METER_BATCHES, size = e->run / 8 < most ? e->run / 8 : most;
	uint64_t launch_ns = e->sampled && e->chances ? (uint64_t)e->chance_ns : e->launch_ns;
	if (e->sampled && launch_ns < e->apart_ns)
		launch_ns = e->apart_ns; /* they may take as long as that */
	if (launch_ns && size > METER_BATCH / launch_ns)
		size = METER_BATCH / launch_ns;
	if (!size || e->wary || relaxed(&meter_crowded))
		size = 1;
	e->one_of = (uint32_t)size;
	size = size > 1 ? meter_chance(size) : 1;
	set(&e->allowance, size ? (uint32_t)size : 1);
	set(&e->pause, e->sampled ? METER_HIDDEN : METER_PAUSE);
	set(&e->look, e->recorded + METER_BATCH);
}

/* meter_enter puts a launch among those of its stream, and says whether an event is due after it.
 * With the mark. */
static bool meter_enter(struct meter *m, struct meter_stream *e, uint64_t now, bool alone, bool idle)
{
	bool busy = meter_busy(e), behind = e->ends > 0, copied = __atomic_exchange_n(&e->copied, 0, __ATOMIC_RELAXED);
	m->pauses += idle;
	bool paused = e->pauses != m->pauses;
	bool chosen = relaxed(&e->pending) + 1 >= relaxed(&e->allowance);
	e->stands = chosen && !alone ? e->one_of : 0;
	e->apart_ns = (now - e->recorded) / (relaxed(&e->pending) + 1);
	e->sampled = !behind && !paused && (busy || e->sampled);
	/* One that was chosen is measured alone: of those before it in a batch, a program may have chosen which they are. Not beside
	 * other streams' batches, where that counted 3 % too much (compute_caps.c, copies_in_streams). */
	if (busy && (alone || !behind || (chosen && e->ends == m->closed)))
		meter_close(m, e, now, false);
	/* The last batch ended before the copy; or could not, and goes on. */
	if (copied && !relaxed(&e->pending))
		e->after = AFTER_NOTHING;
	bool anew = !busy || e->after == AFTER_NOTHING;
	if (anew)
		meter_lose(m, e, now);
	bool measured = alone || copied || !e->sampled || chosen || e->wary;
	if (anew && measured)
		meter_start(m, e, now, copied);
	uint32_t n = __atomic_add_fetch(&e->pending, 1, __ATOMIC_RELAXED);
	e->wary -= e->wary > 0;
	e->run = paused ? 0 : e->run + n;
	e->pauses = m->pauses;
	set(&e->last, now);
	meter_allow(e);
	return measured && (alone || chosen || e->sampled || n >= e->allowance || now - e->recorded >= METER_BATCH);
}

bool meter_begins(struct meter *m, CUcontext context, CUstream stream, bool alone, bool idle, bool *ends)
{
	struct meter_stream **cached = meter_cached(stream), *e = *cached;
	int cancel;
	*ends = false;
	if (!mark_take(&m->mark, &cancel)) {
		if (e && meter_is_stream(e, stream, context))
			__atomic_fetch_add(&e->pending, 1, __ATOMIC_RELAXED);
		return true;
	}
	uint64_t now = clock_exact();
	*cached = e = meter_is(m, context) ? meter_stream(m, stream, now) : NULL;
	*ends = e && meter_enter(m, e, now, alone, idle);
	meter_give(m, cancel);
	return e != NULL;
}

bool meter_passes(CUstream stream, bool alone)
{
	struct meter_stream *e = *meter_cached(stream);
	CUcontext context = NULL;
	uint64_t now = clock_exact();
	if (unlikely(!e || alone || relaxed(&e->stream) != stream || now - relaxed(&e->last) >= relaxed(&e->pause) ||
		     now >= relaxed(&e->look)))
		return meter_captured(stream);
	if (unlikely(relaxed(&e->pending) + 1 >= relaxed(&e->allowance) || relaxed(&e->copied) || capture_any()))
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
	struct meter *m = e ? e->meter : NULL;
	int cancel;
	if (!m || meter_captured(stream) || !mark_take(&m->mark, &cancel))
		return;
	if (m->handle && relaxed(&m->state) == CONTEXT_LIVES && meter_is_stream(e, stream, m->handle)) {
		meter_close(m, e, clock_exact(), true);
		meter_allow(e);
	}
	meter_give(m, cancel);
}

void meter_pauses(struct meter *m, CUcontext context, CUstream stream)
{
	struct meter_stream *e = *meter_cached(stream);
	int cancel;
	if (!e || !relaxed(&e->pending) || !mark_take(&m->mark, &cancel))
		return;
	if (meter_is(m, context) && meter_is_stream(e, stream, context) && meter_busy(e))
		meter_close(m, e, clock_exact(), false);
	meter_give(m, cancel);
}

/* meter_place returns the place of a stream that has one, or NULL. */
static struct meter_stream *meter_place(struct meter *m, CUstream stream, CUcontext context)
{
	struct meter_stream *e = *meter_cached(stream);
	if (e && meter_is_stream(e, stream, context))
		return e;
	for (e = m->stream; e < m->stream + METER_STREAMS; e++)
		if (meter_is_stream(e, stream, context))
			return e;
	return NULL;
}

void meter_copies(struct meter *m, CUcontext context, CUstream stream)
{
	struct meter_stream *e = meter_place(m, stream, context);
	int cancel;
	if (!e)
		return;
	set(&e->copied, 1);
	if (!relaxed(&e->pending) || meter_captured(stream) || !mark_take(&m->mark, &cancel))
		return;
	if (meter_is(m, context) && m->closed)
		meter_sweep(m); /* so that what has ended does not make it look busy */
	if (meter_is(m, context) && meter_is_stream(e, stream, context)) {
		uint64_t now = clock_exact();
		if (meter_busy(e))
			meter_close(m, e, now, false);
		else
			meter_lose(m, e, now); /* from here on it would look busy */
	}
	meter_give(m, cancel);
}

void meter_waits(struct meter *m, CUcontext context)
{
	int cancel;
	bool pending = false;
	for (unsigned i = 0; i < METER_CACHE; i++)
		pending |= meter_cache[i] && relaxed(&meter_cache[i]->context) == context && relaxed(&meter_cache[i]->pending);
	if (!pending || !mark_take(&m->mark, &cancel))
		return;
	if (meter_is(m, context) && m->closed)
		meter_sweep(m); /* so that what has ended makes no stream look busy */
	for (unsigned i = 0; i < METER_CACHE && meter_is(m, context); i++) {
		struct meter_stream *e = meter_cache[i];
		if (!e || e < m->stream || e >= m->stream + METER_STREAMS || !meter_is_stream(e, e->stream, context) ||
		    meter_captured(e->stream))
			continue;
		if (meter_busy(e))
			meter_close(m, e, clock_exact(), false);
		else
			meter_lose(m, e, clock_exact()); /* and not through all of the time until the next launch */
	}
	meter_give(m, cancel);
}

void meter_stream_ends(struct meter *m, CUstream stream)
{
	int cancel;
	for (struct meter_stream *e = m->stream; e < m->stream + METER_STREAMS; e++) {
		if (relaxed(&e->stream) != stream || !__atomic_load_n(&e->context, __ATOMIC_ACQUIRE) || !mark_take(&m->mark, &cancel))
			continue;
		if (relaxed(&e->stream) == stream && e->context) {
			if (!meter_captured(stream) && meter_busy(e))
				meter_close(m, e, clock_exact(), false);
			meter_leave(m, e);
		}
		meter_give(m, cancel);
	}
}
