#include "work.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_THREADS = 64, MAX_PIECES = 64 };

struct tally tally;

static struct job {
	pthread_t thread;
	struct region *r;
	unsigned devices[RATION_DEVICES], count;
	uint64_t random, most;
	int err;
	unsigned held;
	struct piece {
		unsigned device, kind;
		uint64_t bytes;
	} pieces[MAX_PIECES];
} jobs[MAX_THREADS];
static unsigned running;
static bool ended;

uint64_t clock_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void took(uint64_t start)
{
	uint64_t ns = clock_ns() - start, longest = __atomic_load_n(&tally.longest, __ATOMIC_RELAXED);
	while (ns > longest && !__atomic_compare_exchange_n(&tally.longest, &longest, ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

/* pick returns a random number below n (xorshift64*). */
static uint64_t pick(struct job *j, uint64_t n)
{
	j->random ^= j->random >> 12;
	j->random ^= j->random << 25;
	j->random ^= j->random >> 27;
	return (j->random * UINT64_C(2685821657736338717) >> 11) % n;
}

static int drop(struct job *j, unsigned i)
{
	struct piece p = j->pieces[i];
	j->pieces[i] = j->pieces[--j->held];
	uint64_t start = clock_ns();
	int err = region_return(j->r, p.device, p.kind, p.bytes);
	took(start);
	return err;
}

/* step charges a piece, or returns one: the more are held, the more likely. */
static int step(struct job *j)
{
	__atomic_add_fetch(&tally.ops, 1, __ATOMIC_RELAXED);
	if (pick(j, MAX_PIECES) < j->held)
		return drop(j, (unsigned)pick(j, j->held));
	struct piece p = {j->devices[pick(j, j->count)], (unsigned)pick(j, RATION_KINDS), 1 + pick(j, j->most)};
	uint64_t start = clock_ns();
	int err = region_charge(j->r, p.device, p.kind, p.bytes, NULL);
	took(start);
	if (err == REGION_OK)
		j->pieces[j->held++] = p;
	if (err != REGION_REFUSED)
		return err;
	__atomic_add_fetch(&tally.refused, 1, __ATOMIC_RELAXED);
	return j->held ? drop(j, (unsigned)pick(j, j->held)) : REGION_OK;
}

static void *churn(void *arg)
{
	struct job *j = arg;
	while (!j->err && !__atomic_load_n(&ended, __ATOMIC_RELAXED))
		j->err = step(j);
	while (!j->err && j->held)
		j->err = drop(j, j->held - 1);
	return NULL;
}

static void *reap(void *arg)
{
	struct job *j = arg;
	while (!j->err && !__atomic_load_n(&ended, __ATOMIC_RELAXED)) {
		unsigned slots;
		uint64_t start = clock_ns();
		j->err = region_reap(j->r, &slots);
		took(start);
		__atomic_add_fetch(&tally.ops, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void begin(struct job j, void *(*run)(void *))
{
	if (running == MAX_THREADS)
		abort();
	jobs[running] = j;
	if (pthread_create(&jobs[running].thread, NULL, run, &jobs[running]) != 0)
		abort();
	running++;
}

void work_churn(struct region *r, unsigned threads, const unsigned *devices, unsigned count, uint64_t seed, uint64_t most)
{
	for (unsigned n = 0; n < threads; n++) {
		struct job j = {.r = r, .count = count, .most = most};
		j.random = (seed * MAX_THREADS + n + 1) * UINT64_C(0x9e3779b97f4a7c15) | 1;
		for (unsigned d = 0; d < count; d++)
			j.devices[d] = devices[d];
		begin(j, churn);
	}
}

void work_reap(struct region *r) { begin((struct job){.r = r}, reap); }

int work_end(void)
{
	int err = REGION_OK;
	__atomic_store_n(&ended, true, __ATOMIC_RELAXED);
	while (running) {
		struct job *j = &jobs[--running];
		pthread_join(j->thread, NULL);
		err = err ? err : j->err;
	}
	__atomic_store_n(&ended, false, __ATOMIC_RELAXED);
	return err;
}
