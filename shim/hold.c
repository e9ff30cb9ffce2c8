#include "hold.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How often a thread waits, and for how many ns each time. */
enum { HOLD_WAITS = 100, HOLD_WAIT_NS = 10000000 };

void hold_take(hold *h) { __atomic_fetch_add(&h->count, 1, __ATOMIC_SEQ_CST); }

void hold_drop(hold *h)
{
	if (!__atomic_sub_fetch(&h->count, 1, __ATOMIC_SEQ_CST))
		syscall(SYS_futex, &h->count, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void hold_wait(hold *h)
{
	uint32_t n;
	for (unsigned i = 0; (n = __atomic_load_n(&h->count, __ATOMIC_SEQ_CST)) && i < HOLD_WAITS; i++)
		syscall(SYS_futex, &h->count, FUTEX_WAIT_PRIVATE, n, &(struct timespec){0, HOLD_WAIT_NS}, NULL, 0);
}
