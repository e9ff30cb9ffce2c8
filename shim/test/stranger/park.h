/* One thread stopped at a fault point while the others run, and a process that is taken for
 * dead though it lives. With the library that has fault points only: RATION_FAULT=POINT:K:stop
 * would stop the process; here the thread waits instead, as the signal is sent through
 * syscall, and a program's own syscall comes before the C library's. */
#ifndef RATION_TEST_PARK_H
#define RATION_TEST_PARK_H

#include <linux/futex.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include "stranger.h"

static uint32_t parked, unparked;
static uint32_t futex_waits; /* how often a thread began to wait for a lock of the library */

static long raw_syscall(long number, const long *a)
{
#if defined(__x86_64__)
	long result;
	register long r10 __asm__("r10") = a[3], r8 __asm__("r8") = a[4], r9 __asm__("r9") = a[5];
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a[0], x1 __asm__("x1") = a[1], x2 __asm__("x2") = a[2],
			 x3 __asm__("x3") = a[3], x4 __asm__("x4") = a[4], x5 __asm__("x5") = a[5];
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#else
#error "how are system calls made here?"
#endif
}

/* It reads as many arguments as there can be, more than some callers pass. */
__attribute__((visibility("default"), no_sanitize("address"))) long syscall(long number, ...)
{
	va_list args;
	long a[6];
	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if (number == SYS_tgkill && (int)a[2] == SIGSTOP) {
		__atomic_store_n(&parked, 1, __ATOMIC_RELEASE);
		while (!__atomic_load_n(&unparked, __ATOMIC_ACQUIRE))
			pause_ms(1);
		return 0;
	}
	if (number == SYS_futex && (a[1] & ~FUTEX_PRIVATE_FLAG) == FUTEX_WAIT)
		__atomic_fetch_add(&futex_waits, 1, __ATOMIC_ACQ_REL);
	long result = raw_syscall(number, a);
	if (result < 0 && result >= -4095) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

static inline bool is_parked(void) { return __atomic_load_n(&parked, __ATOMIC_ACQUIRE); }

/* Waits until a thread has come to the point. */
static inline void wait_parked(void)
{
	for (unsigned ms = 0; ms < LONG && !is_parked(); ms++)
		pause_ms(1);
	CHECK(is_parked()); /* or the point is none any more */
}

static inline void unpark(void) { __atomic_store_n(&unparked, 1, __ATOMIC_RELEASE); }

/* This process's slot. */
static inline unsigned own_slot(void)
{
	struct ration_region *m = region_here()->m;
	for (unsigned i = 0; i < RATION_SLOTS; i++)
		if (status_state(load_acquire(&m->status[i])) == RATION_SLOT_ACTIVE && load_acquire(&m->slots[i].pid) == (uint64_t)getpid())
			return i;
	CHECK(!"a slot of ours");
	return 0;
}

/* Another process takes this one for dead and gives back what it holds: it has lost its
 * locks, and is in a PID namespace that the other cannot see into. */
static inline void be_evicted(void)
{
	struct ration_slot *s = &region_here()->m->slots[own_slot()];
	int status;
	store_release(&s->pidns, 1);
	store_release(&s->host_pid, 0);
	lose_lock();
	lose_keep();
	pid_t pid = fork();
	if (pid == 0) {
		static const struct region_limits none;
		struct region r;
		unsigned reaped = 0;
		int err = region_open(&r, getenv("RATION_REGION"), &none);
		err = err ? err : region_reap(&r, &reaped);
		_exit(err || reaped != 1);
	}
	EQ(waitpid(pid, &status, 0), pid);
	EQ(status, 0);
}

#endif
