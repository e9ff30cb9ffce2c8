/* Charging the job for what this process takes, and logging why not. A device is the
 * region's index, a kind is one of RATION_CONTEXT, RATION_MODULE, RATION_DATA and
 * RATION_OVERHEAD. */
#ifndef RATION_CHARGE_H
#define RATION_CHARGE_H

#include <stdbool.h>
#include <stdint.h>

/* An allocation goes through four steps, and a free through the last two. Each is counted,
 * so that a reading of the driver (overhead.c) knows what may have been on its way:
 *
 *   charge_add       before the driver is asked for memory
 *   charge_arrived   after it has given it
 *   charge_leaving   before it is asked to free it
 *   charge_return    after it has
 *
 * Where the driver gives nothing, charge_return follows charge_add. Where it frees nothing,
 * charge_arrived follows charge_leaving. */

/* charge_add asks the job for bytes: CUDA_SUCCESS, or what the call must return. */
int charge_add(unsigned device, unsigned kind, uint64_t bytes);
void charge_arrived(unsigned device, uint64_t bytes);
void charge_leaving(unsigned device, uint64_t bytes);
void charge_return(unsigned device, unsigned kind, uint64_t bytes);

/* charge_add_forced charges what exists already, whether it fits or not. */
void charge_add_forced(unsigned device, unsigned kind, uint64_t bytes);

/* charge_correct goes from an estimate to the real size of what has not arrived yet;
 * charge_resize to the new size of what has. Both charge by force where it is more. */
void charge_correct(unsigned device, unsigned kind, uint64_t from, uint64_t to);
void charge_resize(unsigned device, unsigned kind, uint64_t from, uint64_t to);

/* charge_claim counts as arrived what the driver turns out to have, before the job is asked
 * for it by charge_claimed: CUDA_SUCCESS, or what the call must return. Where it stays, it
 * has then been charged by force; otherwise the caller undoes what it made, between
 * charge_leaving and charge_unclaim. */
void charge_claim(unsigned device, unsigned kind, uint64_t bytes);
int charge_claimed(unsigned device, unsigned kind, uint64_t bytes, bool stays);
void charge_unclaim(unsigned device, unsigned kind, uint64_t bytes);

/* charge_would_refuse reports whether a request would be refused as things stand. */
bool charge_would_refuse(unsigned device, uint64_t bytes);

/* charge_held returns the bytes of a kind that this process holds by our count. */
uint64_t charge_held(unsigned device, unsigned kind);

/* What the driver can have had for this process, of all kinds but overhead, at an instant
 * between charge_bounds_begin and charge_bounds_end: at least that many bytes, less what is
 * absent, and at most. shim/PROTOCOLS.md, *The measurement*. */
struct charge_bounds {
	uint64_t least, most, absent;
	uint64_t returned, arrived; /* charge_bounds_begin's */
};
void charge_bounds_begin(unsigned device, struct charge_bounds *b);
void charge_bounds_end(unsigned device, struct charge_bounds *b);

/* charge_mark_absent says of charged bytes, from now on or no longer, that the driver
 * need not have them on the device: managed memory may be elsewhere, and a destroyed pool
 * shrinks unseen. It is said before charge_arrived, and taken back after charge_leaving.
 * charge_absent returns their sum. */
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

/* charge_on_pressure registers what to call for a relief; again is no harm. The caller may
 * hold locks (LOCKING.md): the callback waits for none of a lower level. */
typedef void (*charge_relieve)(unsigned device);
void charge_on_pressure(enum charge_relief which, charge_relieve relieve);

/* A build with LOCKDEBUG=1 aborts where more bytes of a kind are returned than were charged,
 * and where some are still on their way when the last hook of this process ends: a reading
 * would never be exact again. In any other build the calls below, which go around each hook,
 * are nothing. */
#ifdef RATION_LOCKDEBUG
void charge_hook_begins(void);
void charge_hook_ends(void);
#else
static inline void charge_hook_begins(void) {}
static inline void charge_hook_ends(void) {}
#endif

/* charge_reset starts at nothing, in a process that has just opened the region. */
void charge_reset(void);

#endif
