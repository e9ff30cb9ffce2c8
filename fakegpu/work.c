#define _GNU_SOURCE
#include "work.h"

#include <stdlib.h>
#include <string.h>

#include "books.h"
#include "faults.h"
#include "report.h"

bool work_timed;

/* Guards all marks of the process, and the open work of its contexts. The engine's lock may be
 * taken while it is held; no thread sleeps with either. */
static pthread_mutex_t work_lock = PTHREAD_MUTEX_INITIALIZER;

enum { KERNELS = 64 };

static struct work_kernel {
	char name[128]; /* "*": all others */
	uint64_t ns;
	bool per_block;
} work_kernels[KERNELS];
static unsigned work_kernel_count;

/* NAME:US or NAME:US/block */
static int work_parse(char *text)
{
	struct work_kernel *k = &work_kernels[work_kernel_count];
	char *number = strrchr(text, ':'), *end;
	double us;

	if (number == NULL || number == text || (size_t)(number - text) >= sizeof k->name || work_kernel_count == KERNELS)
		return -1;
	us = strtod(number + 1, &end);
	if (end == number + 1 || !(us >= 0 && us < 1e12) || (*end != '\0' && strcmp(end, "/block") != 0))
		return -1;
	memcpy(k->name, text, (size_t)(number - text));
	k->ns = (uint64_t)(us * 1000 + 0.5);
	k->per_block = *end != '\0';
	work_kernel_count++;
	return 0;
}

static void work_load_once(void)
{
	const char *value = getenv("FAKEGPU_KERNEL");
	char *copy, *save = NULL;

	if (value == NULL || *value == '\0' || (copy = strdup(value)) == NULL)
		return;
	for (char *one = strtok_r(copy, ",", &save); one != NULL; one = strtok_r(NULL, ",", &save))
		if (work_parse(one) != 0)
			report_note("FAKEGPU_KERNEL=%s cannot be read (try saxpy:200,*:10 or saxpy:0.5/block)", value);
	free(copy);
	work_timed = true;
}

void work_load(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, work_load_once);
}

void work_duration(const char *kernel, uint64_t *ns, uint64_t *ns_per_block)
{
	const struct work_kernel *found = NULL;
	for (unsigned i = 0; i < work_kernel_count; i++)
		if (strcmp(work_kernels[i].name, kernel) == 0 || (found == NULL && strcmp(work_kernels[i].name, "*") == 0))
			found = &work_kernels[i];
	*ns = found != NULL && !found->per_block ? found->ns : 0;
	*ns_per_block = found != NULL && found->per_block ? found->ns : 0;
}

/* The engine's books, as of now, with a point where a test can stop a process that has them open. */
static struct engine_books *work_books(unsigned device, enum books_look look)
{
	struct engine_books *b = books_open(device, look);
	fault_inside("engineAdvance");
	return b;
}

void work_open(struct work *w, unsigned device)
{
	struct engine_books *b;

	pthread_mutex_lock(&work_lock);
	b = work_books(device, BOOKS_NOW_AND_THEN);
	*w = (struct work){.open = true, .device = device};
	w->index = engine_join(machine_engine(w->device), b, machine_slot(), machine_identity(), machine_pid());
	if (w->index == ENGINE_NONE) {
		books_close(w->device, b);
		b = work_books(w->device, BOOKS_ALL);
		w->index = engine_join(machine_engine(w->device), b, machine_slot(), machine_identity(), machine_pid());
	}
	if (w->index != ENGINE_NONE)
		w->number = b->context[w->index].number;
	books_close(w->device, b);
	pthread_mutex_unlock(&work_lock);
	if (w->index == ENGINE_NONE && work_timed)
		report_note("the engine has no place for more than %d contexts: kernels of this one take no time", ENGINE_CONTEXTS);
}

/* Opens the books if the context has an entry in them. Returns false if the context has ended or
 * had no entry, or if another process took this one for dead and removed the entry. The caller
 * holds work_lock. */
static bool work_enter(const struct work *w, enum books_look look, struct engine_books **out)
{
	const struct engine_context *c;
	if (!w->open || w->index == ENGINE_NONE)
		return false;
	*out = work_books(w->device, look);
	c = &(*out)->context[w->index];
	if (c->state == ENGINE_LIVE && c->number == w->number)
		return true;
	books_close(w->device, *out);
	return false;
}

