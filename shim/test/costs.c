/* What a context costs is measured once in a job, and remembered: contexts after that
 * are charged before the driver is asked, and NVML starts when a reading is needed. Each
 * case is a process of its own, in one job. */
#include <pthread.h>
#include <sys/wait.h>

#include "../region/atomics.h"
#include "later.h"
#include "held.h"

#define COST (300 * MIB)

static bool started(void)
{
	unsigned n;
	return nvmlDeviceGetCount_v2(&n) != NVML_ERROR_UNINITIALIZED;
}

static uint64_t *cost(void) { return &region_here()->m->devices[0].context_cost; }

/* The UUID of device 0, once a process has named it. */
static const uint64_t *uuid(void) { return region_here()->limits->device[0].uuid; }

static uint64_t remembered(void) { return context_cost_for(load_acquire(cost()), uuid()); }

/* Where the region has what the library last read of the driver's count for this process. */
static uint64_t *observed_word(void)
{
	struct ration_region *m = region_here()->m;
	for (unsigned i = 0; i < RATION_SLOTS; i++)
		if (status_state(load_acquire(&m->status[i])) == RATION_SLOT_ACTIVE && load_acquire(&m->slots[i].pid) == (uint64_t)getpid())
			return &m->accounts[0][i].driver;
	fprintf(stderr, "this process has no slot\n");
	exit(1);
}

static uint64_t observed(void) { return load_acquire(observed_word()); }

static void limit(uint64_t bytes) { EQ(region_set_limit(region_here(), 0, bytes ? make_limit(bytes) : LIMIT_NONE), REGION_OK); }

/* All is returned, by the accounts and by the driver. */
static void end(void)
{
	OK(cuDevicePrimaryCtxRelease_v2(0));
	EQ(usage_of(0).total, 0);
	SAME();
}

static void first(void)
{
	EQ(load_acquire(cost()), 0);
	start();
	CHECK(started());
	EQ(remembered(), COST);
	SAME();
	end();
}

static void second(void)
{
	CUdeviceptr p;
	start();
	SAME();
	OK(cuMemAlloc_v2(&p, MIB));
	SAME();
	CHECK(!started());
	later();
	OK(cuMemFree_v2(p));
	CHECK(!started());
	OK(cuMemAlloc_v2(&p, MIB)); /* beside which a reading is due */
	CHECK(started());
	SAME();
	EQ(remembered(), COST);
	OK(cuMemFree_v2(p));
	end();
}

/* A context from its making to its end without NVML, and a second and third one. */
static void never(void)
{
	CUdeviceptr p, q;
	CUcontext c;
	for (int i = 0; i < 3; i++) {
		if (i < 2) {
			start();
		} else {
			OK(cuCtxCreate_v2(&c, 0, 0));
		}
		OK(cuMemAlloc_v2(&p, MIB));
		OK(cuMemAllocAsync(&q, MIB, NULL));
		SAME();
		OK(i == 0 ? cuDevicePrimaryCtxRelease_v2(0) : i == 1 ? cuDevicePrimaryCtxReset_v2(0) : cuCtxDestroy_v2(c));
		SAME();
		EQ(usage_of(0).total, 0);
		if (i == 1)
			OK(cuDevicePrimaryCtxRelease_v2(0));
	}
	CHECK(!started());
}

/* Once it has waited for its device for the first time, what it used is loaded, and it
 * may do nothing more that we see: then it is time to look. Not again at once. */
static void waits(void)
{
	uint64_t driver;
	CUdeviceptr p;
	start();
	CHECK(!started());
	OK(cuCtxSynchronize());
	CHECK(started());
	SAME();
	driver = observed();
	OK(cuMemAlloc_v2(&p, MIB));
	OK(cuCtxSynchronize());
	EQ(observed(), driver);
	later();
	OK(cuCtxSynchronize());
	EQ(observed(), driver + MIB);
	OK(cuMemFree_v2(p));
	end();
}

