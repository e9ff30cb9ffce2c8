#include "compute/busy.h"

#include "attach.h"
#include "compute/slice.h"

/* By the region's index of a device: how many contexts of this process were counted there. Atomic. */
static uint32_t busy_contexts[RATION_DEVICES];

void busy_begin(struct busy *b, const struct device *d)
{
	b->device = d;
	b->count = 0;
	__atomic_fetch_add(&busy_contexts[d->index], 1, __ATOMIC_RELAXED);
}

uint64_t busy_tell(struct busy *b, uint64_t *turn_ns)
{
	uint64_t ns = b->found_ns;
	*turn_ns = b->turn_ns;
	b->found_ns = b->turn_ns = 0;
	return ns;
}

/* busy_add claims the ns nanoseconds that end at the CPU time until. The first in_turn of them were in
 * the context's own turn: no other context had the device then. In a process with several contexts
 * they count whatever was claimed before: contexts that work by turns have little else, and their
 * clocks are too far apart to tell that they do not overlap. With one context in each process that
 * would count the turns of others twice, which are within what each has claimed. */
static void busy_add(struct busy *b, uint64_t until, uint64_t ns, uint64_t in_turn)
{
	uint64_t found = ns ? region_cap_claim(attach_region(), b->device->index, until > ns ? until - ns : 0, until) : 0;
	bool several = __atomic_load_n(&busy_contexts[b->device->index], __ATOMIC_RELAXED) > 1;
	b->found_ns += several && found < in_turn ? in_turn : found;
	b->turn_ns += in_turn;
}

void busy_claim(struct busy *b, uint64_t until, uint64_t ns)
{
	uint64_t slice = slice_of(b->device) * 1000;
	busy_add(b, until, ns, ns < slice ? ns : slice);
}

/* busy_claim_new claims the part of an interval that is in none of the counted intervals from the
 * i-th on, and returns its length in ms. new.to is the CPU time until. The context's own turn ended at
 * turn or later. */
static double busy_claim_new(struct busy *b, struct busy_interval new, uint64_t until, double turn, unsigned i)
{
	double before = 0;
	for (; i < b->count && new.from < new.to; i++) {
		struct busy_interval old = b->counted[i];
		if (old.to <= new.from || old.from >= new.to)
			continue;
		if (old.from > new.from) {
			uint64_t later = (uint64_t)((new.to - old.from) * 1e6);
			before += busy_claim_new(b, (struct busy_interval){new.from, old.from}, until - later, turn, i + 1);
		}
		new.from = old.to;
	}
	if (new.from >= new.to)
		return before;
	double in_turn = (turn < new.to ? turn : new.to) - new.from;
	busy_add(b, until, (uint64_t)((new.to - new.from) * 1e6), in_turn > 0 ? (uint64_t)(in_turn * 1e6) : 0);
	return before + new.to - new.from;
}

double busy_count(struct busy *b, struct busy_interval new, uint64_t until)
{
	unsigned n = 0, oldest = 0;
	double begun = new.from;
	for (unsigned i = 0; i < b->count; i++)
		if (b->counted[i].to >= new.from && b->counted[i].from < begun)
			begun = b->counted[i].from;
	double used = busy_claim_new(b, new, until, begun + (double)slice_of(b->device) / 1e3, 0);
	for (unsigned i = 0; i < b->count; i++) {
		struct busy_interval old = b->counted[i];
		if (old.to < new.from || old.from > new.to) {
			b->counted[n++] = old;
			continue;
		}
		new.from = old.from < new.from ? old.from : new.from;
		new.to = old.to > new.to ? old.to : new.to;
	}
	for (unsigned i = 1; i < n; i++)
		oldest = b->counted[i].to < b->counted[oldest].to ? i : oldest;
	b->counted[n == BUSY_INTERVALS ? oldest : n++] = new;
	b->count = n;
	return used;
}
