/* What no call tells the size of: contexts, modules, and driver overhead, which is
 * what the driver says beyond what we counted. Off the hot path: at contexts and
 * modules, and now and then beside an allocation or a synchronisation: soon after
 * something was made or loaded, then ever later, up to once a second. */
#ifndef RATION_GAUGE_H
#define RATION_GAUGE_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "region/atomics.h"
#include "device.h"

/* A reading before something that takes memory. */
struct overhead_reading {
	struct device *device;
	uint64_t all; /* what everybody has of the device */
	bool known;
	uint64_t missing; /* what we counted and the driver did not have */
	bool unlisted; /* nobody with our PID was in the driver's list */
	bool first; /* it is a context, and the process's first there */
	bool blind; /* only room was read: NVML is not up */
	uint64_t room; /* what the device had left for everybody */
};

/* overhead_begin takes the reading, and books as overhead what is there already. */
struct overhead_reading overhead_begin(struct device *d);

/* overhead_begin_load is for what most often takes nothing, and needs a current context:
 * it does not start NVML. Where the room left on the device stays the same, nothing was
 * taken, and NVML is not needed afterwards either. Otherwise all that the driver has
 * beyond our count is taken for new. */
struct overhead_reading overhead_begin_load(struct device *d);

/* overhead_charge charges what has come since as kind, and tells how much that was:
 * CUDA_SUCCESS, or what the call must return once it has undone what it did. */
int overhead_charge(const struct overhead_reading *g, unsigned kind, uint64_t *bytes);

/* overhead_unconfirmed is for a context that was charged what the region remembered, and has
 * been made: the next reading confirms or corrects it. overhead_unconfirmed_ended is for its
 * end, and tells what is still charged for it. */
void overhead_unconfirmed(struct device *d, uint64_t bytes);
uint64_t overhead_unconfirmed_ended(struct device *d, uint64_t bytes);

/* overhead_context_ended is for after the end of a context: what the driver no longer has
 * for us is given back. Where it has no figure for us, or one that does not show
 * all we counted, or none without starting NVML, bytes are. */
void overhead_context_ended(struct device *d, unsigned kind, uint64_t bytes);

/* overhead_nothing_left says whether the driver has nothing for us now that a context has
 * ended: by its figure, or because we know of no other. */
bool overhead_nothing_left(struct device *d);

/* overhead_read books or returns overhead at once; overhead_refresh only if NVML is up. */
void overhead_read(struct device *d);
void overhead_refresh(struct device *d);

/* overhead_try_refresh is overhead_refresh for whoever holds locks: where another thread is at it,
 * it is left at that. index is the region's. */
void overhead_try_refresh(unsigned index);

/* overhead_watch says that there is a context on a device: its figure is read from now
 * on. overhead_read_soon says that the driver may have taken more than we could tell, now or
 * when it is first used. */
void overhead_watch(struct device *d);
void overhead_read_soon(void);

/* overhead_reset starts anew, in a process that has just joined. */
void overhead_reset(void);

/* When the next reading is due, by overhead_now; 0 where there is nothing to read. */
extern uint64_t overhead_next;

/* The coarse clock is a few loads from a page of the kernel's; the fine one would
 * be a tenth of an allocation's accounting. */
static inline uint64_t overhead_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void overhead_read_due(void);

/* overhead_tick reads if it is time to. Not under a lock, as NVML may be started. */
static inline void overhead_tick(void)
{
	uint64_t next = load_relaxed(&overhead_next);
	if (next && __builtin_expect(overhead_now() >= next, 0))
		overhead_read_due();
}

/* overhead_synchronised is for when the device has been waited for: code that was loaded for
 * what it did is there now, and a program may do nothing more that we see. */
extern uint32_t overhead_expected;
void overhead_read_after_wait(void);
static inline void overhead_synchronised(void)
{
	if (__builtin_expect(__atomic_load_n(&overhead_expected, __ATOMIC_RELAXED), 0))
		overhead_read_after_wait();
	overhead_tick();
}

#endif