/* neighbour is a process that has a context until its pipe is closed. */
static pid_t neighbour(int *end)
{
	int ready[2], done[2];
	char c;
	EQ(pipe(ready) | pipe(done), 0);
	pid_t pid = fork();
	if (pid == 0) {
		unsetenv("FAKEGPU_DIE");
		close(done[1]);
		start();
		EQ(write(ready[1], "", 1), 1);
		EQ(read(done[0], &c, 1), 0);
		OK(cuDevicePrimaryCtxRelease_v2(0));
		_exit(checks_failed ? 1 : 0);
	}
	EQ(read(ready[0], &c, 1), 1);
	*end = done[1];
	return pid;
}

static void read_twice(void)
{
	OK(cuCtxSynchronize());
	later();
	OK(cuCtxSynchronize());
}

/* The driver's list is not read again while nothing has changed, except now and then. */
static void unchanged(void)
{
	enum { LEFT_OUT = 60, MARK = 4711 };
	CUdeviceptr p;
	start();
	OK(cuMemAlloc_v2(&p, MIB));
	read_twice();
	uint64_t driver = observed();
	for (int round = 0; round < 2; round++) {
		store_release(observed_word(), MARK);
		for (int i = 0; i < LEFT_OUT; i++) {
			later();
			OK(cuCtxSynchronize());
			EQ(observed(), MARK);
		}
		later();
		OK(cuCtxSynchronize());
		EQ(observed(), driver);
	}
	/* The device has as many bytes as before, but this process has freed and allocated. */
	store_release(observed_word(), MARK);
	OK(cuMemFree_v2(p));
	OK(cuMemAlloc_v2(&p, MIB));
	later();
	OK(cuCtxSynchronize());
	EQ(observed(), driver);
	OK(cuMemFree_v2(p));
	end();
}

/* The device's bytes have changed, if only by another process: then the list is read. */
static void changed(void)
{
	enum { MARK = 4711 };
	int end_of_other, status = -1;
	pid_t other = neighbour(&end_of_other);
	start();
	read_twice();
	store_release(observed_word(), MARK);
	later();
	OK(cuCtxSynchronize());
	EQ(observed(), MARK);
	close(end_of_other);
	EQ(waitpid(other, &status, 0), other);
	EQ(status, 0);
	later();
	OK(cuCtxSynchronize());
	EQ(observed(), mine());
	end();
}

/* A second context beside the first is measured. */
static void further(void)
{
	CUcontext c;
	start();
	OK(cuCtxCreate_v2(&c, 0, 0));
	CHECK(started());
	SAME();
	EQ(held(RATION_CONTEXT), 2 * COST);
	OK(cuCtxDestroy_v2(c));
	SAME();
	end();
}

