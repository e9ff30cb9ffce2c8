/* Atomic access to words that other processes see. Each name contains its memory order. The comment
 * at each use names the access that it pairs with, which may be in Go (internal/region):
 * sync/atomic is at least as strong as any of these. */
#ifndef RATION_ATOMICS_H
#define RATION_ATOMICS_H

#include <stdbool.h>
#include <stdint.h>

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline uint64_t load_acquire(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

static inline uint64_t load_relaxed(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }

static inline uint32_t load32_acquire(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

static inline void store_release(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

static inline void store32_release(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

/* cas replaces from by to, and returns true if it did. On success it is sequentially consistent. */
static inline bool cas(uint64_t *p, uint64_t from, uint64_t to)
{
	return __atomic_compare_exchange_n(p, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
}

static inline bool cas32(uint32_t *p, uint32_t from, uint32_t to)
{
	return __atomic_compare_exchange_n(p, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
}

static inline uint64_t fetch_add(uint64_t *p, uint64_t n) { return __atomic_fetch_add(p, n, __ATOMIC_ACQ_REL); }

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* fence_all orders what this thread stored before it and loads after it. The thread sanitizer does not
 * know fences, and its threads see each other's stores in order. */
static inline void fence_all(void)
{
#ifndef __SANITIZE_THREAD__
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

#endif