void work_close(struct work *w)
{
	struct engine_books *b;
	pthread_mutex_lock(&work_lock);
	if (work_enter(w, BOOKS_NOW_AND_THEN, &b)) {
		engine_leave(b, w->index);
		books_close(w->device, b);
		if (work_timed)
			clock_wake(machine_clock()); /* others may be done earlier */
	}
	w->open = false;
	free(w->marks);
	w->marks = NULL;
	pthread_mutex_unlock(&work_lock);
}

static bool work_is_open(const struct work *w, uint32_t number) { return w->open && w->index != ENGINE_NONE && w->number == number; }

/* Under the lock. */
static void work_unset(struct work_mark *m)
{
	struct work *w = m->work;
	if (w != NULL && work_is_open(w, m->number) && w->marks != NULL && w->marks[m->entry % ENGINE_QUEUE] == m)
		w->marks[m->entry % ENGINE_QUEUE] = NULL;
	*m = (struct work_mark){.at = clock_now(machine_clock())};
}

/* The place that an entry takes may hold the time of one that a mark still wants. Under the lock. */
static void work_put_mark(struct work *w, uint64_t entry, struct work_mark *mark)
{
	const struct engine_entry *place = &machine_engine(w->device)->queue[w->index][entry % ENGINE_QUEUE];
	struct work_mark *old;

	if (mark != NULL)
		work_unset(mark);
	if (w->marks == NULL && mark != NULL)
		w->marks = calloc(ENGINE_QUEUE, sizeof *w->marks);
	if (w->marks == NULL)
		return; /* a mark that has no place is taken as reached */
	old = w->marks[entry % ENGINE_QUEUE];
	if (old != NULL) {
		old->at = place->at;
		old->work = NULL;
	}
	w->marks[entry % ENGINE_QUEUE] = mark;
	if (mark != NULL)
		*mark = (struct work_mark){.work = w, .number = w->number, .entry = entry};
}

/* Sleeps until an entry can be done, if no other context runs before; true if it still has to be
 * done, or with `all` one before it. Under the lock, which it lets go of meanwhile. */
static bool work_sleep(struct work *w, uint64_t entry, bool all)
{
	uint32_t turns = load_acquire(&machine_clock()->turns), number = w->number;
	struct engine_books *b;
	uint64_t until;
	bool more;

	if (!work_enter(w, BOOKS_WITH_WORK, &b))
		return false;
	more = b->context[w->index].head <= entry && (all || !engine_is_reached(machine_engine(w->device), b, w->index, entry));
	until = more ? engine_soonest(machine_engine(w->device), b, w->index, entry, machine_costs()) : 0;
	books_close(w->device, b);
	if (more) {
		pthread_mutex_unlock(&work_lock);
		clock_sleep(machine_clock(), turns, until);
		pthread_mutex_lock(&work_lock);
	}
	return more && work_is_open(w, number);
}

/* Until an entry is done, or its context ends. Under the lock. */
static void work_sleep_until(struct work *w, uint64_t entry, bool all)
{
	gate_count("wait", 1);
	while (work_sleep(w, entry, all)) {
	}
	gate_count("wait", -1);
}

/* One look at a full queue, which ends when there may be room. */
static bool work_is_full(void *arg)
{
	struct work *w = arg;
	struct engine_books *b;
	bool full = false;
	uint64_t head = 0;

	pthread_mutex_lock(&work_lock);
	if (work_enter(w, BOOKS_NOW_AND_THEN, &b)) {
		full = engine_is_full(b, w->index);
		head = b->context[w->index].head;
		books_close(w->device, b);
	}
	if (full)
		work_sleep(w, head, true);
	pthread_mutex_unlock(&work_lock);
	return full;
}

uint64_t work_submit(struct work *w, struct engine_step step, struct work_mark *mark)
{
	for (;;) {
		struct engine_books *b;
		uint64_t entry;
		bool full;

		pthread_mutex_lock(&work_lock);
		if (!work_enter(w, BOOKS_NOW_AND_THEN, &b)) {
			if (mark != NULL)
				work_unset(mark);
			pthread_mutex_unlock(&work_lock);
			return 0;
		}
		entry = b->context[w->index].tail;
		full = engine_is_full(b, w->index);
		if (!full) {
			work_put_mark(w, entry, mark);
			engine_submit(machine_engine(w->device), b, w->index, step);
		}
		books_close(w->device, b);
		pthread_mutex_unlock(&work_lock);
		if (!full)
			return entry + 1;
		gate_wait("queue", work_is_full, w);
	}
}

