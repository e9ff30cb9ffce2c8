#define _GNU_SOURCE
#include "clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "atomics.h"

/* The longest sleep of a thread, in ns of real time. Nothing wakes a thread when another process
 * dies, so it must check. */
enum { CLOCK_NAP = 20 * 1000 * 1000 };

static uint64_t clock_wall(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* What a base needs to know of the time: nothing while the clock stands still. */
static uint64_t clock_wall_for(const struct clock_base *b) { return b->rate ? clock_wall() : b->wall; }

static struct clock_base clock_base(const struct clock *c)
{
	struct clock_base b;
	uint32_t turns;
	do {
		turns = load_acquire(&c->turns);
		const struct clock_base *from = &c->base[turns % 2];
		b = (struct clock_base){load_acquire(&from->wall), load_acquire(&from->at), load_acquire(&from->rate)};
	} while (load_relaxed(&c->turns) != turns);
	return b;
}

static uint64_t clock_at(const struct clock_base *b, uint64_t wall)
{
	uint64_t passed = wall > b->wall ? wall - b->wall : 0;
	return b->at + (b->rate == CLOCK_RATE ? passed : (uint64_t)((unsigned __int128)passed * b->rate / CLOCK_RATE));
}

uint64_t clock_now(const struct clock *c)
{
	struct clock_base b = clock_base(c);
	return clock_at(&b, clock_wall_for(&b));
}

uint64_t clock_rate(const struct clock *c) { return clock_base(c).rate; }

void clock_set(struct clock *c, uint64_t rate, uint64_t add)
{
	struct clock_base b = clock_base(c);
	uint64_t wall = rate ? clock_wall() : clock_wall_for(&b);
	uint32_t turns = load_relaxed(&c->turns);
	struct clock_base *to = &c->base[(turns + 1) % 2];

	/* A reader that began two changes ago may see these values; it then finds that `turns` has
	 * changed. */
	store_release(&to->wall, wall);
	store_release(&to->at, clock_at(&b, wall) + add);
	store_release(&to->rate, rate);
	store_release(&c->turns, turns + 1);
	clock_wake(c);
}

void clock_sleep(struct clock *c, uint32_t turns, uint64_t until)
{
	struct clock_base b = clock_base(c);
	uint64_t now = clock_at(&b, clock_wall_for(&b)), ns = CLOCK_NAP;

	if (until <= now)
		return;
	if (b.rate > 0 && (unsigned __int128)(until - now) * CLOCK_RATE / b.rate < CLOCK_NAP)
		ns = (uint64_t)((unsigned __int128)(until - now) * CLOCK_RATE / b.rate) + 1;
	syscall(SYS_futex, &c->turns, FUTEX_WAIT, turns, &(struct timespec){0, (long)ns}, NULL, 0);
}

/* Does not change `turns`: a thread that checked before the change and sleeps after it sleeps at
 * most CLOCK_NAP too long. */
void clock_wake(struct clock *c) { syscall(SYS_futex, &c->turns, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }
