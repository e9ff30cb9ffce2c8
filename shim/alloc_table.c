#include "alloc_table.h"

#include <string.h>
#include <sys/mman.h>

/* The first size of a shard, in slots: one page. */
#define ALLOC_TABLE_FIRST 64

static uint64_t alloc_table_hash(uint64_t key)
{
	key ^= key >> 33;
	key *= UINT64_C(0xff51afd7ed558ccd);
	return key ^ key >> 33;
}

static struct alloc_shard *alloc_table_shard(struct alloc_table *t, uint64_t hash) { return &t->shard[hash >> 59]; }

_Static_assert(ALLOC_TABLE_SHARDS == 32, "the shard is the hash's top five bits");

/* alloc_table_find returns the record with this key, or NULL. The caller holds the lock of the
 * shard, here and in the functions below. Open addressing: a record is in the slot of its hash,
 * or in the first slot after it that was free when the record was inserted. alloc_table_erase
 * moves records back into the hole, so a free slot always ends a search. */
static struct alloc_record *alloc_table_find(struct alloc_shard *s, uint64_t hash, uint64_t key)
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

static void alloc_table_insert(struct alloc_shard *s, const struct alloc_record *r)
{
	uint64_t i = alloc_table_hash(r->key) & (s->room - 1);
	while (s->slots[i].key)
		i = (i + 1) & (s->room - 1);
	s->slots[i] = *r;
	s->used++;
}

static bool alloc_table_grow(struct alloc_shard *s)
{
	struct alloc_shard old = *s;
	uint64_t room = old.room ? old.room * 2 : ALLOC_TABLE_FIRST;
	void *mem = mmap(NULL, room * sizeof(struct alloc_record), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return old.room && old.used < old.room - 1;
	s->slots = mem;
	s->room = room;
	s->used = 0;
	for (uint64_t i = 0; i < old.room; i++)
		if (old.slots[i].key)
			alloc_table_insert(s, &old.slots[i]);
	if (old.room)
		munmap(old.slots, old.room * sizeof(struct alloc_record));
	return true;
}

static void alloc_table_erase(struct alloc_shard *s, struct alloc_record *hole)
{
	uint64_t mask = s->room - 1, free_at = (uint64_t)(hole - s->slots);
	for (uint64_t i = (free_at + 1) & mask; s->slots[i].key; i = (i + 1) & mask) {
		/* A record whose search passes the hole moves into it. */
		uint64_t home = alloc_table_hash(s->slots[i].key) & mask;
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
	uint64_t hash = alloc_table_hash(r->key);
	struct alloc_shard *s = alloc_table_shard(t, hash);
	bool good = true;
	mutex_lock(&s->lock, LOCK_ALLOC_TABLE);
	struct alloc_record *there = alloc_table_find(s, hash, r->key);
	old->key = 0;
	if (there)
		*old = *there, *there = *r;
	else if ((good = s->used < s->room / 2 || alloc_table_grow(s)))
		alloc_table_insert(s, r);
	mutex_unlock(&s->lock);
	return good;
}

bool alloc_table_add(struct alloc_table *t, const struct alloc_record *r, bool (*change)(struct alloc_record *r, void *arg), void *arg,
		     bool *added)
{
	uint64_t hash = alloc_table_hash(r->key);
	struct alloc_shard *s = alloc_table_shard(t, hash);
	bool good = true;
	mutex_lock(&s->lock, LOCK_ALLOC_TABLE);
	struct alloc_record *there = alloc_table_find(s, hash, r->key);
	*added = !there;
	if (there && !change(there, arg))
		alloc_table_erase(s, there);
	else if (!there && (good = s->used < s->room / 2 || alloc_table_grow(s)))
		alloc_table_insert(s, r);
	mutex_unlock(&s->lock);
	return good;
}

bool alloc_table_put(struct alloc_table *t, const struct alloc_record *r)
{
	struct alloc_record old;
	return alloc_table_replace(t, r, &old);
}

bool alloc_table_take(struct alloc_table *t, uint64_t key, struct alloc_record *out)
{
	uint64_t hash = alloc_table_hash(key);
	struct alloc_shard *s = alloc_table_shard(t, hash);
	mutex_lock(&s->lock, LOCK_ALLOC_TABLE);
	struct alloc_record *r = key ? alloc_table_find(s, hash, key) : NULL;
	out->key = 0;
	if (r) {
		*out = *r;
		alloc_table_erase(s, r);
	}
	mutex_unlock(&s->lock);
	return r != NULL;
}

bool alloc_table_freed(struct alloc_table *t, const struct alloc_record *r, bool freed)
{
	if (r->key && !freed)
		alloc_table_put(t, r);
	return r->key && freed;
}

static bool alloc_table_keep(struct alloc_record *r, void *arg)
{
	(void)r, (void)arg;
	return true;
}

bool alloc_table_get(struct alloc_table *t, uint64_t key, struct alloc_record *out)
{
	return alloc_table_change(t, key, alloc_table_keep, NULL, out);
}

bool alloc_table_change(struct alloc_table *t, uint64_t key, bool (*change)(struct alloc_record *r, void *arg), void *arg,
			struct alloc_record *out)
{
	uint64_t hash = alloc_table_hash(key);
	struct alloc_shard *s = alloc_table_shard(t, hash);
	mutex_lock(&s->lock, LOCK_ALLOC_TABLE);
	struct alloc_record *r = key ? alloc_table_find(s, hash, key) : NULL;
	if (r) {
		bool keep = change(r, arg);
		*out = *r;
		if (!keep)
			alloc_table_erase(s, r);
	}
	mutex_unlock(&s->lock);
	return r != NULL;
}

void alloc_table_sweep(struct alloc_table *t, bool (*keep)(struct alloc_record *r, void *arg), void *arg)
{
	for (unsigned n = 0; n < ALLOC_TABLE_SHARDS; n++) {
		struct alloc_shard *s = &t->shard[n];
		mutex_lock(&s->lock, LOCK_ALLOC_TABLE);
		/* A record that alloc_table_erase moves into this slot comes from a later slot,
		 * or was visited before: to visit the same slot again misses none. */
		for (uint64_t i = 0; i < s->room;) {
			if (s->slots[i].key && !keep(&s->slots[i], arg))
				alloc_table_erase(s, &s->slots[i]);
			else
				i++;
		}
		mutex_unlock(&s->lock);
	}
}
