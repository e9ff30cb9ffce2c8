/* Named wrappers over the compiler's atomics, so that every use says its order.
 *
 * The words that several processes change are exchanged and read in sequentially
 * consistent order: the ledger's argument speaks of one order of all changes (see
 * ledger.h). Words with one writer are released.
 */
#ifndef FAKEGPU_ATOMICS_H
#define FAKEGPU_ATOMICS_H

#include <stdbool.h>
#include <stdint.h>

#define load_relaxed(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define load_seq_cst(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define store_relaxed(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define add_relaxed(p, v) __atomic_add_fetch((p), (v), __ATOMIC_RELAXED)

/* If *p is *expected, replaces it by desired and returns true. Otherwise sets *expected to *p. */
static inline bool cas_seq_cst(uint64_t *p, uint64_t *expected, uint64_t desired)
{
	return __atomic_compare_exchange_n(p, expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

#endif
