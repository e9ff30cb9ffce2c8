#include "lock_order.h"

#ifdef RATION_LOCKDEBUG

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The acts that each level permits. The levels that permit LOCK_CALLS_DRIVER or LOCK_LOGS are
 * listed in LOCKING.md with the reason; no level permits the dynamic linker. */
static const struct {
	const char *name;
	unsigned permits;
} lock_order_levels[LOCK_LEVELS] = {
	[LOCK_PRIMARY_CONTEXT] = {"primary context", LOCK_CALLS_DRIVER | LOCK_LOGS},
	[LOCK_CONTEXT_MAKING] = {"context making", LOCK_CALLS_DRIVER | LOCK_LOGS},
	[LOCK_POOL_CURRENT] = {"current pool", LOCK_CALLS_DRIVER | LOCK_LOGS},
	[LOCK_POOL_LIST] = {"pool list", LOCK_LOGS},
	[LOCK_OVERHEAD] = {"overhead", LOCK_CALLS_DRIVER | LOCK_LOGS},
	[LOCK_NVML] = {"nvml", LOCK_CALLS_DRIVER | LOCK_LOGS},
	[LOCK_DEVICE] = {"device", LOCK_CALLS_DRIVER | LOCK_LOGS},
	[LOCK_CONTEXT_TABLE] = {"context table", LOCK_LOGS},
	[LOCK_RESERVE] = {"reserve", LOCK_LOGS},
	[LOCK_IMPORT] = {"import", LOCK_LOGS},
	[LOCK_ALLOC_TABLE] = {"alloc table", 0},
	[LOCK_ATTACH] = {"attach", LOCK_LOGS},
	[LOCK_CANNOT] = {"cannot", LOCK_LOGS},
};

/* The locks that this thread holds, oldest first. */
enum { LOCK_ORDER_DEPTH = 16 };
static __thread struct {
	const void *lock;
	enum lock_level level;
} lock_order_held[LOCK_ORDER_DEPTH] __attribute__((tls_model("initial-exec")));
static __thread unsigned lock_order_count __attribute__((tls_model("initial-exec")));

static void lock_order_fail(const char *what, enum lock_level held)
{
	char line[160];
	int n = snprintf(line, sizeof line, "ration: lock order: %s while the %s lock is held (shim/LOCKING.md)\n", what,
			 lock_order_levels[held].name);
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		abort();
	abort();
}

void lock_order_take(const void *lock, enum lock_level level, bool waits)
{
	char what[64];
	snprintf(what, sizeof what, "waiting for the %s lock", lock_order_levels[level].name);
	for (unsigned i = 0; waits && i < lock_order_count; i++)
		if (lock_order_held[i].level >= level)
			lock_order_fail(what, lock_order_held[i].level);
	if (lock_order_count == LOCK_ORDER_DEPTH)
		lock_order_fail("too many locks", level);
	lock_order_held[lock_order_count].lock = lock;
	lock_order_held[lock_order_count++].level = level;
}

void lock_order_release(const void *lock)
{
	unsigned i = lock_order_count;
	while (i > 0 && lock_order_held[i - 1].lock != lock)
		i--;
	if (!i)
		abort(); /* this thread does not hold the lock */
	for (lock_order_count--; i <= lock_order_count; i++)
		lock_order_held[i - 1] = lock_order_held[i];
}

void lock_order_check(enum lock_act act)
{
	const char *what = act == LOCK_CALLS_DRIVER ? "a driver call" : act == LOCK_CALLS_LINKER ? "the dynamic linker" : "output";
	for (unsigned i = 0; i < lock_order_count; i++)
		if (!(lock_order_levels[lock_order_held[i].level].permits & act))
			lock_order_fail(what, lock_order_held[i].level);
}

void lock_order_hook(void)
{
	if (lock_order_count)
		lock_order_fail("a hook begins or ends", lock_order_held[0].level);
}

#else
typedef int lock_order_unused; /* a translation unit must not be empty */
#endif
