/* Measures memory whose size no call tells: contexts, modules, and driver overhead. Driver
 * overhead is the memory that the driver reports for this process beyond all that was charged
 * for it. docs/overhead.md explains when the driver's count is read, and what each difference
 * is charged as.
 *
 * Readings are off the hot path: around contexts and modules, and now and then beside an
 * allocation or a synchronisation. The first comes 50 ms after an object was made or loaded,
 * later ones ever further apart, up to once a second. */
#ifndef RATION_OVERHEAD_H
#define RATION_OVERHEAD_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "device.h"
#include "region/atomics.h"

/* The making of an object whose size no call tells. The order is: overhead_begin, the driver's
 * call, overhead_charge, overhead_end. If overhead_charge refuses, the caller undoes the object
 * before overhead_end. Until overhead_end no reading of the device charges or returns anything,
 * so that a half-made object is not taken for overhead. shim/PROTOCOLS.md, *The measurement*. */
struct overhead_making {
	struct device *device;
	unsigned kind;          /* the kind that is charged */
	bool first_context;     /* this process's first context on the device */
	bool pid_unlisted;      /* no process was listed as getpid() before: see nvml_decide_pid */
	bool device_known;      /* this process is not listed, and device_bytes is valid */
	uint64_t device_bytes;  /* bytes that all processes used on the device before */
	bool free_only;         /* only free_bytes was read, not NVML's list */
	uint64_t free_bytes;    /* bytes that were free on the device before */
	uint64_t absent_bytes;  /* the device's absent bytes before */
	uint64_t missing_bytes; /* part of absent_bytes: not on the device before */
	bool missing_unsure;    /* missing_bytes is not exact: other threads allocated or made something meanwhile */
	bool imports;           /* this process had imported memory when this began */
	uint32_t measured;      /* the device's value of measured when this began */
	uint64_t claimed_bytes; /* bytes that overhead_charge counted as claimed */
	uint64_t surplus_bytes; /* bytes charged in advance but never used; set by an exact measurement */
	bool exact;             /* no other memory was allocated, freed or taken over during the measurement */
	bool refused;           /* the object was refused: the caller undoes it before overhead_end */
};

/* A turn to load a module. No call tells how much memory a load takes, so a load that is
 * refused exceeds the limit until it is undone. If the loads under way and this one together
 * could exceed the limit, they load one after the other. */
struct overhead_turn {
	struct device *device;
	uint64_t bytes; /* bytes that the load may take: the caller's estimate, or the size of the largest load so far */
	uint32_t turn;  /* the device's turn when this one was taken */
};

/* overhead_take_turn waits for loads of other threads, if necessary, but only for a bounded
 * time if they make no progress. expected is in bytes. The caller must hold no lock. Between it
 * and overhead_leave_turn are the load and, if it was refused, its undoing. */
void overhead_take_turn(struct overhead_turn *t, struct device *d, uint64_t expected);
void overhead_leave_turn(struct overhead_turn *t);

/* overhead_begin takes a reading before an object is made, and charges as overhead the memory
 * that the driver has taken by itself so far. It may start NVML, so the caller must hold no
 * lock unless nvml_tried is true. */
void overhead_begin(struct overhead_making *m, struct device *d, unsigned kind);

/* overhead_begin_load does the same for modules, which often take no memory. It needs a current
 * context. It starts NVML only if some bytes are absent or the program has captured a stream.
 * If the device's free bytes stay the same, the load took nothing. Otherwise all memory that
 * the driver has beyond our count is charged to the module. */
void overhead_begin_load(struct overhead_making *m, struct device *d, unsigned kind);

/* overhead_begin_lazy does the same as overhead_begin_load, whether NVML is started or not. It
 * is for calls that hardly ever take memory. */
void overhead_begin_lazy(struct overhead_making *m, struct device *d, unsigned kind);

/* overhead_charge charges the memory that the object took, beyond the bytes that were charged
 * for it before. It returns CUDA_SUCCESS, or the error that the hooked call must return. *bytes
 * is the number of bytes charged; if the measurement was not exact, they are unconfirmed. If
 * stays is true the object cannot be undone, so it is charged even above the limit; otherwise
 * the caller must undo an object that was refused. */
int overhead_charge(struct overhead_making *m, bool stays, uint64_t *bytes);
void overhead_end(struct overhead_making *m);

/* Call overhead_pause before the end of a context, and overhead_resume after it. How much
 * memory that frees is known only afterwards, so no reading charges or returns anything in
 * between. overhead_resume takes a reading if NVML is started. */
void overhead_pause(struct device *d);
void overhead_resume(struct device *d);

