/* Which clock the times in the region are of: the monotonic clock of the machine, since it was
 * booted. A process in a time namespace has a clock of its own, and the kernel tells by how much it
 * differs. A boot is known by the time of day at which the clock was zero. The boot's ID would not do:
 * some containers show one of their own. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

/* Two clocks that were zero within this time are the same clock, in ns: the machine was not booted
 * twice in it, and setting the time of day by less than this changes nothing. */
#define CLOCK_APART UINT64_C(2000000000)

/* clock_zero returns the Unix time at which the machine's monotonic clock was zero, in ns. */
static uint64_t clock_zero(uint64_t shift)
{
	uint64_t before, unix_ns, after;
	unsigned tries = 0;
	do {
		before = now_ns(CLOCK_MONOTONIC);
		unix_ns = now_ns(CLOCK_REALTIME);
		after = now_ns(CLOCK_MONOTONIC);
	} while (after - before > CLOCK_APART / 4 && ++tries < 100); /* it lost the processor in between */
	uint64_t zero = unix_ns - (before - shift);
	return zero ? zero : 1;
}

/* clock_number reads a decimal number, which may be negative, and moves *text behind it. */
static uint64_t clock_number(const char **text)
{
	uint64_t n = 0;
	while (**text == ' ' || **text == '\t')
		++*text;
	bool negative = **text == '-';
	for (*text += negative; **text >= '0' && **text <= '9'; ++*text)
		n = n * 10 + (uint64_t)(**text - '0');
	return negative ? -n : n;
}

/* clock_offset returns the offset of this process's time namespace, in ns modulo 2^64; 0 if it is
 * in the first one, or if that cannot be found out. */
static uint64_t clock_offset(void)
{
	char text[256], here[64], children[64];
	const char *at = "monotonic";
	ssize_t n = readlink("/proc/self/ns/time", here, sizeof here);
	/* The file has the offset of the namespace that children will be in. */
	if (n <= 0 || readlink("/proc/self/ns/time_for_children", children, sizeof children) != n || memcmp(here, children, (size_t)n) ||
	    !region_read_text("/proc/self/timens_offsets", text, sizeof text) || !(at = strstr(text, at)))
		return 0;
	at += strlen("monotonic");
	uint64_t seconds = clock_number(&at);
	return seconds * 1000000000u + clock_number(&at);
}

uint64_t region_clock(struct region *r)
{
	if (UNLIKELY(!load_acquire(&r->clock_zero))) {
		/* Two threads that do this at once find the same. */
		__atomic_store_n(&r->clock_shift, clock_offset(), __ATOMIC_RELAXED);
		store_release(&r->clock_zero, clock_zero(load_relaxed(&r->clock_shift)));
	}
	return load_relaxed(&r->clock_shift);
}

static bool clock_same(uint64_t zero, uint64_t other) { return zero - other + CLOCK_APART < 2 * CLOCK_APART; }

bool region_clock_differs(struct region *r, uint64_t *zero)
{
	uint64_t shift = region_clock(r);
	if (clock_same(load_relaxed(&r->clock_zero), *zero))
		return false;
	/* The time of day may have been set since. */
	uint64_t now = clock_zero(shift);
	store_release(&r->clock_zero, now);
	if (clock_same(now, *zero))
		return false;
	*zero = now;
	return true;
}
