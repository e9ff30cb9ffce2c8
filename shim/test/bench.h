/* What the benchmarks share: a clock, and quantiles. */
#ifndef RATION_TEST_BENCH_H
#define RATION_TEST_BENCH_H

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

static inline uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static inline double quantile(double *v, unsigned n, double q)
{
	qsort(v, n, sizeof *v, by_size);
	unsigned i = (unsigned)(q * n);
	return v[i < n ? i : n - 1];
}

#endif
