/* How a program says what is to be counted: by a system call that gives EINVAL and does nothing else. */
#ifndef TESTPROG_MARKS_H
#define TESTPROG_MARKS_H

#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* getpriority knows no such kind of process. */
#define MARK 0x5241

/* From here on system calls are counted, or no longer. Under the program syscalls, calls
 * becomes the number of them since the last mark, in all threads and children; otherwise it stays. */
static inline void mark(int counted, uint64_t *calls) { syscall(SYS_getpriority, MARK, counted, calls); }

#endif
