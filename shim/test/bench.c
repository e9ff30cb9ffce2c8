/* What the library costs. Everything is a ratio or a difference of two things
 * measured in turns, in one run, against the stand-in driver without latency. `ration bench`
 * measures the region alone. */
#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>

#include "../elf.h"
#include "bench.h"
#include "check.h"

extern char **environ;

typedef CUresult (*alloc_function)(CUdeviceptr *, size_t);
typedef CUresult (*free_function)(CUdeviceptr);

static double pairs(alloc_function alloc, free_function give, unsigned n)
{
	CUdeviceptr p;
	uint64_t start_ = now();
	for (unsigned i = 0; i < n; i++)
		if (alloc(&p, 512) != CUDA_SUCCESS || give(p) != CUDA_SUCCESS)
			exit(1);
	return (double)(now() - start_) / n;
}

/* One cuMemAlloc and cuMemFree, ours and the driver's own, while others live. */
static void allocations(void)
{
	enum { TURNS = 201, BATCH = 200 };
	static double ours[TURNS], theirs[TURNS];
	static CUdeviceptr live[100000];
	struct elf_object driver;
	unsigned have = 0;
	double first = 0;
	if (!elf_named("libcuda.so.1", &driver))
		exit(1);
	alloc_function alloc = (alloc_function)elf_symbol(&driver, "cuMemAlloc_v2");
	free_function give = (free_function)elf_symbol(&driver, "cuMemFree_v2");
	start();
	printf("cuMemAlloc + cuMemFree, ns\n  %8s %8s %8s %8s\n", "live", "with", "without", "ours");
	for (unsigned n = 10; n <= 100000; n *= 10) {
		for (; have < n; have++)
			if (cuMemAlloc_v2(&live[have], 512) != CUDA_SUCCESS)
				exit(1);
		for (unsigned t = 0; t < TURNS; t++) {
			ours[t] = pairs(cuMemAlloc_v2, cuMemFree_v2, BATCH);
			theirs[t] = pairs(alloc, give, BATCH);
		}
		double with = quantile(ours, TURNS, .5), without = quantile(theirs, TURNS, .5);
		if (n == 10)
			first = with - without;
		printf("  %8u %8.0f %8.0f %8.0f  (%.2f x)\n", n, with, without, with - without, (with - without) / first);
	}
	for (unsigned i = 0; i < have; i++)
		cuMemFree_v2(live[i]);
}

typedef CUresult (*async_alloc_function)(CUdeviceptr *, size_t, CUstream);
typedef CUresult (*async_free_function)(CUdeviceptr, CUstream);

/* One call of a pair, on average; the other is not counted. */
static void async_pairs(async_alloc_function alloc, async_free_function give, unsigned n, double *alloc_ns, double *free_ns)
{
	static CUdeviceptr p[1000];
	uint64_t a = now();
	for (unsigned i = 0; i < n; i++)
		if (alloc(&p[i], 512, NULL) != CUDA_SUCCESS)
			exit(1);
	uint64_t b = now();
	for (unsigned i = 0; i < n; i++)
		if (give(p[i], NULL) != CUDA_SUCCESS)
			exit(1);
	*alloc_ns = (double)(b - a) / n;
	*free_ns = (double)(now() - b) / n;
}

/* cuMemAllocAsync from a pool that need not grow, and cuMemFreeAsync. */
static void pool_allocations(void)
{
	enum { TURNS = 401, BATCH = 200 };
	static double ours[2][TURNS], theirs[2][TURNS];
	struct elf_object driver;
	CUdeviceptr p;
	if (!elf_named("libcuda.so.1", &driver))
		exit(1);
	async_alloc_function alloc = (async_alloc_function)elf_symbol(&driver, "cuMemAllocAsync");
	async_free_function give = (async_free_function)elf_symbol(&driver, "cuMemFreeAsync");
	start();
	if (cuMemAllocAsync(&p, 512, NULL) != CUDA_SUCCESS)
		exit(1);
	for (unsigned t = 0; t < TURNS; t++) {
		async_pairs(cuMemAllocAsync, cuMemFreeAsync, BATCH, &ours[0][t], &ours[1][t]);
		async_pairs(alloc, give, BATCH, &theirs[0][t], &theirs[1][t]);
	}
	static const char *const names[] = {"cuMemAllocAsync", "cuMemFreeAsync"};
	for (unsigned i = 0; i < 2; i++) {
		double with = quantile(ours[i], TURNS, .5), without = quantile(theirs[i], TURNS, .5);
		printf("%s, ns: with %.0f, without %.0f, ours %.0f\n", names[i], with, without, with - without);
	}
	cuMemFreeAsync(p, NULL);
}

/* A process without CUDA, started with and without the library. */
static void nothing(const char *lib)
{
	enum { TURNS = 400 };
	static double with[TURNS], without[TURNS];
	char preload[4096], *argv[] = {"/bin/true", NULL}, *plain[] = {NULL}, *env[] = {preload, NULL};
	snprintf(preload, sizeof preload, "LD_PRELOAD=%s", lib);
	for (unsigned t = 0; t < TURNS * 2; t++) {
		pid_t pid;
		uint64_t a = now();
		if (posix_spawn(&pid, "/bin/true", NULL, NULL, argv, t % 2 ? env : plain))
			exit(1);
		waitpid(pid, NULL, 0);
		(t % 2 ? with : without)[t / 2] = (double)(now() - a) / 1000;
	}
	double w = quantile(with, TURNS, .5), o = quantile(without, TURNS, .5);
	printf("/bin/true, us: with %.0f, without %.0f, ours %.0f\n", w, o, w - o);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "allocations"))
		allocations();
	else if (argc == 2 && !strcmp(argv[1], "pools"))
		pool_allocations();
	else if (argc == 3 && !strcmp(argv[1], "start"))
		nothing(argv[2]);
	else
		return 64;
	return 0;
}
