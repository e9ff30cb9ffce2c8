/* The library's clock stands still unless a test says so: a program's own clock_gettime
 * comes before the C library's. */
#ifndef RATION_TEST_LATER_H
#define RATION_TEST_LATER_H

#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int64_t ahead;

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *t)
{
	if (id != CLOCK_MONOTONIC_COARSE)
		return (int)syscall(SYS_clock_gettime, id, t);
	*t = (struct timespec){1000 + __atomic_load_n(&ahead, __ATOMIC_RELAXED), 0};
	return 0;
}

/* Now the next reading of the driver's count is due. */
static inline void later(void) { __atomic_fetch_add(&ahead, 2, __ATOMIC_RELAXED); }

#endif
