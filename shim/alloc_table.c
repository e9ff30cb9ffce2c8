#include "alloc_table.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#include "region/atomics.h"

/* One page to begin with. */
#define FIRST 64

static uint64_t mix(uint64_t key)
{
	key ^= key >> 33;
	key *= UINT64_C(0xff51afd7ed558ccd);
	return key ^ key >> 33;
}

static struct shard *shard_of(struct alloc_table *t, uint64_t hash) { return &t->shard[hash >> 59]; }

_Static_assert(RECORD_SHARDS == 32, "the shard is the hash's top five bits");

static void lock(struct shard *s)
{
	for (unsigned tries = 0; __atomic_exchange_n(&s->lock, 1, __ATOMIC_ACQUIRE); tries++) {
		if (tries < 64)
			cpu_relax();
		else
			sched_yield(); /* the holder may need our CPU */
	}
}

static void unlock(struct shard *s) { __atomic_store_n(&s->lock, 0, __ATOMIC_RELEASE); }

/* Open addressing: a record is in the first slot from its hash on that was free
 * when it came, and taking one out moves those behind it up (see erase), so that a
 * free slot always ends a search. */
static struct alloc_record *find(struct shard *s, uint64_t hash, uint64_t key)
{
	if (!s->room)
		return NULL;
	for (uint64_t i = hash & (s->room - 1);; i = (i + 1) & (s->room - 1)) {
		if (s->slots[i].key == key)
			return &s->slots[i];
		if (!s->slots[i].key)
			return NULL;
	}
}

static void insert(struct shard *s, const struct alloc_record *r)
{
	uint64_t i = mix(r->key) & (s->room - 1);
	while (s->slots[i].key)
		i = (i + 1) & (s->room - 1);
	s->slots[i] = *r;
	s->used++;
}

static bool grow(struct shard *s)
{
	struct shard old = *s;
	uint64_t room = old.room ? old.room * 2 : FIRST;
	void *mem = mmap(NULL, room * sizeof(struct alloc_record), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return old.room && old.used < old.room - 1;
	s->slots = mem;
	s->room = room;
	s->used = 0;
	for (uint64_t i = 0; i < old.room; i++)
		if (old.slots[i].key)
			insert(s, &old.slots[i]);
	if (old.room)
		munmap(old.slots, old.room * sizeof(struct alloc_record));
	return true;
}

static void erase(struct shard *s, struct alloc_record *hole)
{
	uint64_t mask = s->room - 1, free_at = (uint64_t)(hole - s->slots);
	for (uint64_t i = (free_at + 1) & mask; s->slots[i].key; i = (i + 1) & mask) {
		/* One whose search passes the hole moves into it. */
		uint64_t home = mix(s->slots[i].key) & mask;
		if (((i - home) & mask) >= ((i - free_at) & mask)) {
			s->slots[free_at] = s->slots[i];
			free_at = i;
		}
	}
	s->slots[free_at].key = 0;
	s->used--;
}

bool alloc_table_replace(struct alloc_table *t, const struct alloc_record *r, struct alloc_record *old)
{
	uint64_t hash = mix(r->key);
	struct shard *s = shard_of(t, hash);
	bool good = true;
	lock(s);
	struct alloc_record *there = find(s, hash, r->key);
	old->key = 0;
	if (there)
		*old = *there, *there = *r;
	else if ((good = s->used < s->room / 2 || grow(s)))
		insert(s, r);
	unlock(s);
	return good;
}

bool alloc_table_put(struct alloc_table *t, const struct alloc_record *r)
{
	struct alloc_record old;
	return alloc_table_replace(t, r, &old);
}

bool alloc_table_take(struct alloc_table *t, uint64_t key, struct alloc_record *out)
{
	uint64_t hash = mix(key);
	struct shard *s = shard_of(t, hash);
	lock(s);
	struct alloc_record *r = key ? find(s, hash, key) : NULL;
	if (r) {
		*out = *r;
		erase(s, r);
	}
	unlock(s);
	return r != NULL;
}

bool alloc_table_change(struct alloc_table *t, uint64_t key, bool (*change)(struct alloc_record *r, void *arg), void *arg, struct alloc_record *out)
{
	uint64_t hash = mix(key);
	struct shard *s = shard_of(t, hash);
	lock(s);
	struct alloc_record *r = key ? find(s, hash, key) : NULL;
	if (r) {
		bool keep = change(r, arg);
		*out = *r;
		if (!keep)
			erase(s, r);
	}
	unlock(s);
	return r != NULL;
}

void alloc_table_sweep(struct alloc_table *t, bool (*keep)(struct alloc_record *r, void *arg), void *arg)
{
	for (unsigned n = 0; n < RECORD_SHARDS; n++) {
		struct shard *s = &t->shard[n];
		lock(s);
		/* What erase moves up comes from further on, or was seen before: looking
		 * at the same slot again misses nothing. */
		for (uint64_t i = 0; i < s->room;) {
			if (s->slots[i].key && !keep(&s->slots[i], arg))
				erase(s, &s->slots[i]);
			else
				i++;
		}
		unlock(s);
	}
}
