/* What the job's region says about this process, beside what the driver says. */
#ifndef RATION_TEST_HELD_H
#define RATION_TEST_HELD_H

#include "check.h"
#include "../region/region.h"
#include "../region/words.h"

static struct region held_region;

/* The region is mapped by the test itself and never closed: a close would drop the
 * lock that the library holds for this process. */
static inline struct region *region_here(void)
{
	static const struct region_limits none;
	const char *path = getenv("RATION_REGION");
	if (held_region.m == NULL && region_open(&held_region, path, &none) != 0) {
		fprintf(stderr, "no region at %s\n", path);
		exit(1);
	}
	return &held_region;
}

/* What this process holds of the region's device, by kind. */
static inline struct ration_usage usage_of(unsigned device)
{
	static struct region_holding h[RATION_SLOTS];
	unsigned n = region_holdings(region_here(), device, h, RATION_SLOTS);
	for (unsigned i = 0; i < n; i++)
		if (h[i].pid == (uint64_t)getpid())
			return h[i].usage;
	return (struct ration_usage){0};
}

static inline uint64_t held(unsigned kind) { return usage_of(0).kind[kind]; }

static inline uint64_t truth(enum fakegpu_kind kind)
{
	uint64_t n = 0;
	EQ(fakegpu_truth_kind(0, kind, &n, NULL), 0);
	return n;
}

static inline struct fakegpu_shared shared_memory(void)
{
	struct fakegpu_shared s = {0};
	EQ(fakegpu_shared(0, &s), 0);
	return s;
}

/* Our count of each kind is the driver's own, and so is the sum. What was lent stays charged to
 * its maker; what was adopted is overhead. */
#define SAME()                                                                         \
	do {                                                                           \
		struct fakegpu_shared same = shared_memory();                          \
		EQ(held(RATION_DATA), truth(FAKEGPU_DATA) + same.lent - same.adopted); \
		EQ(held(RATION_CONTEXT), truth(FAKEGPU_CONTEXT));                      \
		EQ(held(RATION_MODULE), truth(FAKEGPU_MODULE));                        \
		EQ(held(RATION_OVERHEAD), same.adopted);                               \
		EQ(region_used(region_here(), 0), everybody());                        \
	} while (0)

#endif
