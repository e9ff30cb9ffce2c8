/* What the library costs. Everything is a ratio or a difference of two things
 * measured in turns, in one run, against the stand-in driver without latency. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "../elf.h"
#include "../region/internal.h"
#include "../region/words.h"
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

/* The charge alone, beside one atomic addition to a word of a shared file. */
static void charge(const char *path)
{
	enum { TURNS = 201, BATCH = 1000 };
	static double charged[TURNS], pair[TURNS], added[TURNS];
	struct region_limits own = {.memory = {make_limit(1ull << 40)}};
	struct region r;
	if (region_open(&r, path, &own) || region_claim(&r, "bench"))
		exit(1);
	uint64_t *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (unsigned t = 0; t < TURNS; t++) {
		uint64_t a = now();
		for (unsigned i = 0; i < BATCH; i++)
			__atomic_fetch_add(word, 1, __ATOMIC_SEQ_CST);
		uint64_t b = now();
		for (unsigned i = 0; i < BATCH; i++)
			if (region_charge(&r, 0, RATION_DATA, 512, NULL))
				exit(1);
		uint64_t c = now();
		for (unsigned i = 0; i < BATCH; i++)
			if (region_return(&r, 0, RATION_DATA, 512))
				exit(1);
		uint64_t d = now();
		added[t] = (double)(b - a) / BATCH;
		charged[t] = (double)(c - b) / BATCH;
		pair[t] = (double)(d - b) / BATCH;
	}
	double add = quantile(added, TURNS, .5), one = quantile(charged, TURNS, .5), two = quantile(pair, TURNS, .5);
	printf("charge alone, ns\n  atomic add %.1f, charge %.1f (%.1f x, %.0f M/s), charge and return %.1f\n", add, one, one / add,
	       1000 / one, two);
	region_leave(&r);
}

/* The usage alone: the sequence lock and both copies, against bare stores. */
static void usage(void)
{
	enum { TURNS = 201, BATCH = 1000 };
	static double locked[TURNS], bare[TURNS];
	struct ration_account *a = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	static struct region_turn turn;
	for (unsigned t = 0; t < TURNS; t++) {
		uint64_t from = now();
		for (unsigned i = 0; i < BATCH; i++) {
			if (!turn_try(&turn))
				turn_wait(&turn);
			region_put(&turn, a, RATION_DATA, i & 1 ? -512 : 512);
			turn_end(&turn);
		}
		uint64_t between = now();
		for (unsigned i = 0; i < BATCH; i++) {
			store_release(&a->b.total, i);
			store_release(&a->b.kind[RATION_DATA], i);
		}
		locked[t] = (double)(between - from) / BATCH;
		bare[t] = (double)(now() - between) / BATCH;
	}
	double with = quantile(locked, TURNS, .5), without = quantile(bare, TURNS, .5);
	printf("usage alone, ns\n  with the sequence lock %.1f (%.0f M/s), bare stores %.1f (%.0f M/s)\n", with, 1000 / with, without,
	       1000 / without);
}

/* Attaching, by n processes at once, to a region that is there, as ration run makes
 * it before the program starts, or to none. */
static void attach(const char *folder, unsigned n, unsigned rounds, bool made)
{
	double *all = mmap(NULL, n * rounds * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char path[4096];
	static const struct region_limits none;
	for (unsigned round = 0; round < rounds; round++) {
		int go[2], hold[2];
		char c;
		snprintf(path, sizeof path, "%s/attach-%u-%u", folder, n, round);
		struct region first;
		if (pipe(go) || pipe(hold) || (made && region_open(&first, path, &none)))
			exit(1);
		if (made)
			region_close(&first);
		for (unsigned i = 0; i < n; i++)
			if (fork() == 0) {
				struct region r;
				close(go[1]);
				close(hold[1]);
				(void)!read(go[0], &c, 1);
				uint64_t t = now();
				if (region_open(&r, path, &none) || region_claim(&r, "bench"))
					_exit(1);
				all[round * n + i] = (double)(now() - t) / 1000;
				(void)!read(hold[0], &c, 1); /* live on until all have come */
				_exit(0);
			}
		close(go[0]);
		close(hold[0]);
		usleep(20000 + n * 200);
		close(go[1]);
		usleep(20000 + n * 400);
		close(hold[1]);
		for (unsigned i = 0; i < n; i++) {
			int status;
			if (wait(&status) < 0 || status)
				exit(1);
		}
		unlink(path);
	}
	printf("attach, %s region, %u at once, us: p50 %.0f, p99 %.0f, most %.0f\n", made ? "complete" : "new", n,
	       quantile(all, n * rounds, .5), quantile(all, n * rounds, .99), quantile(all, n * rounds, 1));
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
	char path[4096];
	if (argc == 2 && !strcmp(argv[1], "allocations")) {
		allocations();
	} else if (argc == 2 && !strcmp(argv[1], "pools")) {
		pool_allocations();
	} else if (argc == 4 && !strcmp(argv[1], "rest")) {
		snprintf(path, sizeof path, "%s/charge", argv[2]);
		charge(path);
		usage();
		attach(argv[2], 8, 50, true);
		attach(argv[2], 300, 3, true);
		attach(argv[2], 8, 50, false);
		attach(argv[2], 300, 3, false);
		nothing(argv[3]);
	} else {
		return 64;
	}
	return 0;
}
