/* The lane: device memory that this library maps itself, in jobs with RATION_SLEEP_FAST, and moves
 * itself when the job falls asleep and wakes. The driver's own checkpoint moves memory with one
 * thread; what the lane has moved before is not there any more when the driver comes to it. The
 * protocol is in internal/sleep/PROTOCOL.md, *The lane*. lane.c has the blocks of memory,
 * lane_move.c the thread that moves them, lane_alloc.c makes them. */
#ifndef RATION_LANE_H
#define RATION_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc_table.h"
#include "attach.h"
#include "cuda.h"

/* lane_free frees the block of a record. Like the driver's cuMemFree it first waits for the work of
 * the current context, and returns that error. The driver's own wait for a context fails while a
 * stream of it is being captured, and ends the capture. So if any is, lane_free sets RECORD_FREED:
 * the caller then calls lane_keep_freed, and the block goes with the end of the capture. */
int lane_free(struct alloc_record *r);
void lane_keep_freed(const struct alloc_record *r);

/* lane_free_late frees such blocks if no stream is being captured any more. It is called after the
 * end of a capture, and waits for the device. */
void lane_free_late(void);

/* lane_has reports whether an address lies in a block. */
bool lane_has(CUdeviceptr at);

/* lane_context_ended frees the blocks of a context that has ended. */
void lane_context_ended(uint32_t context);

enum lane_use { LANE_UNKNOWN, LANE_DECIDING, LANE_USED, LANE_UNUSED };

/* lane_use returns the place of an enum lane_use, atomic, which a forked child does not inherit. */
static inline uint32_t *lane_use(void) { return &__atomic_load_n(&attach_page, __ATOMIC_ACQUIRE)->lane; }

/* The blocks, by address: bytes, context, device, and in `other` the driver's handle. */
extern struct alloc_table lane_blocks;

/* lane_map makes a block on the device at its address, and lane_unmap gives it back to the driver and
 * keeps the address. lane_map returns the driver's error. */
int lane_map(CUdeviceptr at, uint64_t bytes, CUmemGenericAllocationHandle *out);
bool lane_unmap(CUdeviceptr at, uint64_t bytes, CUmemGenericAllocationHandle handle);

#endif
