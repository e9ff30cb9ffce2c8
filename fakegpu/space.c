#include "space.h"

#include <pthread.h>
#include <stdlib.h>

#include "atomics.h"

/* Nothing is ever mapped where these addresses lie: above any heap the kernel
 * starts low, below where it puts programs, libraries and stacks. A program that
 * touches device memory from the host faults, as it should. */
#define HIGH_BASE 0x200000000000ull
#define HIGH_SIZE (48ull << 40)
#define LOW_BASE 0x10000000ull
#define LOW_SIZE 0xe0000000ull

enum { GRANULE_SHIFT = 26, MIN_SHIFT = 9, MAX_SHIFT = 41, CLASSES = MAX_SHIFT - MIN_SHIFT + 1 };
enum { ARENAS = 16, LOW_ARENA = ARENAS };

#define GRANULE (1ull << GRANULE_SHIFT)
#define HIGH_GRANULES (HIGH_SIZE >> GRANULE_SHIFT)
#define LOW_GRANULES (LOW_SIZE >> GRANULE_SHIFT)

struct arena;

struct span {
	CUdeviceptr base;
	unsigned shift;  /* of its size class */
	unsigned blocks; /* how many fit */
	unsigned fresh;  /* the first that was never used */
	struct arena *arena;
	struct span *next;
	struct block block[];
};

struct arena {
	pthread_mutex_t lock;
	struct span *spans;            /* all, newest first */
	struct span *current[CLASSES]; /* where fresh blocks come from */
	struct block *free[CLASSES];
	uint32_t ids;
};

static struct span *space_high_granule[HIGH_GRANULES];
static struct span *space_low_granule[LOW_GRANULES];
static uint64_t space_high_next, space_low_next; /* granules handed out */

static struct arena space_arenas[ARENAS + 1] = {[0 ... ARENAS] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static struct arena *space_my_arena(void)
{
	static unsigned threads;
	static _Thread_local unsigned mine; /* 1 + index; 0 before the first use */
	if (mine == 0)
		mine = 1 + add_relaxed(&threads, 1) % ARENAS;
	return &space_arenas[mine - 1];
}

static struct span **space_granule(CUdeviceptr a)
{
	if (a - HIGH_BASE < HIGH_SIZE)
		return &space_high_granule[(a - HIGH_BASE) >> GRANULE_SHIFT];
	if (a - LOW_BASE < LOW_SIZE)
		return &space_low_granule[(a - LOW_BASE) >> GRANULE_SHIFT];
	return NULL;
}

static struct span *space_span_of(CUdeviceptr a)
{
	struct span **g = space_granule(a);
	return g == NULL ? NULL : load_acquire(g);
}

/* Blocks of a class are aligned to its size. */
static unsigned space_class_of(const struct block *b)
{
	uint64_t size = b->kind == BLOCK_RESERVATION && b->alignment > b->size ? b->alignment : b->size;
	unsigned shift = MIN_SHIFT;
	if (size > 1ull << MIN_SHIFT)
		shift = 64 - (unsigned)__builtin_clzll(size - 1);
	return shift - MIN_SHIFT;
}

/* Under the arena's lock. */
static struct span *space_span_new(struct arena *a, unsigned class, bool low)
{
	unsigned shift = class + MIN_SHIFT;
	uint64_t bytes = shift > GRANULE_SHIFT ? 1ull << shift : GRANULE;
	uint64_t granules = bytes >> GRANULE_SHIFT;
	unsigned blocks = (unsigned)(bytes >> shift);
	uint64_t limit = low ? LOW_GRANULES : HIGH_GRANULES;
	uint64_t end = add_relaxed(low ? &space_low_next : &space_high_next, granules);
	struct span *s;

