#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

/* Open addressing with linear probing over the addresses of live objects. An
 * address that is not in here is never dereferenced. */
enum { FIRST_SIZE = 256 };

static struct handle **table;
static size_t size, count, tombs;
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;

#define TOMB ((struct handle *)1)

static size_t start(const void *p) { return (size_t)(((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15ull >> 20); }

static struct handle **find(const void *p)
{
    if (size == 0 || p == NULL || p == TOMB)
        return NULL;
    for (size_t i = start(p);; i++) {
        struct handle **at = &table[i & (size - 1)];
        if (*at == p)
            return at;
        if (*at == NULL)
            return NULL;
    }
}

static void put(struct handle *h)
{
    size_t i = start(h);
    while (table[i & (size - 1)] != NULL)
        i++;
    table[i & (size - 1)] = h;
}

/* Keeps at least half of the places empty, so that probing ends soon. */
static bool make_room(void)
{
    struct handle **old = table;
    size_t old_size = size, next = size;

    if ((count + tombs + 1) * 2 <= size)
        return true;
    if ((count + 1) * 4 > size)
        next = size == 0 ? FIRST_SIZE : size * 2;
    table = calloc(next, sizeof *table);
    if (table == NULL) {
        table = old;
        return false;
    }
    size = next;
    tombs = 0;
    for (size_t i = 0; i < old_size; i++)
        if (old[i] != NULL && old[i] != TOMB)
            put(old[i]);
    free(old);
    return true;
}

/* The object of each kind that was dropped last: its address is the next one's, as
 * addresses of memory are used again at once. All of a kind are of one size. */
static struct handle *spare[HANDLE_KINDS];

static struct handle *reuse(enum handle_kind kind, size_t bytes)
{
    struct handle *h;
    pthread_rwlock_wrlock(&lock);
    h = spare[kind];
    spare[kind] = NULL;
    pthread_rwlock_unlock(&lock);
    return h != NULL ? memset(h, 0, bytes) : calloc(1, bytes);
}

void *handle_new(size_t bytes, enum handle_kind kind, struct context *context)
{
    struct handle *h = reuse(kind, bytes);
    bool ok;

    if (h == NULL)
        return NULL;
    h->kind = kind;
    h->context = context;
    pthread_rwlock_wrlock(&lock);
    ok = make_room();
    if (ok) {
        put(h);
        count++;
    }
    pthread_rwlock_unlock(&lock);
    if (!ok) {
        free(h);
        return NULL;
    }
    return h;
}

void *handle_get(const void *address, enum handle_kind kind)
{
    struct handle **at, *h = NULL;
    pthread_rwlock_rdlock(&lock);
    at = find(address);
    if (at != NULL && (*at)->kind == kind)
        h = *at;
    pthread_rwlock_unlock(&lock);
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
    pthread_rwlock_wrlock(&lock);
    at = find(object);
    if (at != NULL) {
        enum handle_kind kind = (*at)->kind;
        *at = TOMB;
        count--;
        tombs++;
        before = spare[kind];
        spare[kind] = object;
    }
    pthread_rwlock_unlock(&lock);
    free(before);
}

void handle_each(struct context *context, void (*f)(struct handle *h))
{
    struct handle **copy;
    size_t n = 0;

    pthread_rwlock_rdlock(&lock);
    copy = malloc((count + 1) * sizeof *copy);
    for (size_t i = 0; copy != NULL && i < size; i++)
        if (table[i] != NULL && table[i] != TOMB && table[i]->context == context)
            copy[n++] = table[i];
    pthread_rwlock_unlock(&lock);
    /* f may drop handles, its own or ones that belong to it: look each up again. */
    for (size_t i = 0; i < n; i++) {
        pthread_rwlock_rdlock(&lock);
        struct handle **at = find(copy[i]);
        pthread_rwlock_unlock(&lock);
        if (at != NULL)
            f(copy[i]);
    }
    free(copy);
}
