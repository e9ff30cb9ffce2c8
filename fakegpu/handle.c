#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

/* Open addressing with linear probing over the addresses of live objects. An
 * address that is not in here is never dereferenced. */
enum { FIRST_SIZE = 256 };

static struct handle **handle_table;
static size_t handle_size, handle_count, handle_tombs;
static pthread_rwlock_t handle_lock = PTHREAD_RWLOCK_INITIALIZER;

#define TOMB ((struct handle *)1)

static size_t handle_start(const void *p) { return (size_t)(((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15ull >> 20); }

static struct handle **handle_find(const void *p)
{
	if (handle_size == 0 || p == NULL || p == TOMB)
		return NULL;
	for (size_t i = handle_start(p);; i++) {
		struct handle **at = &handle_table[i & (handle_size - 1)];
		if (*at == p)
			return at;
		if (*at == NULL)
			return NULL;
	}
}

static void handle_put(struct handle *h)
{
	size_t i = handle_start(h);
	while (handle_table[i & (handle_size - 1)] != NULL)
		i++;
	handle_table[i & (handle_size - 1)] = h;
}

/* Keeps at least half of the entries empty, so that probing ends soon. */
static bool handle_make_room(void)
{
	struct handle **old = handle_table;
	size_t old_size = handle_size, next = handle_size;

	if ((handle_count + handle_tombs + 1) * 2 <= handle_size)
		return true;
	if ((handle_count + 1) * 4 > handle_size)
		next = handle_size == 0 ? FIRST_SIZE : handle_size * 2;
	handle_table = calloc(next, sizeof *handle_table);
	if (handle_table == NULL) {
		handle_table = old;
		return false;
	}
	handle_size = next;
	handle_tombs = 0;
	for (size_t i = 0; i < old_size; i++)
		if (old[i] != NULL && old[i] != TOMB)
			handle_put(old[i]);
	free(old);
	return true;
}

/* The object of each kind that was dropped last: its address is the next one's, as
 * addresses of memory are used again at once. All of a kind are of one size. */
static struct handle *handle_spare[HANDLE_KINDS];

static struct handle *handle_reuse(enum handle_kind kind, size_t bytes)
{
	struct handle *h;
	pthread_rwlock_wrlock(&handle_lock);
	h = handle_spare[kind];
	handle_spare[kind] = NULL;
	pthread_rwlock_unlock(&handle_lock);
	return h != NULL ? memset(h, 0, bytes) : calloc(1, bytes);
}

void *handle_new(size_t bytes, enum handle_kind kind, struct context *context)
{
	struct handle *h = handle_reuse(kind, bytes);
	bool ok;

	if (h == NULL)
		return NULL;
	h->kind = kind;
	h->context = context;
	pthread_rwlock_wrlock(&handle_lock);
	ok = handle_make_room();
	if (ok) {
		handle_put(h);
		handle_count++;
	}
	pthread_rwlock_unlock(&handle_lock);
	if (!ok) {
		free(h);
		return NULL;
	}
	return h;
}

void *handle_get(const void *address, enum handle_kind kind)
{
	struct handle **at, *h = NULL;
	pthread_rwlock_rdlock(&handle_lock);
	at = handle_find(address);
	if (at != NULL && (*at)->kind == kind)
		h = *at;
	pthread_rwlock_unlock(&handle_lock);
	return h;
}

void *handle_want(const void *address, enum handle_kind kind, const char *call)
{
	void *h = handle_get(address, kind);
	if (h == NULL && address != NULL)
		report_error("%s: %p is no such handle (destroyed already?)", call, address);
	return h;
}

void handle_drop(void *object)
{
	struct handle **at, *before = NULL;
	pthread_rwlock_wrlock(&handle_lock);
	at = handle_find(object);
	if (at != NULL) {
		enum handle_kind kind = (*at)->kind;
		*at = TOMB;
		handle_count--;
		handle_tombs++;
		before = handle_spare[kind];
		handle_spare[kind] = object;
	}
	pthread_rwlock_unlock(&handle_lock);
	free(before);
}

void handle_each(struct context *context, void (*f)(struct handle *h))
{
	struct handle **copy;
	size_t n = 0;

	pthread_rwlock_rdlock(&handle_lock);
	copy = malloc((handle_count + 1) * sizeof *copy);
	for (size_t i = 0; copy != NULL && i < handle_size; i++)
		if (handle_table[i] != NULL && handle_table[i] != TOMB && handle_table[i]->context == context)
			copy[n++] = handle_table[i];
	pthread_rwlock_unlock(&handle_lock);
	/* f may drop handles, its own or ones that belong to it: look each up again. */
	for (size_t i = 0; i < n; i++) {
		pthread_rwlock_rdlock(&handle_lock);
		struct handle **at = handle_find(copy[i]);
		pthread_rwlock_unlock(&handle_lock);
		if (at != NULL)
			f(copy[i]);
	}
	free(copy);
}
