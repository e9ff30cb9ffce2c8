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

/* Something that is made, and whose size no call tells: overhead_begin, the driver's call,
 * overhead_charge, and overhead_end; between the last two, where it was refused, what undoes
 * it. Until overhead_end no reading of the device charges or returns anything, so that what
 * is half made is not taken for overhead. shim/PROTOCOLS.md, *The measurement*. */
struct overhead_making {
	struct device *device;
	unsigned kind;          /* what it is charged as */
	bool first_context;     /* it is a context, and this process's first on the device */
	bool pid_unlisted;      /* no process was listed as getpid(): see nvml_decide_pid */
	bool device_known;      /* this process is not listed, but device_bytes were read */
	uint64_t device_bytes;  /* what all processes had of the device */
	bool free_only;         /* only free_bytes were read, not NVML's list */
	uint64_t free_bytes;    /* what the device had left */
	uint64_t absent_bytes;  /* the device's, before */
	uint64_t missing_bytes; /* of that, not on the device before */
	bool missing_unsure;    /* other threads allocated or made something meanwhile */
	uint32_t measured;      /* the device's, when this began */
	uint64_t claimed_bytes; /* by overhead_charge */
	uint64_t surplus_bytes; /* charged for it before, and more than came; found by an exact measurement */
	bool exact;             /* nothing else was on its way when it was measured */
	bool refused;           /* the caller undoes it before overhead_end */
};

/* A load's turn. No call tells what a load takes, so the limit is exceeded by those that are refused, until they are undone. Where
 * those that are under way and this one could exceed it, they load one after the other. */
struct overhead_turn {
	struct device *device;
	uint64_t bytes; /* what it may take: what the caller expects, or as much as the largest load so far */
	uint32_t turn;  /* the device's, when it was taken */
};

/* overhead_take_turn waits for others' loads, if need be; but not for one that does not move. Not under a lock. Between it and
 * overhead_leave_turn are the load and, if it was refused, its undoing. */
void overhead_take_turn(struct overhead_turn *t, struct device *d, uint64_t expected);
void overhead_leave_turn(struct overhead_turn *t);

/* overhead_begin takes a reading before a context is made, and charges as overhead what the
 * driver has taken until now. It may start NVML: not under a lock, unless nvml_tried. */
void overhead_begin(struct overhead_making *m, struct device *d, unsigned kind);

/* overhead_begin_load is for modules, which often take nothing: it does not start NVML, and
 * needs a current context. Where the free bytes stay the same, nothing was taken. Otherwise
 * all that the driver has beyond our count is taken for the module's. */
void overhead_begin_load(struct overhead_making *m, struct device *d, unsigned kind);

/* overhead_begin_lazy is for calls that hardly ever take anything: the same, with NVML
 * started or not. */
void overhead_begin_lazy(struct overhead_making *m, struct device *d, unsigned kind);

/* overhead_charge charges what has come, beyond what was charged for it before, and returns
 * CUDA_SUCCESS, or what the call must return. *bytes is what was charged; where that is not
 * exact, it is unconfirmed. What does not fit is charged by force where it stays, as nothing
 * can undo it; otherwise the caller undoes it. */
int overhead_charge(struct overhead_making *m, bool stays, uint64_t *bytes);
void overhead_end(struct overhead_making *m);

/* overhead_pause and overhead_resume go around the end of a context, which frees what only
 * we can tell afterwards: no reading charges or returns anything meanwhile. After it, if
 * NVML is started, one is taken. */
void overhead_pause(struct device *d);
void overhead_resume(struct device *d);

/* overhead_add_unconfirmed says that a record with RECORD_UNCONFIRMED has bytes more, of
 * which corrected have been returned: the readings to come confirm or correct the others.
 * overhead_doubt lets them do so again, with bytes that were confirmed; overhead_lower lets all
 * readings to come, with those of a context's stacks: the driver frees them when it likes. It is
 * false where there will be none.
 * overhead_drop_unconfirmed says that bytes are about to be returned, and gives back how
 * many of them have been. */
void overhead_add_unconfirmed(struct device *d, unsigned kind, uint64_t bytes, uint64_t corrected);
void overhead_doubt(struct device *d, unsigned kind, uint64_t bytes);
bool overhead_lower(struct device *d, uint64_t bytes);
uint64_t overhead_drop_unconfirmed(struct device *d, unsigned kind, uint64_t bytes);

/* overhead_add_deferred says of bytes, before charge_arrived, that the driver takes them when
 * they are first used: they are absent until a reading has shown them.
 * overhead_drop_deferred comes after charge_leaving. Both take whole units. */
void overhead_add_deferred(struct device *d, uint64_t bytes);
void overhead_drop_deferred(struct device *d, uint64_t bytes);

/* overhead_lend is for exported memory, after charge_leaving, when the last handle and mapping of this process are gone: the driver keeps
 * it as long as another process has a handle or a descriptor. It stays charged here until no more than the rest can be anywhere: readings
 * compare it with what the device has that no process is listed with. */
void overhead_lend(struct device *d, uint64_t bytes);

/* overhead_keep_rest makes overhead of what the driver still has, after the end of a
 * context, of bytes that are about to be returned for it: there is no instant at which
 * neither counts. */
void overhead_keep_rest(struct device *d, uint64_t bytes);

/* overhead_device_empty reports, after the end of a context, whether the driver has
 * nothing left for us: by its list, or because no context is known to be alive. */
bool overhead_device_empty(struct device *d);

/* What is asked at each reading of the driver, right after it: to bring the charges up to
 * date of what shrinks by itself. It returns false where it could not: then the reading
 * tells nothing. */
enum overhead_reader { READING_POOLS, READING_GRAPHS, READING_COUNT };
typedef bool (*overhead_update)(unsigned device);
void overhead_on_reading(enum overhead_reader which, overhead_update update);

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
