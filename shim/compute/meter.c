#include "compute/meter.h"

#include <string.h>

#include "compute/batch.h"
#include "capture.h"
#include "clock.h"
#include "hooks.h"

enum {
	METER_LAUNCHES = 512, /* most launches under way: the driver's queue has 1024, and a thread would wait in it */
	METER_CACHE = 8,      /* number of streams that a thread finds without a search */
	METER_WARY = 64,      /* after a missed launch, so many bursts of the same length are looked at launch by launch */
	METER_SAMPLE = 256,   /* one of so many launches is measured, at most, while measuring by chance */
	METER_MOST_WARY = 1 << 20
};

/* A launch is looked at if it comes METER_PAUSE or more after the last one of its stream (a few
 * microseconds do not matter then), or METER_BATCH after the last event. Both in ns. */
#define METER_PAUSE UINT64_C(30000)
#define METER_BATCH UINT64_C(2000000)
/* A kernel without an event behind it may have run through a pause of this length, in ns. That is
 * too much to be left to chance. */
#define METER_HIDDEN UINT64_C(2000000)
/* But pauses shorter than METER_HICCUP that make up less than 1/METER_RARE of the time are charged
 * instead, so that a program that lost the processor for a moment is not slowed down. */
#define METER_HICCUP UINT64_C(10000000)
#define METER_RARE 100

static uint32_t meter_crowded; /* atomic */
static void (*meter_used)(const struct device *d, uint64_t ns, uint64_t in_turn_ns);
static void (*meter_changed)(const struct device *d);

static __thread struct meter_stream *meter_cache[METER_CACHE] __attribute__((tls_model("initial-exec")));

void meter_reset(void (*used)(const struct device *d, uint64_t ns, uint64_t in_turn_ns), void (*uncharged)(const struct device *d))
{
	memset(meter_cache, 0, sizeof meter_cache);
	meter_crowded = 0;
	meter_used = used;
	meter_changed = uncharged;
}

void meter_crowd(void) { set(&meter_crowded, 1); }

/* meter_tell passes the newly counted time to meter_used. The caller holds the meter's mark. */
static void meter_tell(struct meter *m)
{
	uint64_t in_turn, ns = busy_tell(&m->busy, &in_turn);
	if (ns)
		meter_used(m->device, ns, in_turn);
}

uint64_t meter_uncharged(const struct meter *m, const struct device *d)
{
	return relaxed(&m->device) == d ? __atomic_load_n(&m->uncharged, __ATOMIC_SEQ_CST) : 0;
}

/* meter_since returns since when the context has had work that is not counted yet, or 0. Work that
 * was launched while its stream had other work began when that ended. The caller holds the meter's
 * mark. */
static uint64_t meter_since(const struct meter *m)
{
	uint64_t since = m->closed ? m->first : UINT64_MAX;
	if (relaxed(&m->state) == CONTEXT_ENDED)
		return 0;
	for (const struct meter_stream *e = m->stream; e < m->stream + m->streams; e++) {
		if (e->ends || !e->context || !__atomic_load_n(&e->pending, __ATOMIC_SEQ_CST))
			continue;
		uint64_t until = event_clock_cpu(&m->clock, e->until), first = relaxed(&e->first);
		first = first > until ? first : until;
		since = first < since ? first : since;
	}
	return since == UINT64_MAX ? 0 : since;
}

/* meter_publish publishes since when there is work that is not counted yet. A launch that passes
 * meanwhile counts itself before it reads what is published, so one of the two sees the other. The
 * caller holds the meter's mark. */
static void meter_publish(struct meter *m)
{
	for (uint64_t since = meter_since(m), again; since != relaxed(&m->uncharged); since = again) {
		__atomic_store_n(&m->uncharged, since, __ATOMIC_SEQ_CST);
		meter_changed(m->device);
		again = meter_since(m);
	}
}

static void meter_give(struct meter *m, int cancel)
{
	meter_tell(m);
	meter_publish(m);
	mark_give(&m->mark, cancel);
}

bool meter_is(const struct meter *m, CUcontext handle)
{
	return __atomic_load_n(&m->handle, __ATOMIC_ACQUIRE) == handle && relaxed(&m->state) == CONTEXT_LIVES;
}

