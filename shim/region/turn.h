/* An account's turn is a lock: the thread of this process that holds it may change the account. A
 * waiting thread sleeps on a futex for as long as the holder is stopped, so no priority and no
 * clock matters. The lock is in private memory: no other process can leave it held. */
#ifndef RATION_TURN_H
#define RATION_TURN_H

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "region.h"

static inline bool turn_try(struct region_turn *t)
{
	uint32_t expected = 0;
	return __atomic_compare_exchange_n(&t->lock, &expected, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* turn_wait takes the turn. It sleeps until the holder has called turn_end. */
static inline void turn_wait(struct region_turn *t)
{
	while (__atomic_exchange_n(&t->lock, 2, __ATOMIC_ACQUIRE))
		syscall(SYS_futex, &t->lock, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static inline void turn_end(struct region_turn *t)
{
	if (__builtin_expect(__atomic_exchange_n(&t->lock, 0, __ATOMIC_RELEASE) == 2, 0))
		syscall(SYS_futex, &t->lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
