#include "books.h"

#include "export.h"
#include "fakegpu.h"

static void books_bury(struct engine_books *b, bool all)
{
	for (unsigned i = 0; i < b->high; i++) {
		const struct engine_context *c = &b->context[i];
		bool mine = c->slot == machine_slot() && c->identity == machine_identity();
		if (c->state == ENGINE_LIVE && !mine && (all || c->apart || engine_has_work(c)) && machine_gone(c->slot, c->identity))
			engine_leave(b, i);
	}
}

struct engine_books *books_open(unsigned device, enum books_look look)
{
	enum { OFTEN = 1000 * 1000 };        /* ns */
	static uint64_t looked[MAX_DEVICES]; /* under the engine's lock */
	struct engine *e = machine_engine(device);
	struct engine_books *b = engine_open(e);
	uint64_t now = clock_now(machine_clock());

	if (look != BOOKS_NOW_AND_THEN || now - looked[device] >= OFTEN) {
		looked[device] = now;
		books_bury(b, look == BOOKS_ALL);
	}
	engine_advance(e, b, now, machine_costs());
	return b;
}

void books_close(unsigned device, struct engine_books *b) { engine_close(machine_engine(device), b, true); }

static struct fakegpu_engine_context books_entry(const struct engine_books *b, const struct engine_context *c)
{
	uint64_t busy = c->busy + (engine_has_work(c) ? b->now - c->since : 0);
	return (struct fakegpu_engine_context){
		.pid = c->pid,
		.context = c->number,
		.live = c->state == ENGINE_LIVE,
		.slice_us = c->slice / 1000,
		.submitted_ns = c->submitted,
		.got_ns = c->done,
		.waited_ns = busy - c->done,
		.turns = c->turns,
	};
}

EXPORT int fakegpu_engine(unsigned device, struct fakegpu_engine *out, struct fakegpu_engine_context *list, unsigned max)
{
	struct engine_books *b;
	int n = 0;

	if (machine_attach(false) != 0 || device >= machine_presents())
		return -1;
	device = machine_present(device);
	b = books_open(device, BOOKS_ALL);
	if (out != NULL)
		*out = (struct fakegpu_engine){.now_ns = b->now, .idle_ns = b->idle, .switching_ns = b->switching, .switches = b->switches};
	for (unsigned i = 0; i < b->high; i++) {
		if (b->context[i].state == ENGINE_FREE)
			continue;
		if ((unsigned)n < max)
			list[n] = books_entry(b, &b->context[i]);
		n++;
	}
	books_close(device, b);
	return n;
}
