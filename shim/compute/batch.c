#include "compute/batch.h"

#include "capture.h"
#include "clock.h"
#include "hooks.h"

/* The most time, in ns, that the driver is assumed to need between the event before a launch and
 * the kernel's start. A launch that takes longer may be waiting for its kernel. */
#define BATCH_HANDOVER UINT64_C(5000)
/* The most that owed_ns keeps, in ns: so much may be charged too much once, if launches have become
 * shorter. */
#define BATCH_OWED UINT64_C(50000000)

/* batch_guess returns an estimate, in ns, of launches that are not measured yet: as long as the
 * last measured ones of the stream, or otherwise of the context. */
static uint64_t batch_guess(const struct meter *m, const struct meter_stream *e, uint64_t launches)
{
	if (e->launch_ns)
		return e->launch_ns * launches;
	return m->lately_launches > 0 ? (uint64_t)(m->lately_ns / m->lately_launches * (double)launches) : 0;
}

uint64_t batch_lost(const struct meter *m, const struct meter_stream *e, uint64_t launches)
{
	double ns = e->chance.ns > e->chance_lost.ns ? e->chance.ns : e->chance_lost.ns;
	return e->chance.launches ? (uint64_t)(ns * (double)launches) : batch_guess(m, e, launches);
}

/* batch_until returns when a batch ended, as CPU time in ns. from and to are its times by events. */
static uint64_t batch_until(struct meter *m, const struct meter_batch *b, double from, double to, uint64_t now)
{
	if (b->started)
		event_clock_tie(&m->clock, from, b->started);
	uint64_t until = event_clock_cpu(&m->clock, to);
	return until && until < now ? until : now;
}

/* batch_measure counts the time of a batch that has ended, and updates the estimates from it. */
static void batch_measure(struct meter *m, struct meter_stream *e, struct meter_batch *b, uint64_t now)
{
	float took = 0;
	double from = e->until, to = -1;
	bool known = b->follows ? from >= 0 : REAL(cuEventElapsedTime, &took, b->start, b->end) == CUDA_SUCCESS && took >= 0;
	bool ended = event_clock_keep(&m->clock, &b->end, &to);
	e->until = to;
	if (!b->follows)
		from = to - (took > b->handed_ns / 1e6 ? took - b->handed_ns / 1e6 : 0);
	if (b->sure && ended && m->clock.offset >= 0) {
		uint64_t until = event_clock_cpu(&m->clock, to), sure = until > b->sure ? until - b->sure : 0;
		double most = (double)(sure > b->guess_ns ? sure : b->guess_ns) / 1e6; /* guess_ns is an estimate for the whole batch */
		from = known && from > to - most ? from : to - most;
		known = true;
	}
	if (!known || !ended || from > to) {
		busy_claim(&m->busy, now, b->guess_ns);
		return;
	}
	double all = to - from, used = busy_count(&m->busy, (struct busy_interval){from, to}, batch_until(m, b, from, to, now));
	if (b->sure)
		return;
	/* If other streams had work at the same time, this batch alone does not tell how long a
	 * launch takes. */
	e->launch_ns = used < all - 1e-3 ? 0 : (uint64_t)(all * 1e6 / b->launches) + 1;
	if (b->stands)
		chance_learn(&e->chance, used * 1e6 / b->launches, b->stands);
	if (b->stands && !b->superseded)
		chance_learn(&e->chance_lost, used * 1e6 / b->launches, b->stands);
	m->lately_ns = m->lately_ns * 7 / 8 + used * 1e6;
	m->lately_launches = m->lately_launches * 7 / 8 + b->launches;
}

static void batch_swap(struct meter_batch *a, struct meter_batch *b)
{
	struct meter_batch c = *a;
	*a = *b;
	*b = c;
}

/* batch_began keeps in m->first when the oldest closed batch began. A batch that was launched while
 * its stream had other work began when that ended. */
static void batch_began(struct meter *m, const struct meter_batch *b)
{
	uint64_t until = event_clock_cpu(&m->clock, m->stream[b->stream].until), first = b->first > until ? b->first : until;
	m->first = first < m->first ? first : m->first;
}

void batch_sweep(struct meter *m)
{
	bool busy[METER_STREAMS] = {false};
	uint32_t n = m->closed, kept = 0;
	int mode = capture_relax_always();
	uint64_t now = clock_exact();
	for (uint32_t i = 0; i < n; i++) {
		struct meter_batch *b = &m->batch[i];
		struct meter_stream *e = &m->stream[b->stream];
		int result = busy[b->stream] ? CUDA_ERROR_NOT_READY : REAL(cuEventQuery, b->end);
		if (result == CUDA_ERROR_NOT_READY) {
			busy[b->stream] = true;
			if (kept != i)
				batch_swap(b, &m->batch[kept]); /* the other one's events are recorded again */
			kept++;
			continue;
		}
		if (result == CUDA_SUCCESS) {
			batch_measure(m, e, b, now);
		} else {
			e->until = -1;
			busy_claim(&m->busy, now, b->guess_ns);
		}
		e->ends--;
		set(&m->under_way, m->under_way - b->launches);
		set(&m->flight_ns, m->flight_ns - b->guess_ns);
		set(&m->given_up, 0);
	}
	capture_restore(mode);
	set(&m->closed, kept);
	set(&m->oldest, kept ? m->batch[0].at : UINT64_MAX);
	if (kept == n)
		return;
	m->first = UINT64_MAX;
	for (uint32_t i = 0; i < kept; i++)
		batch_began(m, &m->batch[i]);
}

