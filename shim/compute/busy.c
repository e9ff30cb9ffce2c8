#include "compute/busy.h"

#include "attach.h"

void busy_begin(struct busy *b, const struct device *d)
{
	b->device = d;
	b->count = 0;
}

uint64_t busy_tell(struct busy *b)
{
	uint64_t ns = b->found_ns;
	b->found_ns = 0;
	return ns;
}

void busy_claim(struct busy *b, uint64_t until, uint64_t ns)
{
	b->found_ns += ns ? region_cap_claim(attach_region(), b->device->index, until > ns ? until - ns : 0, until) : 0;
}

/* busy_claim_new claims the part of an interval that is in none of the counted intervals from the
 * i-th on, and returns its length in ms. new.to is the CPU time until. */
static double busy_claim_new(struct busy *b, struct busy_interval new, uint64_t until, unsigned i)
{
	double before = 0;
	for (; i < b->count && new.from < new.to; i++) {
		struct busy_interval old = b->counted[i];
		if (old.to <= new.from || old.from >= new.to)
			continue;
		if (old.from > new.from) {
			uint64_t later = (uint64_t)((new.to - old.from) * 1e6);
			before += busy_claim_new(b, (struct busy_interval){new.from, old.from}, until - later, i + 1);
		}
		new.from = old.to;
	}
	if (new.from >= new.to)
		return before;
	busy_claim(b, until, (uint64_t)((new.to - new.from) * 1e6));
	return before + new.to - new.from;
}

double busy_count(struct busy *b, struct busy_interval new, uint64_t until)
{
	unsigned n = 0, oldest = 0;
	double used = busy_claim_new(b, new, until, 0);
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
