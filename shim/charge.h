/* Charges the job for the memory that this process takes, and logs why a request is refused. A
 * device is the region's index. A kind is one of RATION_CONTEXT, RATION_MODULE, RATION_DATA and
 * RATION_OVERHEAD. Sizes are in bytes. */
#ifndef RATION_CHARGE_H
#define RATION_CHARGE_H

#include <stdbool.h>
#include <stdint.h>

/* An allocation goes through four steps, and a free through the last two. Each step is counted,
 * so that a reading of the driver's own count (overhead.c) knows how much memory may be between
 * two steps:
 *
 *   charge_add       before the driver is asked for memory
 *   charge_arrived   after the driver has given it
 *   charge_leaving   before the driver is asked to free it
 *   charge_return    after the driver has freed it
 *
 * If the driver gives nothing, charge_return follows charge_add. If it frees nothing,
 * charge_arrived follows charge_leaving. */

/* charge_add charges bytes to the job. It returns CUDA_SUCCESS, or the error that the hooked
 * call must return if they do not fit. */
int charge_add(unsigned device, unsigned kind, uint64_t bytes);
void charge_arrived(unsigned device, uint64_t bytes);
void charge_leaving(unsigned device, uint64_t bytes);
void charge_return(unsigned device, unsigned kind, uint64_t bytes);

/* charge_request is charge_add for memory that the program asks for with one call. In a job whose
 * requests wait (charge_wait.h), it waits for room. The caller holds no lock, and nothing else that
 * other threads wait for. */
int charge_request(unsigned device, unsigned kind, uint64_t bytes);

/* charge_add_forced charges memory that exists already, even if it exceeds the limit. */
void charge_add_forced(unsigned device, unsigned kind, uint64_t bytes);

/* charge_correct changes a charge from an estimate to the real size, before charge_arrived.
 * charge_resize changes the charge of memory that has arrived. Both charge an increase even if
 * it exceeds the limit. */
void charge_correct(unsigned device, unsigned kind, uint64_t from, uint64_t to);
void charge_resize(unsigned device, unsigned kind, uint64_t from, uint64_t to);

/* These are for memory that the driver took by itself, and whose size is known only afterwards:
 *
 *   1. charge_claim counts the bytes as added and arrived in this process's sums.
 *   2. charge_claimed charges them to the job. It returns CUDA_SUCCESS, or the error that the
 *   hooked call must return. If stays is true (the memory cannot be given back), a refused
 *   request is charged even above the limit.
 *   3. If the request was refused and stays is false, the caller calls charge_leaving, frees
 *   the memory, and calls charge_unclaim. */
void charge_claim(unsigned device, unsigned kind, uint64_t bytes);
int charge_claimed(unsigned device, unsigned kind, uint64_t bytes, bool stays);
void charge_unclaim(unsigned device, unsigned kind, uint64_t bytes);

/* charge_would_refuse reports whether a request for bytes would exceed the limit at this moment. */
bool charge_would_refuse(unsigned device, uint64_t bytes);

/* charge_held returns the bytes of a kind that this process has charged and not returned. */
uint64_t charge_held(unsigned device, unsigned kind);

/* charge_moved returns a number that changes with each charge and each return. */
uint64_t charge_moved(unsigned device);

/* Bounds of the bytes that the driver held for this process at some instant between
 * charge_bounds_begin and charge_bounds_end, for all kinds except overhead: at least `least`
 * minus `absent`, at most `most`. shim/PROTOCOLS.md, *The measurement*. */
struct charge_bounds {
	uint64_t least, most, absent;
	uint64_t returned, arrived; /* set by charge_bounds_begin */
};
void charge_bounds_begin(unsigned device, struct charge_bounds *b);
void charge_bounds_end(unsigned device, struct charge_bounds *b);

/* charge_mark_absent adds charged bytes to the absent bytes (from_now), or takes them out
 * again. Absent bytes are charged, but the driver need not have them on the device: managed
 * memory may be elsewhere, and a destroyed pool shrinks without any call. Add them before
 * charge_arrived, and take them out after charge_leaving. charge_absent returns their sum. */
void charge_mark_absent(unsigned device, uint64_t bytes, bool from_now);
uint64_t charge_absent(unsigned device);

/* charge_mark_managed does the same for managed memory, with which this process cannot sleep. */
void charge_mark_managed(unsigned device, uint64_t bytes, bool from_now);

/* Exported memory may outlive this process: its bytes are in the region for the process that reaps
 * this one (docs/protocols.md, *Lent memory*).
 *
 *   charge_export       before the driver is asked to export memory that was not exported before
 *   charge_descriptor   before the program gets a descriptor; own_file: it is of a file of its own,
 *                       as a dma-buf is, and not of the driver's
 *   charge_handle       before the program gets an IPC handle
 *   charge_imported     returns true if a process may have opened memory of this one
 *   charge_unexport     after charge_return */
void charge_export(unsigned device, uint64_t bytes);
void charge_descriptor(unsigned device, int fd, bool own_file);
void charge_handle(unsigned device);
bool charge_imported(unsigned device);
void charge_unexport(unsigned device, uint64_t bytes);

/* Reliefs: ways to free room before a request is refused. They are tried in this order, until
 * the request would fit. */
enum charge_relief {
	RELIEF_POOLS,    /* pools give up memory that is reserved and unused */
	RELIEF_GRAPHS,   /* graphs give up memory that is reserved and unused */
	RELIEF_OVERHEAD, /* driver overhead is read again: it may have become less */
	RELIEF_COUNT
};

/* charge_on_pressure registers the callback for a relief; to register it again does no harm.
 * The thread that runs the callback may hold locks (LOCKING.md), so the callback must not wait
 * for a lock of a lower level. */
typedef void (*charge_relieve)(unsigned device);
void charge_on_pressure(enum charge_relief which, charge_relieve relieve);

/* A build with LOCKDEBUG=1 aborts if more bytes of a kind are returned than were charged. It
 * also aborts if bytes are still between two steps when the last hook under way ends: then no
 * reading would ever be exact again. The two calls below go around each hook. In any other
 * build they do nothing. */
#ifdef RATION_LOCKDEBUG
void charge_hook_begins(void);
void charge_hook_ends(void);
#else
static inline void charge_hook_begins(void) {}
static inline void charge_hook_ends(void) {}
#endif

/* charge_reset sets all sums to 0. Call it in a process that has just opened the region. */
void charge_reset(void);

#endif
