/* A mutex for the slow paths: a thread that waits for it sleeps on a futex. It uses no
 * pthread call, whose symbol version would tie the library to the C library's age. */
#ifndef RATION_MUTEX_H
#define RATION_MUTEX_H

#include <linux/futex.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lock_order.h"

typedef struct {
	uint32_t word; /* 0 free, 1 held, 2 held and waited for */
} mutex;

static inline bool mutex_take(mutex *m)
{
	uint32_t expected = 0;
	return __atomic_compare_exchange_n(&m->word, &expected, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* mutex_try takes m if it is free, and returns whether it did. */
static inline bool mutex_try(mutex *m, enum lock_level level)
{
	bool taken = mutex_take(m);
	if (taken)
		lock_order_take(m, level, false);
	return taken;
}

/* mutex_wait is the slow path of mutex_lock: it waits for m and takes it. A wait of more than
 * LOG_WAIT_MS is logged. */
void mutex_wait(mutex *m, enum lock_level level);

/* mutex_on_wait, if it is not NULL, is called by a thread that begins to wait for a lock before
 * LOCK_ALLOC_TABLE, and when it has it: the thread that holds the lock may wait for the job to wake up.
 * Atomic. */
extern void (*mutex_on_wait)(bool waits);

static inline void mutex_lock(mutex *m, enum lock_level level)
{
	lock_order_take(m, level, true);
	if (!mutex_take(m))
		mutex_wait(m, level);
}

static inline void mutex_unlock(mutex *m)
{
	lock_order_release(m);
	if (__atomic_exchange_n(&m->word, 0, __ATOMIC_RELEASE) == 2)
		syscall(SYS_futex, &m->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