void meter_read(struct meter *m, CUcontext context)
{
	int cancel;
	if (!relaxed(&m->closed) || !mark_try(&m->mark, &cancel))
		return;
	if (meter_is(m, context))
		batch_sweep(m);
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
	/* Allow two batches if no estimate is known. Work that has been under way for longer than
	 * estimated counts as long as that. */
	if (relaxed(&m->under_way) > METER_LAUNCHES || closed == METER_BATCHES || (!flight && closed > 1))
		return METER_MUCH;
	return flight + age ? (flight > age ? flight : age) : 1;
}

void meter_give_up(struct meter *m) { set(&m->given_up, 1); }

/* Contexts. */

/* meter_settle counts an estimate of all that is not measured, for a context whose streams cannot
 * be asked any more. Work under way counts from its launch on, for at most most ns. The caller
 * holds the meter's mark. */
static void meter_settle(struct meter *m, uint64_t most)
{
	uint64_t now = clock_exact(), ns = m->flight_ns, age = m->closed && now > m->oldest ? now - m->oldest : 0;
	age = age < most ? age : most;
	ns = ns > age ? ns : age;
	for (struct meter_stream *e = m->stream; e < m->stream + METER_STREAMS; e++)
		ns += e->context ? batch_lost(m, e, relaxed(&e->pending)) : 0;
	busy_claim(&m->busy, now, ns);
	meter_tell(m);
}

/* meter_sweep_any measures the ended batches of a living context that need not be current. The
 * caller holds the meter's mark. */
static void meter_sweep_any(struct meter *m)
{
	CUcontext popped;
	if (!m->closed || REAL(cuCtxPushCurrent_v2, m->handle) != CUDA_SUCCESS)
		return;
	batch_sweep(m);
	REAL(cuCtxPopCurrent_v2, &popped);
}

/* meter_evict stops measuring a living context, and destroys its events. The caller holds the
 * meter's mark. */
