#define _GNU_SOURCE
#include "calls.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "atomics.h"
#include "knobs.h"

/* A call adds itself and then looks at stopped; calls_stop sets stopped, and its caller then looks
 * at inside: one of them sees the other. */
static uint32_t stopped, inside; /* atomic, in one order */
static __thread unsigned depth;  /* calls inside each other */

void calls_enter(void)
{
	if (!knobs()->checkpoint || depth++ > 0)
		return;
	for (;;) {
		__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
		if (!load_seq_cst(&stopped))
			return;
		__atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
		syscall(SYS_futex, &stopped, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
	}
}

void calls_leave(void)
{
	if (knobs()->checkpoint && --depth == 0)
		__atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
}

void calls_forked(void)
{
	stopped = inside = 0;
	depth = 0;
}

void calls_stop(void) { __atomic_store_n(&stopped, 1, __ATOMIC_SEQ_CST); }
bool calls_inside(void) { return load_seq_cst(&inside) > 0; }

void calls_resume(void)
{
	store_release(&stopped, 0);
	syscall(SYS_futex, &stopped, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
