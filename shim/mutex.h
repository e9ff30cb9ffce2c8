/* A mutex that needs nothing of the C library's age, for the slow paths: threads of
 * this process that wait, sleep. */
#ifndef RATION_MUTEX_H
#define RATION_MUTEX_H

#include <linux/futex.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
	uint32_t word; /* 0 free, 1 held, 2 held and waited for */
} mutex;

static inline bool mutex_try(mutex *m)
{
	uint32_t expected = 0;
	return __atomic_compare_exchange_n(&m->word, &expected, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void mutex_lock(mutex *m)
{
	if (mutex_try(m))
		return;
	while (__atomic_exchange_n(&m->word, 2, __ATOMIC_ACQUIRE))
		syscall(SYS_futex, &m->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static inline void mutex_unlock(mutex *m)
{
	if (__atomic_exchange_n(&m->word, 0, __ATOMIC_RELEASE) == 2)
		syscall(SYS_futex, &m->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
