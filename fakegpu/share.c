#include "share.h"

#include <string.h>

#include "atomics.h"

static bool share_alive(const struct state_file *f, const struct share_holder *h)
{
	const struct record *r = &f->map->record[h->slot];
	return h->count > 0 && load_acquire(&r->state) == RECORD_LIVE && r->identity == h->identity;
}

/* The slot that a record counts for; SHARE_ALL if no process can reach the memory. */
static unsigned share_owner(const struct state_file *f, unsigned number)
{
	const struct share *s = &f->map->share[number];
	const struct share_holder *last = NULL;
	if (share_alive(f, &s->holder[0]))
		return s->holder[0].slot;
	if (state_share_open(f, number) || (s->dma_bufs > 0 && state_dma_buf_open(number)))
		return SHARE_NOBODY;
	for (unsigned i = 1; i < SHARE_HOLDERS; i++)
		if (share_alive(f, &s->holder[i]) && (last == NULL || s->holder[i].order > last->order))
			last = &s->holder[i];
	return last == NULL ? SHARE_ALL : last->slot;
}

void share_settle(struct state_file *f)
{
	struct state *m = f->map;
	uint64_t units[MAX_DEVICES] = {0};
	for (unsigned i = 0; i < m->shares; i++) {
		struct share *s = &m->share[i];
		if (s->bytes == 0)
			continue;
		s->owner = share_owner(f, i);
		if (s->owner == SHARE_ALL)
			s->bytes = 0;
		units[s->device] += ledger_units(s->bytes);
	}
	/* What processes may still allocate. */
	for (unsigned d = 0; d < f->shape.devices; d++)
		store_relaxed(&m->device[d].capacity, (f->shape.bytes - f->shape.reserved) / LEDGER_UNIT - units[d]);
}

int share_make(struct state_file *f, unsigned slot, unsigned device, uint64_t bytes)
{
	for (unsigned i = 0; i < MAX_SHARES; i++) {
		struct share *s = &f->map->share[i];
		if (s->bytes != 0)
			continue;
		memset(s, 0, sizeof *s);
		s->device = device;
		s->owner = slot;
		s->serial = ++f->map->share_serials;
		s->holder[0] = (struct share_holder){.slot = slot, .count = 1, .identity = f->map->record[slot].identity};
		s->bytes = bytes;
		if (f->map->shares < i + 1)
			f->map->shares = i + 1;
		share_settle(f);
		return (int)i;
	}
	return -1;
}

/* The place of an importing process, or a free one if it has none. */
static struct share_holder *share_find(struct state_file *f, unsigned number, unsigned slot)
{
	struct share *s = &f->map->share[number];
	struct share_holder *unused = NULL;
	for (unsigned i = 1; i < SHARE_HOLDERS; i++) {
		struct share_holder *h = &s->holder[i];
		if (!share_alive(f, h))
			unused = unused == NULL ? h : unused;
		else if (h->slot == slot)
			return h;
	}
	if (unused != NULL)
		*unused = (struct share_holder){.slot = slot, .identity = f->map->record[slot].identity};
	return unused;
}

bool share_import(struct state_file *f, unsigned number, unsigned slot)
{
	struct share_holder *h = share_find(f, number, slot);
	if (h == NULL)
		return false;
	h->count++;
	h->order = ++f->map->share[number].imports;
	return true;
}

bool share_open(struct state_file *f, uint64_t serial, unsigned slot, unsigned *number)
{
	for (unsigned i = 0; i < f->map->shares; i++) {
		const struct share *s = &f->map->share[i];
		*number = i;
		if (s->bytes != 0 && s->serial == serial) {
			struct share_holder *h = share_find(f, i, slot);
			if (h != NULL && h->count > 0)
				return ++h->count;
			return share_alive(f, &s->holder[0]) && share_import(f, i, slot);
		}
	}
	return false;
}

void share_drop(struct state_file *f, unsigned number, unsigned slot, bool maker)
{
	struct share_holder *h = maker ? &f->map->share[number].holder[0] : share_find(f, number, slot);
	if (h != NULL && h->count > 0)
		h->count--;
	share_settle(f);
}

uint64_t share_sum(const struct state_file *f, unsigned device, unsigned slot)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < f->map->shares; i++) {
		const struct share *s = &f->map->share[i];
		if (s->device == device && (slot == SHARE_ALL || s->owner == slot))
			sum += s->bytes;
	}
	return sum;
}

struct share_parts share_parts(const struct state_file *f, unsigned device, unsigned slot)
{
	struct share_parts p = {0};
	for (unsigned i = 0; i < f->map->shares; i++) {
		const struct share *s = &f->map->share[i];
		const struct share_holder *maker = &s->holder[0];
		const struct record *r = &f->map->record[maker->slot];
		bool ended = load_acquire(&r->state) != RECORD_LIVE || r->identity != maker->identity;
		if (s->device != device || s->bytes == 0)
			continue;
		p.unlisted += s->owner == SHARE_NOBODY ? s->bytes : 0;
		p.lent += s->owner == SHARE_NOBODY && !ended && maker->slot == slot ? s->bytes : 0;
		p.orphaned += s->owner == SHARE_NOBODY && ended ? s->bytes : 0;
		p.adopted += s->owner == slot && !share_alive(f, maker) ? s->bytes : 0;
	}
	return p;
}
