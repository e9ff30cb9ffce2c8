/* Charging the job for what this process takes, and logging why not. A device is the
 * region's index, a kind is one of RATION_CONTEXT, RATION_MODULE, RATION_DATA and
 * RATION_OVERHEAD. */
#ifndef RATION_CHARGE_H
#define RATION_CHARGE_H

#include <stdbool.h>
#include <stdint.h>

/* charge_add asks the job for bytes before the driver is asked for them: CUDA_SUCCESS, or
 * what the call must return. locked: the caller holds a lock, so that relief (below) must
 * not wait for others. */
int charge_add(unsigned device, unsigned kind, uint64_t bytes, bool locked);

/* charge_would_refuse reports whether a request would be refused as things stand. */
bool charge_would_refuse(unsigned device, uint64_t bytes);

/* charge_add_forced charges what exists already, whether it fits or not. */
void charge_add_forced(unsigned device, unsigned kind, uint64_t bytes);

/* charge_return gives back what was charged. */
void charge_return(unsigned device, unsigned kind, uint64_t bytes);

/* charge_adjust goes from one charge to another, by force where it grows. */
void charge_adjust(unsigned device, unsigned kind, uint64_t from, uint64_t to);

/* charge_held returns the bytes that this process holds by our count. */
uint64_t charge_held(unsigned device, unsigned kind);
uint64_t charge_held_total(unsigned device);

/* charge_mark_absent says of charged bytes, from now on or no longer, that the driver
 * need not have them on the device: managed memory may be elsewhere, and a destroyed pool
 * shrinks unseen. charge_absent returns their sum. */
void charge_mark_absent(unsigned device, uint64_t bytes, bool from_now);
uint64_t charge_absent(unsigned device);

/* Relief: what can make room before a request is refused, in the order in which it is
 * tried, until the request would fit. */
enum charge_relief {
	RELIEF_POOLS,    /* pools let go of memory that is reserved and unused */
	RELIEF_GRAPHS,   /* so do graphs */
	RELIEF_OVERHEAD, /* driver overhead is read again: it may have become less */
	RELIEF_COUNT
};

/* charge_on_pressure registers what to call for a relief; again is no harm. Where wait is
 * false the callback must take no lock that it would have to wait for. */
typedef void (*charge_relieve)(unsigned device, bool wait);
void charge_on_pressure(enum charge_relief which, charge_relieve relieve);

/* charge_can_relieve reports whether a relief was registered. */
bool charge_can_relieve(enum charge_relief which);

/* charge_reset starts at nothing, in a process that has just opened the region. */
void charge_reset(void);

#endif
