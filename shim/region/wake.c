/* Waking requests that wait for memory of their job (wait.c), after some was returned. */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

__attribute__((cold, noinline)) void region_wake(struct region *r, unsigned device)
{
	uint32_t *word = &r->m->devices[device].wake, w;
	while ((w = __atomic_load_n(word, __ATOMIC_SEQ_CST)) & RATION_WAKE_WAITING) { /* pairs with region_wait_arm */
		if (cas32(word, w, (w + RATION_WAKE_STEP) & ~RATION_WAKE_WAITING)) {
			/* If this process dies here, the first waiter finds the memory after
			 * RATION_WAIT_LOOK_NS. */
			FAILPOINT(WAIT_CALLED);
			syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
			return;
		}
	}
}