/* Unconfirmed bytes are charges of records with RECORD_UNCONFIRMED: later readings confirm or
 * correct them.
 *
 * overhead_add_unconfirmed adds bytes of such a record, of which `corrected` have been returned
 * already.
 * overhead_doubt makes bytes that were confirmed unconfirmed again.
 * overhead_lower makes bytes of a context's stacks unconfirmed for all later readings, since
 * the driver frees such stacks at any time. It returns false if no reading will be taken.
 * overhead_drop_unconfirmed must be called when bytes of such a record are about to be
 * returned. It returns how many of them have been returned by a correction. */
void overhead_add_unconfirmed(struct device *d, unsigned kind, uint64_t bytes, uint64_t corrected);
void overhead_doubt(struct device *d, unsigned kind, uint64_t bytes);
bool overhead_lower(struct device *d, uint64_t bytes);
uint64_t overhead_drop_unconfirmed(struct device *d, unsigned kind, uint64_t bytes);

/* overhead_add_deferred marks bytes as absent, before charge_arrived, since the driver takes
 * them at first use. They stay absent until a reading has shown them. Call
 * overhead_drop_deferred after charge_leaving. Both take whole units, in bytes. */
void overhead_add_deferred(struct device *d, uint64_t bytes);
void overhead_drop_deferred(struct device *d, uint64_t bytes);

/* overhead_lend is for exported memory whose last handle and mapping in this process are gone;
 * call it after charge_leaving. The driver keeps the memory as long as another process has a
 * handle or a descriptor. It stays charged here, as lent bytes: readings compare them with the
 * bytes on the device that belong to no listed process, and return the difference. It takes such a
 * reading, and may start NVML. ipc: only IPC handles were made of the memory, so that the driver lists
 * it with a process that has it open. shim/PROTOCOLS.md, *Lent memory*. */
void overhead_lend(struct device *d, uint64_t bytes, bool ipc);

/* overhead_keep_rest is called after the end of a context, before its bytes are returned. If
 * the driver still has some of these bytes, it charges them as overhead first, so that they are
 * counted at every instant. */
void overhead_keep_rest(struct device *d, uint64_t bytes);

/* overhead_device_empty reports, after the end of a context, whether the driver has no memory
 * left for this process on the device. It asks the driver's list; if that does not show this
 * process, it reports whether we know of no live context. */
bool overhead_device_empty(struct device *d);

/* Callbacks that run at each reading, right after the driver's count was read. They bring the
 * charges of pools and graphs up to date, as these shrink by themselves. A callback returns
 * false if it could not: then the reading gives no bounds. */
enum overhead_reader { READING_POOLS, READING_GRAPHS, READING_COUNT };
typedef bool (*overhead_update)(unsigned device);
void overhead_on_reading(enum overhead_reader which, overhead_update update);

/* overhead_refresh sets the charged overhead to the driver's present figure, if NVML is
 * started. overhead_start_and_refresh starts NVML first, if this process knows its PID in the
 * driver's list; its caller must hold no lock. */
void overhead_refresh(struct device *d);
void overhead_start_and_refresh(struct device *d);

/* Call overhead_watch when there is a context on a device: readings of the device are taken
 * from then on. Call overhead_read_soon after a call in which the driver may have taken memory,
 * or which loaded code for which it takes memory at first use. */
void overhead_watch(struct device *d);
void overhead_read_soon(void);

/* overhead_reset forgets the planned readings, in a process that has just opened the region. */
void overhead_reset(void);

/* overhead_now returns the coarse monotonic clock, in ns. It is a few loads from a page of the
 * kernel; the exact clock would add a tenth to the time of an allocation's accounting. */
static inline uint64_t overhead_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

extern uint64_t overhead_next_reading;    /* when a reading is due, by overhead_now; 0: there is nothing to read. Atomic */
extern uint32_t overhead_growth_expected; /* 1: take a reading after the next synchronisation. Atomic */

void overhead_read_due(void);
void overhead_read_after_wait(void);

/* overhead_tick takes a reading if it is due. It may start NVML, so the caller must hold no
 * lock. */
static inline void overhead_tick(void)
{
	uint64_t next = load_relaxed(&overhead_next_reading);
	if (next && __builtin_expect(overhead_now() >= next, 0))
		overhead_read_due();
}

/* Call overhead_synchronised after the program has waited for the device. The code for its work
 * is loaded now, and the program may never call a hook again, so a reading is taken here. */
static inline void overhead_synchronised(void)
{
	if (__builtin_expect(__atomic_load_n(&overhead_growth_expected, __ATOMIC_RELAXED), 0))
		overhead_read_after_wait();
	overhead_tick();
}

#endif
