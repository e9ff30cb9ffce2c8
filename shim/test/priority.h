/* What the tests of priorities share: workers that are each a process in a job of its own. */
#ifndef SHIM_TEST_PRIORITY_H
#define SHIM_TEST_PRIORITY_H

#include "compute.h"
#include "worker.h"

enum { OWN = 2048, HIGH = 5000, SHORT = 100, SEVERAL = 1000 }; /* slices, microseconds */

static inline int change_priority(struct ration_limits *page, const void *arg)
{
	store_release(&page->priority, *(const uint64_t *)arg);
	return 0;
}

/* A worker whose job also has a share or a cap, if the variable is not NULL. */
static inline struct worker begin_with(const char *priority, const char *variable, const char *percent)
{
	static unsigned jobs;
	char region[4200];
	snprintf(region, sizeof region, "%s/job%u", getenv("FAKEGPU_STATE"), jobs++);
	return worker_begin((const char *const[]){"RATION_REGION", region, "RATION_PRIORITY", priority, variable, percent, NULL});
}

static inline struct worker begin(const char *priority) { return begin_with(priority, NULL, NULL); }

/* The slice of a worker's context after its next launch, a few milliseconds later. */
static inline uint64_t slice(const struct worker *w)
{
	later(8 * MS);
	tell(w, 'l', 'd');
	return books_of(0, w->pid, 0).slice_us;
}

#endif