static void meter_evict(struct meter *m)
{
	meter_settle(m, METER_MUCH);
	CUevent events[2 * METER_BATCHES + METER_STREAMS + 1] = {m->clock.base};
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

/* meter_renew gives a meter to another context. The caller holds the meter's mark. Threads may read
 * the atomic fields meanwhile: they find no stream and no context. */
static void meter_renew(struct meter *m, CUcontext handle, struct device *d)
{
	__atomic_store_n(&m->handle, NULL, __ATOMIC_RELEASE);
	if (relaxed(&m->uncharged)) {
		__atomic_store_n(&m->uncharged, 0, __ATOMIC_SEQ_CST);
		meter_changed(m->device);
	}
	for (struct meter_stream *e = m->stream; e < m->stream + METER_STREAMS; e++) {
		e->meter = m;
		set(&e->context, NULL);
		set(&e->allowance, 0);
		e->start = NULL;
		e->ends = 0;
	}
	memset(m->batch, 0, sizeof m->batch);
	m->streams = 0;
	set(&m->closed, 0);
	set(&m->under_way, 0);
	set(&m->flight_ns, 0);
	set(&m->given_up, 0);
	m->lately_ns = m->lately_launches = 0;
	event_clock_begin(&m->clock);
	busy_begin(&m->busy, d);
	set(&m->device, d);
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
	/* After this no thread uses the context's events; mark_take waits for a thread that still
	 * does. */
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
		set(&m->state, CONTEXT_ENDED);
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

/* meter_leave frees a stream's entry. The caller holds the meter's mark. */
static void meter_leave(struct meter *m, struct meter_stream *e)
{
	batch_tail(m, e, UINT64_MAX, 0); /* the launches may not have begun yet */
	set(&e->context, NULL);
	set(&e->allowance, 0);
}

/* meter_stream returns the entry of a stream. If it has none, it replaces the stream without a
 * closed batch that was launched on longest ago; there is always one, because there are more
 * entries than batches. The caller holds the meter's mark. */
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
	if (m->streams <= (uint32_t)(free - m->stream))
		m->streams = (uint32_t)(free - m->stream) + 1;
	set(&free->copied, 0);
	set(&free->graph, false);
	free->after = AFTER_NOTHING;
	free->recorded = free->missed = now;
	free->run = free->burst = free->wary = 0;
	free->sampled = false;
	free->chance = free->chance_lost = (struct chance){0};
	free->one_of = 1;
	free->owed_ns = 0;
	free->apart_ns = 0;
	free->launch_ns = 0;
	free->until = -1;
	__atomic_store_n(&free->context, m->handle, __ATOMIC_RELEASE);
	return free;
}

/* Launches. */

/* meter_captured returns true if a launch on the stream is only recorded into a graph. It also
 * returns true if asking fails, because a capture forbids the query. */
static bool meter_captured(CUstream stream)
{
	int status = 0;
	return unlikely(capture_seen()) && (REAL(cuStreamIsCapturing, stream, &status) != CUDA_SUCCESS || status != 0);
}

/* meter_busy returns true if a stream has work. The caller holds the meter's mark. */
static bool meter_busy(const struct meter_stream *e)
{
	if (e->ends || !relaxed(&e->pending))
		return e->ends > 0;
	int mode = capture_relax_always(), result = REAL(cuStreamQuery, e->stream);
	capture_restore(mode);
	return result == CUDA_ERROR_NOT_READY;
}

/* meter_missed is called for launches without an event behind them, before a pause of their stream
 * through which the last one may have run. It returns how much of the pause is charged, in ns; if
 * that is 0, the next launches are each looked at. The caller holds the meter's mark. */
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

/* meter_lose counts an estimate of the launches on a stream that is idle, or whose state is not
 * known. The caller holds the meter's mark. */
static void meter_lose(struct meter *m, struct meter_stream *e, uint64_t now)
{
	uint64_t lost = relaxed(&e->pending), pause = now - relaxed(&e->last), more = 0;
	if (lost && pause >= METER_HIDDEN)
		more = meter_missed(e, now, pause, lost);
	else if (lost)
		e->sampled = true;
	e->burst = 0;
	batch_tail(m, e, now, more);
	e->recorded = now;
}

/* meter_allow sets after how many launches the next one is looked at: each of the first ones after
 * a pause, then ever fewer, but at least one in about 2 ms. The caller holds the meter's mark. */
static void meter_allow(struct meter_stream *e)
{
	uint64_t most = e->sampled ? METER_SAMPLE : METER_BATCHES, size = e->run / 8 < most ? e->run / 8 : most;
	uint64_t launch_ns = e->sampled && e->chance.launches ? (uint64_t)e->chance.ns : e->launch_ns;
	if (e->sampled && launch_ns < e->apart_ns)
		launch_ns = e->apart_ns; /* a launch may take all the time until the next one */
	if (launch_ns && size > METER_BATCH / launch_ns)
		size = METER_BATCH / launch_ns;
	if (!size || e->wary || relaxed(&meter_crowded))
		size = 1;
	e->one_of = (uint32_t)size;
	size = size > 1 ? chance_draw(size) : 1;
	set(&e->allowance, size ? (uint32_t)size : 1);
	set(&e->pause, e->sampled ? METER_HIDDEN : METER_PAUSE);
	set(&e->look, e->recorded + METER_BATCH);
}

/* meter_add counts a launch that was made without an event. If two threads do this at once, one
 * launch may not be counted: the batch is only a little longer. */
static inline void meter_add(struct meter_stream *e, uint64_t now)
{
	uint32_t n = relaxed(&e->pending);
	uint64_t none = 0;
	if (likely(n)) {
		set(&e->pending, n + 1);
		return;
	}
	set(&e->first, now);
	/* Sequentially consistent, both: see meter_publish. */
	__atomic_store_n(&e->pending, 1, __ATOMIC_SEQ_CST);
	if (unlikely(!__atomic_load_n(&e->meter->uncharged, __ATOMIC_SEQ_CST)) &&
	    __atomic_compare_exchange_n(&e->meter->uncharged, &none, now, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		meter_changed(e->meter->device);
}

/* meter_enter counts a launch that is looked at. It returns true if an event must be recorded after
 * it. The caller holds the meter's mark. */
static bool meter_enter(struct meter *m, struct meter_stream *e, uint64_t now, bool alone, bool idle)
{
	bool busy = meter_busy(e), behind = e->ends > 0, copied = __atomic_exchange_n(&e->copied, 0, __ATOMIC_RELAXED);
	m->pauses += idle;
	bool paused = e->pauses != m->pauses;
	bool chosen = relaxed(&e->pending) + 1 >= relaxed(&e->allowance);
	e->stands = chosen && !alone ? e->one_of : 0;
	e->apart_ns = (now - e->recorded) / (relaxed(&e->pending) + 1);
	e->sampled = !behind && !paused && (busy || e->sampled);
	/* A chosen launch gets a batch of its own, because a program may have chosen the launches
	 * before it. But not if other streams have batches, where that counted 3 % too much
	 * (compute_copies.c, copies_in_streams). */
	if (busy && (alone || !behind || (chosen && e->ends == m->closed)))
		batch_close(m, e, now, false);
	/* The last batch ended before the copy; or it could not be ended, and continues. */
	if (copied && !relaxed(&e->pending))
		e->after = AFTER_NOTHING;
	bool anew = !busy || e->after == AFTER_NOTHING;
	if (anew)
		meter_lose(m, e, now);
	bool measured = alone || copied || !e->sampled || chosen || e->wary;
	if (anew && measured)
		batch_start(m, e, now, copied);
	if (!relaxed(&e->pending))
		set(&e->first, now);
	uint32_t n = __atomic_add_fetch(&e->pending, 1, __ATOMIC_RELAXED);
	e->wary -= e->wary > 0;
	e->run = paused ? 0 : e->run + n;
	e->pauses = m->pauses;
	set(&e->last, now);
	meter_allow(e);
	return measured && (alone || chosen || e->sampled || n >= e->allowance || now - e->recorded >= METER_BATCH);
}

bool meter_begins(struct meter *m, CUcontext context, CUstream stream, bool graph, bool idle, bool *ends)
{
	struct meter_stream **cached = meter_cached(stream), *e = *cached;
	int cancel;
	*ends = false;
	if (!mark_take(&m->mark, &cancel)) {
		if (e && meter_is_stream(e, stream, context))
			meter_add(e, clock_exact());
		return true;
	}
	uint64_t now = clock_exact();
	*cached = e = meter_is(m, context) ? meter_stream(m, stream, now) : NULL;
	*ends = e && meter_enter(m, e, now, graph && !relaxed(&e->graph), idle);
	if (e)
		set(&e->graph, graph);
	meter_give(m, cancel);
	return e != NULL;
}

bool meter_passes(CUstream stream, bool graph)
{
	struct meter_stream *e = *meter_cached(stream);
	CUcontext context = NULL;
	uint64_t now = clock_exact();
	if (unlikely(!e || (graph && !relaxed(&e->graph)) || relaxed(&e->stream) != stream ||
		     now - relaxed(&e->last) >= relaxed(&e->pause) || now >= relaxed(&e->look)))
		return meter_captured(stream);
	if (unlikely(relaxed(&e->pending) + 1 >= relaxed(&e->allowance) || relaxed(&e->copied) || capture_any()))
		return meter_captured(stream);
	/* The default streams of all contexts have the same handles. */
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD &&
	    (REAL(cuCtxGetCurrent, &context) != CUDA_SUCCESS || context != relaxed(&e->context)))
		return meter_captured(stream);
	set(&e->last, now);
	set(&e->graph, graph);
	meter_add(e, now);
	return true;
}

void meter_ends(CUstream stream)
{
	struct meter_stream *e = *meter_cached(stream);
	struct meter *m = e ? e->meter : NULL;
	int cancel;
	/* Before the launch the stream was asked whether it is captured. */
	if (!m || (capture_any() && meter_captured(stream)) || !mark_take(&m->mark, &cancel))
		return;
	if (m->handle && relaxed(&m->state) == CONTEXT_LIVES && meter_is_stream(e, stream, m->handle)) {
		batch_close(m, e, clock_exact(), true);
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
		batch_close(m, e, clock_exact(), false);
	meter_give(m, cancel);
}

/* meter_place returns the entry of a stream, or NULL if it has none. */
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
		batch_sweep(m); /* so that batches that have ended do not make the stream seem busy */
	if (meter_is(m, context) && meter_is_stream(e, stream, context)) {
		uint64_t now = clock_exact();
		if (meter_busy(e))
			batch_close(m, e, now, false);
		else
			meter_lose(m, e, now); /* after the copy the stream would seem busy */
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
		batch_sweep(m); /* so that batches that have ended do not make a stream seem busy */
	for (unsigned i = 0; i < METER_CACHE && meter_is(m, context); i++) {
		struct meter_stream *e = meter_cache[i];
		if (!e || e < m->stream || e >= m->stream + METER_STREAMS || !meter_is_stream(e, e->stream, context) ||
		    meter_captured(e->stream))
			continue;
		if (meter_busy(e))
			batch_close(m, e, clock_exact(), false);
		else
			meter_lose(m, e, clock_exact()); /* count them now, and not for all the time until the next launch */
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
				batch_close(m, e, clock_exact(), false);
			meter_leave(m, e);
		}
		meter_give(m, cancel);
	}
}