/* FAKEGPU_DIE kills a process that asks the driver for a context. */
static void full(void)
{
	struct region *r = region_here();
	int end, status = -1;
	pid_t other = neighbour(&end);
	uint64_t before = load_acquire(&r->m->header.counters.refused);
	CUcontext c;
	limit(2 * COST - 1);
	OK(cuInit(0));
	EQ(cuDevicePrimaryCtxRetain(&c, 0), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(load_acquire(&r->m->header.counters.refused), before + 2);
	EQ(region_used(r, 0), COST);
	SAME();
	CHECK(!started());
	limit(0);
	close(end);
	EQ(waitpid(other, &status, 0), other);
	EQ(status, 0);
}

/* A cost that would refuse every process is measured again. */
static void locked_out(void)
{
	store_release(cost(), make_context_cost(uuid(), COST + 200 * MIB));
	limit(COST + 100 * MIB);
	start();
	SAME();
	EQ(remembered(), COST);
	end();
	limit(0);
}

/* FAKEGPU_FAIL fails the first of each. */
static void fails(void)
{
	CUcontext c;
	OK(cuInit(0));
	EQ(cuDevicePrimaryCtxRetain(&c, 0), 999);
	SAME();
	EQ(cuCtxCreate_v2(&c, 0, 0), 999);
	SAME();
	EQ(usage_of(0).total, 0);
	start();
	SAME();
	CHECK(!started());
	end();
}

/* What is remembered is wrong: the first readings put it right. */
static void too_much(void)
{
	CUdeviceptr p;
	store_release(cost(), make_context_cost(uuid(), COST + 200 * MIB));
	start();
	EQ(held(RATION_CONTEXT), COST + 200 * MIB);
	later();
	OK(cuMemAlloc_v2(&p, 10 * MIB));
	SAME(); /* no other thread has anything on its way: one reading is enough */
	EQ(remembered(), COST);
	OK(cuMemFree_v2(p));
	end();
	store_release(cost(), make_context_cost(uuid(), COST + 200 * MIB));
	start(); /* and ended before any */
	end();
}

/* What was corrected is not given back twice, where the driver's count cannot say. */
static void too_much_beside_others(void)
{
	CUdeviceptr m;
	CUcontext c;
	store_release(cost(), make_context_cost(uuid(), COST + 200 * MIB));
	start();
	OK(cuMemAllocManaged(&m, 100 * MIB, 1)); /* and it stays with the host */
	for (int i = 0; i < 2; i++) {
		later();
		OK(cuCtxSynchronize());
	}
	EQ(held(RATION_CONTEXT), COST);
	EQ(held(RATION_DATA), 100 * MIB);
	OK(cuMemFree_v2(m));
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(cuMemAllocManaged(&m, 100 * MIB, 1));
	EQ(held(RATION_CONTEXT), 2 * COST);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	EQ(held(RATION_CONTEXT), COST);
	OK(cuCtxDestroy_v2(c));
	EQ(usage_of(0).total, 0);
	SAME();
	store_release(cost(), make_context_cost(uuid(), COST));
}

static void too_little(void)
{
	CUdeviceptr p;
	for (int half = 0; half < 2; half++) {
		uint64_t wrong = half ? COST / 3 : COST - 100 * MIB;
		store_release(cost(), make_context_cost(uuid(), wrong));
		start();
		EQ(held(RATION_CONTEXT), wrong);
		later();
		OK(cuMemAlloc_v2(&p, 10 * MIB));
		EQ(held(RATION_OVERHEAD), COST - wrong);
		EQ(usage_of(0).total, mine());
		/* By far too little: the next process had better measure. */
		EQ(remembered(), half ? 0 : wrong);
		OK(cuMemFree_v2(p));
		end();
	}
}

/* A cost of another device says nothing of this one. */
static void others(void)
{
	uint64_t other[2] = {uuid()[0], uuid()[1] ^ 1};
	store_release(cost(), make_context_cost(other, MIB));
	start();
	CHECK(started());
	SAME();
	EQ(remembered(), COST);
	end();
}

static const char small[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n";
static const char large[] =
	".version 7.0\n.target sm_80\n.address_size 64\n.global .align 4 .b8 big[104857600];\n.visible .entry k() { ret; }\n";

static void modules(void)
{
	CUmodule m, n;
	CUlibrary l;
	start();
	OK(cuLibraryLoadData(&l, small, NULL, NULL, 0, NULL, NULL, 0)); /* takes nothing yet */
	CHECK(!started());
	OK(cuLibraryUnload(l));
	CHECK(!started());
	SAME();
	OK(cuModuleLoadData(&m, large)); /* measured, though nothing was read before it came */
	CHECK(started());
	CHECK(held(RATION_MODULE) >= 100 * MIB);
	SAME();
	limit(region_used(region_here(), 0) + 50 * MIB);
	EQ(cuModuleLoadData(&n, large), CUDA_ERROR_OUT_OF_MEMORY);
	SAME();
	OK(cuModuleLoadData(&n, small));
	SAME();
	OK(cuModuleUnload(m));
	OK(cuModuleLoadData(&m, large));
	SAME();
	limit(0);
	OK(cuModuleUnload(m));
	OK(cuModuleUnload(n));
	SAME();
	end();
}

/* And one that does not fit is the first thing that is ever measured. */
static void module_refused(void)
{
	CUmodule m;
	start();
	limit(COST + 50 * MIB);
	EQ(cuModuleLoadData(&m, large), CUDA_ERROR_OUT_OF_MEMORY);
	SAME();
	limit(0);
	end();
}

/* One that was measured without a reading before it leaves nothing behind that would hide
 * that overhead has become less. */
static void module_unsure(void)
{
	CUmodule m;
	CUlibrary l;
	start();
	OK(cuModuleLoadData(&m, large));
	OK(cuModuleUnload(m));
	SAME();
	OK(cuLibraryLoadData(&l, large, NULL, NULL, 0, NULL, NULL, 0));
	limit(region_used(region_here(), 0) + 50 * MIB);
	EQ(cuLibraryGetModule(&m, l), CUDA_ERROR_OUT_OF_MEMORY); /* it is loaded all the same */
	CHECK(held(RATION_MODULE) >= 100 * MIB);
	OK(cuLibraryUnload(l));
	SAME();
	limit(0);
	end();
}

/* Threads that retain, release and reset one primary context: whenever all stand
 * still, it is counted if it is there. */
enum { THREADS = 4, ROUNDS = 200, STEPS = 6 };
static pthread_barrier_t barrier;

static void *races(void *arg)
{
	uint64_t random = (uintptr_t)arg + 1;
	CUcontext c;
	for (int i = 0; i < ROUNDS; i++) {
		pthread_barrier_wait(&barrier);
		for (int k = 0; k < STEPS; k++) {
			random = random * 6364136223846793005u + 1442695040888963407u;
			switch (random >> 60 & 3) {
			case 0: cuDevicePrimaryCtxReset_v2(0); break;
			case 1: cuDevicePrimaryCtxRelease_v2(0); break;
			default: cuDevicePrimaryCtxRetain(&c, 0); break;
			}
		}
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

static void raced(void)
{
	pthread_t t[THREADS];
	unsigned there = 0;
	OK(cuInit(0));
	pthread_barrier_init(&barrier, NULL, THREADS + 1);
	for (uintptr_t i = 0; i < THREADS; i++)
		EQ(pthread_create(&t[i], NULL, races, (void *)i), 0);
	for (int i = 0; i < ROUNDS; i++) {
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
		SAME();
		there += held(RATION_CONTEXT) != 0;
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	CHECK(there > 0 && there < ROUNDS); /* or nothing was tried */
	CHECK(!started());
	cuDevicePrimaryCtxReset_v2(0);
	while (cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS)
		;
	start();
	SAME();
	end();
}

static const struct {
	const char *name;
	void (*run)(void);
	const char *key, *value; /* of the environment */
} cases[] = {
	{"first", first, NULL, NULL},
	{"second", second, NULL, NULL},
	{"never", never, NULL, NULL},
	{"waits", waits, NULL, NULL},
	{"unchanged", unchanged, NULL, NULL},
	{"changed", changed, NULL, NULL},
	{"further", further, NULL, NULL},
	{"locked out", locked_out, NULL, NULL},
	{"full", full, "FAKEGPU_DIE", "cuDevicePrimaryCtxRetain:1,cuCtxCreate:1"},
	{"fails", fails, "FAKEGPU_FAIL", "cuDevicePrimaryCtxRetain:1:999,cuCtxCreate:1:999"},
	{"too much", too_much, NULL, NULL},
	{"too much beside others", too_much_beside_others, NULL, NULL},
	{"too little", too_little, NULL, NULL},
	{"others", others, NULL, NULL},
	{"modules", modules, NULL, NULL},
	{"module refused", module_refused, NULL, NULL},
	{"module unsure", module_unsure, NULL, NULL},
	{"raced", raced, "FAKEGPU_LATENCY_US", "20"},
};

int main(int argc, char **argv)
{
	static const uint64_t id[2] = {0x0123456789abcdef, 0xfedcba9876543210};
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (argc == 2 && !strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			fflush(stderr);
			return checks_failed ? 1 : 0;
		}
		int status =
			argc < 2 ? again("/proc/self/exe", cases[i].name, (const char *const[]){cases[i].key, cases[i].value, NULL}) : 0;
		if (status)
			fprintf(stderr, "%s: status %#x\n", cases[i].name, (unsigned)status);
		EQ(status, 0);
	}
	/* The same word as in internal/abi/words_test.go. */
	EQ(make_context_cost(id, 518 * MIB + 1), 0x8807f27400103001);
	return FINISH();
}