	if (end > limit || (s = calloc(1, sizeof *s + blocks * sizeof *s->block)) == NULL)
		return NULL;
	s->base = (low ? LOW_BASE : HIGH_BASE) + ((end - granules) << GRANULE_SHIFT);
	s->shift = shift;
	s->blocks = blocks;
	s->arena = a;
	s->next = a->spans;
	a->spans = s;
	a->current[class] = s;
	/* Released: space_span_of reads it without the lock, on behalf of any address. */
	for (uint64_t g = 0; g < granules; g++)
		store_release(space_granule(s->base + (g << GRANULE_SHIFT)), s);
	return s;
}

bool space_take(struct block *b, bool low)
{
	struct arena *a = low ? &space_arenas[LOW_ARENA] : space_my_arena();
	unsigned class = space_class_of(b);
	struct block *slot;

	if (class >= CLASSES)
		return false;
	pthread_mutex_lock(&a->lock);
	slot = a->free[class];
	if (slot != NULL) {
		a->free[class] = slot->next;
	} else {
		struct span *s = a->current[class];
		if (s == NULL || s->fresh == s->blocks)
			s = space_span_new(a, class, low);
		if (s == NULL) {
			pthread_mutex_unlock(&a->lock);
			return false;
		}
		slot = &s->block[s->fresh];
		slot->address = s->base + ((CUdeviceptr)s->fresh++ << s->shift);
	}
	b->address = slot->address;
	b->id = ++a->ids;
	*slot = *b;
	pthread_mutex_unlock(&a->lock);
	return true;
}

/* Under the lock of the span's arena. NULL where no block was ever in use. */
static struct block *space_block_at(struct span *s, CUdeviceptr address)
{
	unsigned i = (unsigned)((address - s->base) >> s->shift);
	return i < s->fresh ? &s->block[i] : NULL;
}

bool space_change(CUdeviceptr address, void (*change)(struct block *b), struct block *out)
{
	struct span *s = space_span_of(address);
	struct block *b;
	bool found;

	if (s == NULL)
		return false;
	pthread_mutex_lock(&s->arena->lock);
	b = space_block_at(s, address);
	found = b != NULL && b->kind != BLOCK_FREE && address - b->address < b->size;
	if (found && change != NULL)
		change(b);
	if (found)
		*out = *b;
	pthread_mutex_unlock(&s->arena->lock);
	return found;
}

bool space_find(CUdeviceptr address, struct block *out) { return space_change(address, NULL, out); }

static void space_release(struct span *s, struct block *b)
{
	struct arena *a = s->arena;
	b->kind = BLOCK_FREE;
	b->next = a->free[s->shift - MIN_SHIFT];
	a->free[s->shift - MIN_SHIFT] = b;
}

enum space_result space_remove(CUdeviceptr address, unsigned kinds, struct block *out)
{
	struct span *s = space_span_of(address);
	enum space_result r = SPACE_OK;
	struct block *b;

	if (s == NULL)
		return SPACE_UNKNOWN;
	pthread_mutex_lock(&s->arena->lock);
	b = space_block_at(s, address);
	if (b == NULL) {
		r = SPACE_UNKNOWN;
	} else if (b->kind == BLOCK_FREE) {
		r = b->address == address ? SPACE_FREED : SPACE_UNKNOWN;
	} else if (b->address != address) {
		r = SPACE_INSIDE;
	} else if ((kinds & 1u << b->kind) == 0) {
		*out = *b;
		r = SPACE_OTHER;
	} else {
		*out = *b;
		space_release(s, b);
	}
	pthread_mutex_unlock(&s->arena->lock);
	return r;
}

void space_sweep(bool (*pick)(const struct block *b, void *arg), void (*removed)(const struct block *b, void *arg), void *arg)
{
	for (unsigned i = 0; i <= ARENAS; i++) {
		struct arena *a = &space_arenas[i];
		pthread_mutex_lock(&a->lock);
		for (struct span *s = a->spans; s != NULL; s = s->next)
			for (unsigned k = 0; k < s->fresh; k++) {
				struct block b = s->block[k];
				if (b.kind == BLOCK_FREE || !pick(&b, arg))
					continue;
				space_release(s, &s->block[k]);
				removed(&b, arg);
			}
		pthread_mutex_unlock(&a->lock);
	}
}

void space_count(unsigned kinds, unsigned long *count, uint64_t *bytes)
{
	for (unsigned i = 0; i <= ARENAS; i++) {
		struct arena *a = &space_arenas[i];
		if (pthread_mutex_trylock(&a->lock) != 0)
			continue;
		for (struct span *s = a->spans; s != NULL; s = s->next)
			for (unsigned k = 0; k < s->fresh; k++)
				if (s->block[k].kind != BLOCK_FREE && (kinds & 1u << s->block[k].kind) != 0) {
					++*count;
					*bytes += s->block[k].size;
				}
		pthread_mutex_unlock(&a->lock);
	}
}
