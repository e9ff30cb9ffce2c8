/* Memory whose size no call tells: contexts, modules, and driver overhead, which is what
 * the driver reports for this process beyond what was charged for it. docs/overhead.md
 * explains what is read when, and what is charged as what.
 *
 * Readings are off the hot path: around contexts and modules, and now and then beside an
 * allocation or a synchronisation: 50 ms after something was made or loaded, then ever
 * later, up to once a second. */
#ifndef RATION_OVERHEAD_H
#define RATION_OVERHEAD_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "device.h"
#include "region/atomics.h"

/* A reading before something is made, to tell afterwards what it took. */
struct overhead_reading {
	struct device *device;
	bool first_context;      /* it is a context, and this process's first on the device */
	bool pid_unlisted;       /* no process was listed as getpid(): see nvml_decide_pid */
	uint64_t absent_bytes;   /* charged, and not on the device */
	bool device_known;       /* this process is not listed, but device_bytes were read */
	uint64_t device_bytes;   /* what all processes had of the device */
	bool free_only;          /* NVML is not started: only free_bytes were read */
	uint64_t free_bytes;     /* what the device had left */
};

/* overhead_read_before takes the reading before a context is made, and charges as
 * overhead what the driver has taken until now. It may start NVML: not under a lock,
 * unless nvml_tried. */
struct overhead_reading overhead_read_before(struct device *d);

/* overhead_read_before_load is for modules, which often take nothing: it does not start
 * NVML, and needs a current context. Where the free bytes stay the same, nothing was
 * taken. Otherwise all that the driver has beyond our count is taken for the module's. */
struct overhead_reading overhead_read_before_load(struct device *d);

/* overhead_charge_growth charges what has come since the reading as kind, and tells how
 * much that was: CUDA_SUCCESS, or what the call must return after undoing what it did. */
int overhead_charge_growth(const struct overhead_reading *before, unsigned kind, uint64_t *bytes);

/* overhead_add_unconfirmed says that a context was made that was charged the remembered
 * cost: the readings to come confirm or correct it. overhead_drop_unconfirmed says that
 * it has ended, and returns what is still charged for it. */
void overhead_add_unconfirmed(struct device *d, uint64_t bytes);
uint64_t overhead_drop_unconfirmed(struct device *d, uint64_t bytes);

/* overhead_context_ended returns, after the end of a context that was charged bytes, what
 * the driver no longer has for us. Where NVML does not tell, it returns bytes. */
void overhead_context_ended(struct device *d, uint64_t bytes);

/* overhead_device_empty reports, after the end of a context, whether the driver has
 * nothing left for us: by its list, or because no context is known to be alive. */
bool overhead_device_empty(struct device *d);

/* overhead_refresh makes the overhead charged what the driver reports now, if NVML is
 * started. overhead_start_and_refresh starts it, if that can help: not under a lock. */
void overhead_refresh(struct device *d);
void overhead_start_and_refresh(struct device *d);

/* overhead_watch says that there is a context on a device: readings are taken from now
 * on. overhead_read_soon says that the driver may have taken memory, or will when what
 * was loaded is first used. */
void overhead_watch(struct device *d);
void overhead_read_soon(void);

/* overhead_reset starts anew, in a process that has just opened the region. */
void overhead_reset(void);

/* The coarse clock, in ns: a few loads from a page of the kernel's, where the fine one
 * would be a tenth of an allocation's accounting. */
static inline uint64_t overhead_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

extern uint64_t overhead_next_reading;    /* when it is due, by overhead_now; 0: there is nothing to read. Atomic */
extern uint32_t overhead_growth_expected; /* read after the next synchronisation. Atomic */

void overhead_read_due(void);
void overhead_read_after_wait(void);

/* overhead_tick takes a reading if it is due. It may start NVML: not under a lock. */
static inline void overhead_tick(void)
{
	uint64_t next = load_relaxed(&overhead_next_reading);
	if (next && __builtin_expect(overhead_now() >= next, 0))
		overhead_read_due();
}

/* overhead_synchronised is for after the program has waited for the device: code that
 * was loaded for its work is there now, and the program may do nothing more that is
 * hooked. */
static inline void overhead_synchronised(void)
{
	if (__builtin_expect(__atomic_load_n(&overhead_growth_expected, __ATOMIC_RELAXED), 0))
		overhead_read_after_wait();
	overhead_tick();
}

#endif
