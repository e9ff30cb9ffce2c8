/* System calls that no other library can intercept: another preloaded library may replace syscall,
 * getuid or open. Use them where the answer decides whether a process is rationed. */
#ifndef REGION_KERNEL_H
#define REGION_KERNEL_H

#include <errno.h>
#include <sys/syscall.h>

/* kernel_call makes a system call with up to five arguments. It returns the result, or -1 with
 * errno set. */
static inline long kernel_call(long number, long a, long b, long c, long d, long e)
{
	long result;
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = d,
			 x4 __asm__("x4") = e;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
	result = x0;
#else
#error "system calls for this processor are missing"
#endif
	if (result >= 0 || result < -4095)
		return result;
	errno = (int)-result;
	return -1;
}

/* The real UID and the effective UID of this process. */
static inline unsigned kernel_uid(void) { return (unsigned)kernel_call(SYS_getuid, 0, 0, 0, 0, 0); }
static inline unsigned kernel_euid(void) { return (unsigned)kernel_call(SYS_geteuid, 0, 0, 0, 0, 0); }

#endif
