#define _GNU_SOURCE
#include "engine.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "atomics.h"

void engine_make(struct engine *e)
{
	pthread_mutexattr_t a;
	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&e->lock, &a);
	pthread_mutexattr_destroy(&a);
	e->books[0].loaded = ENGINE_NONE;
}

struct engine_books *engine_open(struct engine *e)
{
	struct engine_books *from, *to;
	if (pthread_mutex_lock(&e->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&e->lock); /* its unfinished changes are in the copy that is not valid */
	from = &e->books[load_acquire(&e->truth)];
	to = &e->books[!load_acquire(&e->truth)];
	memcpy(to, from, offsetof(struct engine_books, context) + from->high * sizeof *from->context);
	return to;
}

void engine_close(struct engine *e, struct engine_books *b, bool keep)
{
	if (keep)
		store_release(&e->truth, (uint32_t)(b - e->books));
	pthread_mutex_unlock(&e->lock);
}

bool engine_has_work(const struct engine_context *c) { return c->state == ENGINE_LIVE && (c->apart ? c->front != 0 : c->head < c->tail); }

/* Returns the context whose turn is next: the next one that has work, or the same one again if no
 * other has. */
static unsigned engine_next(const struct engine_books *b)
{
	unsigned from = b->loaded < b->high ? b->loaded + 1 : 0;
	for (unsigned n = 0; n < b->high; n++) {
		unsigned i = (from + n) % b->high;
		if (engine_has_work(&b->context[i]))
			return i;
	}
	return ENGINE_NONE;
}

/* Marks the entries as reached whose end is at or before the work that is done now; done_before was
 * done at `from`. */
static void engine_reach(struct engine *e, struct engine_context *c, unsigned i, uint64_t done_before, uint64_t from)
{
	for (; c->head < c->tail; c->head++) {
		struct engine_entry *entry = &e->queue[i][c->head % ENGINE_QUEUE];
		if (entry->end > c->done)
			return;
		entry->at = from + (entry->end - done_before);
	}
}

bool engine_is_reached(const struct engine *e, const struct engine_books *b, unsigned i, uint64_t number)
{
	return number < b->context[i].head || (b->context[i].apart && e->queue[i][number % ENGINE_QUEUE].at <= b->now);
}

static bool engine_is_ready(const struct engine *e, const struct engine_books *b, unsigned i, const struct engine_step *s)
{
	return (s->after == 0 || engine_is_reached(e, b, i, s->after - 1)) && (s->also == 0 || engine_is_reached(e, b, i, s->also - 1));
}

/* Makes the context apart. Its work was submitted in order, and its first entry is a kernel. */
static void engine_part(const struct engine *e, struct engine_books *b, unsigned i)
{
	struct engine_context *c = &b->context[i];
	c->apart = 1;
	b->apart++;
	c->front = c->head < c->tail ? c->head + 1 : 0;
	c->left = c->front != 0 ? e->queue[i][c->head % ENGINE_QUEUE].end - c->done : 0;
}

/* Ends the state apart: the remaining work is done in order. */
static void engine_rejoin(struct engine *e, struct engine_books *b, unsigned i)
{
	struct engine_context *c = &b->context[i];
	uint64_t end = c->done;
	for (uint64_t n = c->head; n < c->tail; n++) {
		struct engine_entry *entry = &e->queue[i][n % ENGINE_QUEUE];
		entry->end = end += n + 1 == c->front ? c->left : entry->step.ns;
	}
	c->apart = 0;
	b->apart--;
}

/* Starts the work and reaches the entries that are possible now, in a context that is apart. */
static void engine_settle(struct engine *e, struct engine_books *b, unsigned i)
{
	struct engine_context *c = &b->context[i];
	bool had = engine_has_work(c), gap = false, scattered = false, beside = false;

	c->wake = ENGINE_NEVER;
	for (uint64_t n = c->head; n < c->tail; n++) {
		struct engine_entry *entry = &e->queue[i][n % ENGINE_QUEUE];
		const struct engine_step *s = &entry->step;
		if (entry->at > b->now && n + 1 != c->front && engine_is_ready(e, b, i, s)) {
			if (s->beside && entry->at == ENGINE_NEVER)
				entry->at = b->now + s->ns;
			else if (!s->beside && s->ns == 0)
				entry->at = b->now;
			else if (!s->beside && c->front == 0)
				c->front = n + 1, c->left = s->ns;
			if (s->beside && entry->at < c->wake)
				c->wake = entry->at;
		}
		beside = beside || (s->beside && entry->at > b->now);
		scattered = scattered || (gap && entry->at <= b->now);
		gap = gap || entry->at > b->now;
	}
	while (c->head < c->tail && e->queue[i][c->head % ENGINE_QUEUE].at <= b->now)
		c->head++;
	if (!beside && !scattered && (c->front == 0 || c->front == c->head + 1))
		engine_rejoin(e, b, i);
	if (had && !engine_has_work(c))
		c->busy += b->now - c->since;
	if (had != engine_has_work(c))
		c->since = b->now;
}

/* The first end of anything that runs beside kernels, or `now` if that is earlier. */
static uint64_t engine_until(const struct engine_books *b, uint64_t now)
{
	for (unsigned i = 0; b->apart > 0 && i < b->high; i++)
		if (b->context[i].apart && b->context[i].wake < now)
			now = b->context[i].wake;
	return now;
}

static void engine_wake(struct engine *e, struct engine_books *b)
{
	for (unsigned i = 0; b->apart > 0 && i < b->high; i++)
		if (b->context[i].apart && b->context[i].wake <= b->now)
			engine_settle(e, b, i);
}

/* Runs the context whose turn it is for ns at most. */
static void engine_run(struct engine *e, struct engine_books *b, uint64_t ns)
{
	struct engine_context *c = &b->context[b->loaded];
	uint64_t before = c->done, from = b->now;

	if (ns > b->slice_left)
		ns = b->slice_left;
	if (ns > (c->apart ? c->left : c->submitted - c->done))
		ns = c->apart ? c->left : c->submitted - c->done;
	c->done += ns;
	b->now += ns;
	b->slice_left -= ns;
	if (c->apart) {
		c->left -= ns;
		if (c->left == 0) {
			e->queue[b->loaded][(c->front - 1) % ENGINE_QUEUE].at = b->now;
			c->front = 0;
			c->busy += b->now - c->since;
			engine_settle(e, b, b->loaded);
		}
		return;
	}
	engine_reach(e, c, b->loaded, before, from);
	if (c->done == c->submitted) {
		c->busy += b->now - c->since;
		c->since = b->now;
	}
}

void engine_advance(struct engine *e, struct engine_books *b, uint64_t now, struct engine_costs costs)
{
	while (b->now < now) {
		uint64_t left = engine_until(b, now) - b->now;
		if (b->loaded == ENGINE_NONE || (b->slice_left == 0 && b->switch_left == 0) || !engine_has_work(&b->context[b->loaded])) {
			unsigned next = engine_next(b);
			if (next == ENGINE_NONE) {
				b->idle += left;
				b->now += left;
				engine_wake(e, b);
				continue;
			}
			b->slice_left = b->context[next].slice;
			if (next != b->loaded) {
				uint64_t lost = costs.resume_ns < b->slice_left ? costs.resume_ns : b->slice_left;
				b->switch_left = costs.switch_ns + lost;
				b->slice_left -= lost;
				b->switches++;
			}
			b->loaded = next;
			b->context[next].turns++;
		}
		if (b->switch_left > 0) {
			uint64_t ns = b->switch_left < left ? b->switch_left : left;
			b->switch_left -= ns;
			b->switching += ns;
			b->now += ns;
		} else {
			engine_run(e, b, left);
		}
		engine_wake(e, b);
	}
}

/* A place that was never used, or else the one whose context ended longest ago. */
static unsigned engine_place(struct engine_books *b)
{
	unsigned best = ENGINE_NONE;
	if (b->high < ENGINE_CONTEXTS)
		return b->high++;
	for (unsigned i = 0; i < ENGINE_CONTEXTS; i++)
		if (b->context[i].state != ENGINE_LIVE && (best == ENGINE_NONE || b->context[i].ended < b->context[best].ended))
			best = i;
	return best;
}

unsigned engine_join(struct engine *e, struct engine_books *b, unsigned slot, uint64_t identity, uint32_t pid)
{
	unsigned i = engine_place(b);
	if (i == ENGINE_NONE)
		return i;
	if (b->loaded == i) /* what was loaded there is gone */
		b->loaded = ENGINE_NONE;
	b->context[i] = (struct engine_context){
		.state = ENGINE_LIVE, .slot = slot, .identity = identity, .pid = pid, .number = ++e->numbers, .slice = ENGINE_FIRST_SLICE};
	return i;
}

void engine_leave(struct engine_books *b, unsigned i)
{
	struct engine_context *c = &b->context[i];
	if (engine_has_work(c))
		c->busy += b->now - c->since;
	b->apart -= c->apart;
	c->apart = 0;
	c->state = ENGINE_ENDED;
	c->ended = b->now;
	if (b->loaded == i)
		b->slice_left = b->switch_left = 0;
}

bool engine_is_full(const struct engine_books *b, unsigned i) { return b->context[i].tail - b->context[i].head >= ENGINE_QUEUE; }

void engine_submit(struct engine *e, struct engine_books *b, unsigned i, struct engine_step step)
{
	struct engine_context *c = &b->context[i];
	if (step.beside && !c->apart)
		engine_part(e, b, i);
	bool waits = b->loaded == i ? b->switch_left > 0 : b->loaded != ENGINE_NONE && engine_has_work(&b->context[b->loaded]);
	if (!step.beside && (step.ns > 0 || waits) && !c->apart && !engine_has_work(c))
		c->since = b->now;
	c->submitted += step.beside ? 0 : step.ns;
	e->queue[i][c->tail % ENGINE_QUEUE] = (struct engine_entry){.end = c->submitted, .at = ENGINE_NEVER, .step = step};
	c->tail++;
	if (c->apart)
		engine_settle(e, b, i);
	else if (!waits)                                /* for its turn */
		engine_reach(e, c, i, c->done, b->now); /* where all before it is done, so is it */
}

uint64_t engine_soonest(const struct engine *e, const struct engine_books *b, unsigned i, uint64_t number, struct engine_costs costs)
{
	const struct engine_context *c = &b->context[i], *other;
	uint64_t end = e->queue[i][number % ENGINE_QUEUE].end;
	uint64_t at = b->now + (end > c->done ? end - c->done : 0);

	if (c->apart)
		return c->front != 0 && b->now + c->left < c->wake ? b->now + c->left : c->wake;
	if (b->loaded == i)
		return at + b->switch_left;
	at += costs.switch_ns + costs.resume_ns;
	if (b->loaded == ENGINE_NONE || !engine_has_work(&b->context[b->loaded]))
		return at;
	other = &b->context[b->loaded];
	return at + b->switch_left + (b->slice_left < other->submitted - other->done ? b->slice_left : other->submitted - other->done);
}