bool work_done(struct work *w, uint64_t entry)
{
	struct engine_books *b;
	bool done = true;
	pthread_mutex_lock(&work_lock);
	if (entry > 0 && work_enter(w, BOOKS_NOW_AND_THEN, &b)) {
		done = engine_is_reached(machine_engine(w->device), b, w->index, entry - 1);
		books_close(w->device, b);
	}
	pthread_mutex_unlock(&work_lock);
	return done;
}

void work_wait(struct work *w, uint64_t entry)
{
	if (entry == 0)
		return;
	pthread_mutex_lock(&work_lock);
	work_sleep_until(w, entry - 1, false);
	pthread_mutex_unlock(&work_lock);
}

/* Returns how many entries were submitted. Under the lock. */
static uint64_t work_submitted(const struct work *w)
{
	struct engine_books *b;
	uint64_t count = 0;
	if (work_enter(w, BOOKS_NOW_AND_THEN, &b)) {
		count = b->context[w->index].tail;
		books_close(w->device, b);
	}
	return count;
}

bool work_idle(struct work *w)
{
	pthread_mutex_lock(&work_lock);
	uint64_t count = work_submitted(w);
	pthread_mutex_unlock(&work_lock);
	return work_done(w, count);
}

void work_wait_all(struct work *w)
{
	pthread_mutex_lock(&work_lock);
	uint64_t count = work_submitted(w);
	if (count > 0)
		work_sleep_until(w, count - 1, true);
	pthread_mutex_unlock(&work_lock);
}

/* Under the lock. A mark of a context that ended is taken as reached then. */
static bool work_look(struct work_mark *m)
{
	struct work *w = m->work;
	struct engine_books *b;

	if (w == NULL)
		return true;
	if (!work_is_open(w, m->number) || !work_enter(w, BOOKS_NOW_AND_THEN, &b)) {
		work_unset(m);
		return true;
	}
	if (engine_is_reached(machine_engine(w->device), b, w->index, m->entry)) {
		m->at = machine_engine(w->device)->queue[w->index][m->entry % ENGINE_QUEUE].at;
		m->work = NULL;
		w->marks[m->entry % ENGINE_QUEUE] = NULL;
	}
	books_close(w->device, b);
	return m->work == NULL;
}

bool work_reached(struct work_mark *mark, uint64_t *at)
{
	bool reached;
	pthread_mutex_lock(&work_lock);
	reached = work_look(mark);
	if (reached && at != NULL)
		*at = mark->at;
	pthread_mutex_unlock(&work_lock);
	return reached;
}

uint64_t work_entry(struct work_mark *mark)
{
	uint64_t entry;
	pthread_mutex_lock(&work_lock);
	entry = work_look(mark) ? 0 : mark->entry + 1;
	pthread_mutex_unlock(&work_lock);
	return entry;
}

void work_wait_mark(struct work_mark *mark)
{
	pthread_mutex_lock(&work_lock);
	if (!work_look(mark)) {
		struct work *w = mark->work;
		work_sleep_until(w, mark->entry, false); /* as it is now: it may be set anew meanwhile */
	}
	pthread_mutex_unlock(&work_lock);
}

void work_forget(struct work_mark *m)
{
	pthread_mutex_lock(&work_lock);
	work_unset(m);
	pthread_mutex_unlock(&work_lock);
}

/* The live context of this process that has the number. */
static struct engine_context *work_context(struct engine_books *b, uint32_t number)
{
	for (unsigned i = 0; i < b->high; i++) {
		struct engine_context *c = &b->context[i];
		if (c->state == ENGINE_LIVE && c->number == number && c->slot == machine_slot() && c->identity == machine_identity())
			return c;
	}
	return NULL;
}

bool work_slice_set(unsigned device, uint32_t number, uint64_t us)
{
	struct engine_books *b = work_books(device, BOOKS_NOW_AND_THEN);
	struct engine_context *c = work_context(b, number);
	if (c != NULL)
		c->slice = us * 1000;
	books_close(device, b);
	return c != NULL;
}

bool work_slice_get(unsigned device, uint32_t number, uint64_t *us)
{
	struct engine_books *b = work_books(device, BOOKS_NOW_AND_THEN);
	const struct engine_context *c = work_context(b, number);
	if (c != NULL)
		*us = c->slice / 1000;
	books_close(device, b);
	return c != NULL;
}
