/* The smallest test frame: CHECK counts, FINISH prints the line run.sh adds up. */
#ifndef FAKEGPU_TEST_CHECK_H
#define FAKEGPU_TEST_CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"
#include "fakegpu.h"

static unsigned checks_passed, checks_failed; /* atomic: threads check, too */

static inline void check_count(unsigned *n) { __atomic_fetch_add(n, 1, __ATOMIC_RELAXED); }

#define CHECK(condition)                                                                        \
	do {                                                                                    \
		if (condition) {                                                                \
			check_count(&checks_passed);                                            \
		} else {                                                                        \
			check_count(&checks_failed);                                            \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
		}                                                                               \
	} while (0)

/* Compares numbers and says what they were. */
#define EQ(got, want)                                                                                            \
	do {                                                                                                     \
		long long got_ = (long long)(got), want_ = (long long)(want);                                    \
		if (got_ == want_) {                                                                             \
			check_count(&checks_passed);                                                             \
		} else {                                                                                         \
			check_count(&checks_failed);                                                             \
			fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #got, got_, want_); \
		}                                                                                                \
	} while (0)

#define OK(call) EQ(call, CUDA_SUCCESS)

static inline int finish(const char *file)
{
	const char *name = strrchr(file, '/');
	printf("%s: %u passed, %u failed\n", name == NULL ? file : name + 1, checks_passed, checks_failed);
	return checks_failed > 0;
}

#define FINISH() finish(__FILE__)

#define KIB 1024ull
#define MIB (1024 * KIB)

static inline uint64_t mine(void)
{
	uint64_t n = 0;
	EQ(fakegpu_truth(0, &n, NULL), 0);
	return n;
}

static inline uint64_t everybody(void)
{
	uint64_t n = 0;
	EQ(fakegpu_truth(0, NULL, &n), 0);
	return n;
}

/* Initialises and makes the primary context of device 0 current. */
static inline CUcontext start(void)
{
	CUcontext c = NULL;
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&c, 0));
	OK(cuCtxSetCurrent(c));
	return c;
}

/* Runs this program again with one argument and more environment; returns its
 * wait status. The pairs end with NULL. */
static inline int again(const char *self, const char *arg, const char *const *pairs)
{
	int status = -1;
	pid_t pid = fork();
	if (pid == 0) {
		for (; pairs != NULL && pairs[0] != NULL; pairs += 2)
			setenv(pairs[0], pairs[1], 1);
		execl(self, self, arg, (char *)NULL);
		_exit(127);
	}
	waitpid(pid, &status, 0);
	return status;
}

#define AGAIN(arg, ...) again("/proc/self/exe", arg, (const char *const[]){__VA_ARGS__, NULL})

#endif