/* batch_last returns the time of a stream's last event, in ms; < 0 if it is not known. */
static double batch_last(const struct meter *m, const struct meter_stream *e)
{
	double at = -1;
	if (e->after == AFTER_START && event_clock_when(&m->clock, e->start, &at))
		return at;
	return e->after == AFTER_END ? e->until : -1;
}

void batch_tail(struct meter *m, struct meter_stream *e, uint64_t now, uint64_t more)
{
	uint64_t guess = batch_lost(m, e, __atomic_exchange_n(&e->pending, 0, __ATOMIC_RELAXED)) + more, from = e->recorded;
	double last = guess || e->owed_ns ? batch_last(m, e) : -1;
	if (last >= 0 && event_clock_cpu(&m->clock, last) > from)
		from = event_clock_cpu(&m->clock, last);
	uint64_t all = guess + e->owed_ns;
	guess = from > now ? 0 : all < now - from ? all : now - from;
	e->owed_ns = all - guess < BATCH_OWED ? all - guess : BATCH_OWED;
	if (last >= 0)
		busy_count(&m->busy, (struct busy_interval){last, last + (double)guess / 1e6}, from + guess);
	else
		busy_claim(&m->busy, from + guess, guess);
	e->after = AFTER_NOTHING;
}

static bool batch_record(CUevent *event, CUstream stream)
{
	return (*event || REAL(cuEventCreate, event, 0) == CUDA_SUCCESS) && REAL(cuEventRecord, *event, stream) == CUDA_SUCCESS;
}

void batch_start(struct meter *m, struct meter_stream *e, uint64_t now, bool copied)
{
	if (batch_record(&e->start, e->stream))
		e->after = AFTER_START;
	e->ready = clock_exact();
	e->started = m->closed || copied ? 0 : now; /* behind a copy the event is reached only when the copy ends */
}

/* batch_supersede is called before another event is recorded in a stream. It marks the stream's
 * last batch as superseded if an event from before that batch has not been reached yet: then,
 * without the two events around it, its launch would have been measured now, together with the
 * launches before it. */
static void batch_supersede(struct meter *m, const struct meter_stream *e)
{
	struct meter_batch *b = m->batch + m->closed;
	if (e->ends <= 2)
		return;
	do
		b--;
	while (m->stream + b->stream != e);
	b->superseded = true;
}

void batch_close(struct meter *m, struct meter_stream *e, uint64_t now, bool launched)
{
	bool gaps = !launched && !e->ends;
	struct meter_batch *b = &m->batch[m->closed];
	if (!relaxed(&e->pending) || m->closed == METER_BATCHES || (e->after == AFTER_NOTHING && !gaps) ||
	    !batch_record(&b->end, e->stream))
		return;
	batch_supersede(m, e);
	if (e->after == AFTER_NOTHING)
		e->until = -1;
	b->follows = e->after != AFTER_START;
	b->stands = launched ? e->stands : 0;
	b->superseded = false;
	if (!b->follows) {
		CUevent start = b->start;
		b->start = e->start;
		e->start = start;
	}
	/* The stream was idle, so the device reached the event before the launch at once. */
	uint64_t handed = launched && e->started && relaxed(&e->pending) == 1 ? now - e->ready : 0;
	b->handed_ns = b->follows ? 0 : handed < BATCH_HANDOVER ? handed : BATCH_HANDOVER;
	b->started = b->follows ? 0 : e->started;
	b->sure = gaps ? relaxed(&e->last) : 0;
	b->stream = (unsigned)(e - m->stream);
	b->launches = __atomic_exchange_n(&e->pending, 0, __ATOMIC_RELAXED);
	e->burst += b->launches;
	b->guess_ns = gaps ? batch_lost(m, e, b->launches) : batch_guess(m, e, b->launches);
	b->at = e->recorded = now;
	b->first = relaxed(&e->first);
	e->after = AFTER_END;
	e->ends++;
	if (!m->closed) {
		set(&m->oldest, now);
		m->first = UINT64_MAX;
	}
	batch_began(m, b);
	set(&m->closed, m->closed + 1);
	set(&m->under_way, m->under_way + b->launches);
	set(&m->flight_ns, m->flight_ns + b->guess_ns);
}
