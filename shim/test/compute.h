/* What the tests of a device's time share. The library's clocks are the stand-in machine's,
 * which stands still but for what a test adds to it (FAKEGPU_CLOCK=0) and for sleeps of the
 * library, which set it forward at once: a program's own clock_gettime and clock_nanosleep come
 * before the C library's. So nothing here depends on how fast the machine is. */
#ifndef RATION_TEST_COMPUTE_H
#define RATION_TEST_COMPUTE_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "../region/atomics.h"
#include "held.h"

#define US 1000ull /* in ns */
#define MS (1000 * US)
#define SECOND (1000 * MS)

/* The machine's clock starts at 0, and a library may think little of such a time. */
#define CLOCK_OFFSET (1000 * SECOND)

/* The time of day at which it was booted. */
#define CLOCK_BOOTED (1000000000 * SECOND)

static uint64_t namespace_ns;               /* by which the clock of this process's time namespace differs */
static uint64_t early_ns;                   /* the machine's time, while this process has not called cuInit */
static bool machine_clock;                  /* the machine is up; atomic */
static __thread bool asking_machine;        /* its own question about the wall's time */
static uint64_t slept_ns, longest_sleep;    /* by the library */
static void (*on_sleep)(uint64_t until_ns); /* before it */
static __thread uint64_t clock_looks;       /* how often this thread looked at the machine's clock, and not the coarse one */
static __thread uint64_t cpu_ns;            /* this thread's CPU time, which only a test adds to, by the machine's clock */
static __thread uint64_t cpu_looks;         /* how often this thread looked at it */
static unsigned preempted;                  /* a thread that looks at the clock so often loses the processor for a while; 0: never */

static inline uint64_t machine_now(uint64_t add)
{
	asking_machine = true;
	int64_t at = fakegpu_clock(add);
	asking_machine = false;
	return (at < 0 ? early_ns : (uint64_t)at + CLOCK_OFFSET) + namespace_ns;
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *t)
{
	bool up = __atomic_load_n(&machine_clock, __ATOMIC_RELAXED);
	if (up && id == CLOCK_THREAD_CPUTIME_ID) {
		cpu_looks++;
		*t = (struct timespec){(time_t)(cpu_ns / SECOND), (long)(cpu_ns % SECOND)};
		return 0;
	}
	if (!up || asking_machine || (id != CLOCK_MONOTONIC && id != CLOCK_MONOTONIC_COARSE && id != CLOCK_REALTIME))
		return (int)syscall(SYS_clock_gettime, id, t);
	static __thread unsigned looks;
	uint64_t now = id == CLOCK_REALTIME ? machine_now(0) - namespace_ns + CLOCK_BOOTED : machine_now(0);
	clock_looks += id == CLOCK_MONOTONIC;
	/* With whatever it has taken, as on a busy machine. The machine's time stands still meanwhile. */
	if (preempted && ++looks % preempted == 0)
		syscall(SYS_nanosleep, &(struct timespec){0, 200000}, NULL);
	*t = (struct timespec){(time_t)(now / SECOND), (long)(now % SECOND)};
	return 0;
}

/* Where several threads sleep, the clock is set forward when all do, to the first of the
 * instants that they sleep until. */
static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sleep_over = PTHREAD_COND_INITIALIZER;
static unsigned timed_threads = 1, sleeping;
static uint64_t sleeping_until[256]; /* 0: nobody */

static inline void sleep_together(uint64_t now, uint64_t until)
{
	unsigned mine = 0;
	uint64_t begun = now;
	pthread_mutex_lock(&sleep_lock);
	while (sleeping_until[mine])
		mine++;
	sleeping_until[mine] = until;
	sleeping++;
	pthread_cond_broadcast(&sleep_over);
	while ((now = machine_now(0)) < until) {
		uint64_t first = until;
		for (unsigned i = 0; i < 256; i++)
			first = sleeping_until[i] && sleeping_until[i] < first ? sleeping_until[i] : first;
		if (sleeping < timed_threads || first < until)
			pthread_cond_wait(&sleep_over, &sleep_lock);
		else
			machine_now(until - now);
	}
	sleeping--;
	sleeping_until[mine] = 0;
	slept_ns += until - begun;
	longest_sleep = until - begun > longest_sleep ? until - begun : longest_sleep;
	pthread_cond_broadcast(&sleep_over);
	pthread_mutex_unlock(&sleep_lock);
}

__attribute__((visibility("default"))) int clock_nanosleep(clockid_t id, int flags, const struct timespec *t, struct timespec *left)
{
	uint64_t until = (uint64_t)t->tv_sec * SECOND + (uint64_t)t->tv_nsec, now = machine_clock ? machine_now(0) : 0;
	if (!machine_clock)
		return (int)syscall(SYS_clock_nanosleep, id, flags, t, left) == 0 ? 0 : errno;
	if (!(flags & TIMER_ABSTIME))
		until += now;
	if (on_sleep)
		on_sleep(until);
	if (until > now)
		sleep_together(now, until);
	return 0;
}

/* A thread that takes no further part in this. */
static inline void timed_thread_ends(void)
{
	pthread_mutex_lock(&sleep_lock);
	timed_threads--;
	pthread_cond_broadcast(&sleep_over);
	pthread_mutex_unlock(&sleep_lock);
}

static inline void later(uint64_t ns) { machine_now(ns); }

/* The primary context of device 0, with the machine's clock from here on. */
static inline CUcontext start_timed(void)
{
	OK(cuInit(0));
	__atomic_store_n(&machine_clock, true, __ATOMIC_RELAXED);
	return start();
}

static inline CUfunction kernel(const char *name)
{
	static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry one() { ret; }\n"
				  ".visible .entry five() { ret; }\n.visible .entry long_one() { ret; }\n.visible .entry tiny() { ret; "
				  "}\n.visible .entry zero() { ret; }\n.visible .entry brief() { ret; }\n.visible .entry hundred() { ret; "
				  "}\n.visible .entry twentyfive() { "
				  "ret; }\n.visible .entry quick() { ret; }\n";
	CUmodule m = NULL;
	CUfunction f = NULL;
	OK(cuModuleLoadData(&m, ptx));
	OK(cuModuleGetFunction(&f, m, name));
	return f;
}

/* Calls that the stand-in's own tests do not make. */
CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr, const void *, size_t, CUstream);
CUresult cuStreamWaitEvent_ptsz(CUstream, CUevent, unsigned);
#define DIMENSIONS unsigned, unsigned, unsigned, unsigned, unsigned, unsigned
CUresult cuLaunchKernel_ptsz(CUfunction, DIMENSIONS, unsigned, CUstream, void **, void **);
CUresult cuLaunchKernelEx(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuLaunchCooperativeKernel(CUfunction, DIMENSIONS, unsigned, CUstream, void **);
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction, DIMENSIONS, unsigned, CUstream, void **);

static inline CUresult launch(CUfunction f, CUstream s) { return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL); }

/* captured_graph returns a graph of launches of a kernel, one after another. */
static inline CUgraphExec captured_graph(CUfunction f, unsigned launches, CUstream s)
{
	CUgraph g = NULL;
	CUgraphExec exec = NULL;
	OK(cuStreamBeginCapture_v2(s, 0));
	for (unsigned i = 0; i < launches; i++)
		OK(launch(f, s));
	OK(cuStreamEndCapture(s, &g));
	OK(cuGraphInstantiateWithFlags(&exec, g, 0));
	return exec;
}

/* What the engine has in its books of this process's contexts, the first of which is 0. */
static inline struct fakegpu_engine_context books_of(unsigned device, pid_t pid, unsigned which)
{
	static struct fakegpu_engine_context list[256];
	int n = fakegpu_engine(device, NULL, list, 256);
	for (int i = 0; i < n && i < 256; i++)
		if (list[i].pid == (uint32_t)pid && which-- == 0)
			return list[i];
	CHECK(!"a context of the process");
	return (struct fakegpu_engine_context){0};
}

/* How long the device was occupied, with the switches from one context to another. */
static inline uint64_t occupied(void)
{
	struct fakegpu_engine e = {0};
	fakegpu_engine(0, &e, NULL, 0);
	return e.now_ns - e.idle_ns;
}

static inline uint64_t slice_of(unsigned which) { return books_of(0, getpid(), which).slice_us; }

/* This process's account of a device, and what it shows. */
static inline struct ration_account *account_of(unsigned device, pid_t pid)
{
	struct region *r = region_here();
	for (unsigned slot = 0; slot < RATION_SLOTS; slot++)
		if (status_state(load_acquire(&r->m->status[slot])) == RATION_SLOT_ACTIVE && r->m->slots[slot].pid == (uint64_t)pid)
			return &r->m->accounts[device][slot];
	return NULL;
}

static inline uint64_t shown_slice(void)
{
	struct ration_account *a = account_of(0, getpid());
	return a ? load_acquire(&a->slice) : 0;
}

struct page_change {
	unsigned device;
	uint64_t share, cap; /* 0: as it is */
};

static inline int change_page(struct ration_limits *page, const void *arg)
{
	const struct page_change *c = arg;
	if (c->share)
		store_release(&page->device[c->device].compute, c->share);
	if (c->cap)
		store_release(&page->device[c->device].compute_max, c->cap);
	return 0;
}

int region_limits_with(struct region *r, int (*change)(struct ration_limits *, const void *), const void *arg);

/* As ration limit does. */
static inline void set_compute(unsigned device, uint64_t share, uint64_t cap)
{
	struct page_change c = {device, share, cap};
	EQ(region_limits_with(region_here(), change_page, &c), 0);
}

/* Within two points, in percent of the time since. */
static inline void gets(uint64_t since, double want, unsigned line)
{
	double got = 100.0 * (double)books_of(0, getpid(), 0).got_ns / (double)(machine_now(0) - since);
	if (got < want - 2 || got > want + 2)
		fprintf(stderr, "line %u: got %.1f %%, not %.1f\n", line, got, want);
	CHECK(got >= want - 2 && got <= want + 2);
}
#define GETS(since, want) gets(since, want, __LINE__)

static inline uint64_t charged(void) { return load_acquire(&region_here()->m->compute[0].used); }

/* What is charged is what the engine did, but for what is under way. */
static inline void charged_all(unsigned line)
{
	double got = (double)books_of(0, getpid(), 0).got_ns, used = (double)charged();
	if (used < got * 0.98 - 15e6 || used > got * 1.02 + 15e6)
		fprintf(stderr, "line %u: charged %.3f ms, used %.3f ms\n", line, used / 1e6, got / 1e6);
	CHECK(used >= got * 0.98 - 15e6 && used <= got * 1.02 + 15e6);
}
#define CHARGED_ALL() charged_all(__LINE__)

static inline double cap_here(void) { return atof(getenv("RATION_COMPUTE_MAX")); }

/* A part of the tests of caps: a process in a job with that cap, and on a machine of its own. */
struct cap_test {
	const char *name;
	void (*run)(void);
	const char *cap;
};

/* run_cap_tests runs all of them, or, in such a process, the one that it is: then it returns true. */
static inline bool run_cap_tests(const struct cap_test *tests, size_t n, int argc, char **argv)
{
	const char *without = getenv("RATION_TEST_WITHOUT");
	for (const struct cap_test *t = tests; t < tests + n; t++) {
		char folder[4096], region[4200];
		if (argc > 1 && strcmp(argv[1], t->name) == 0) {
			t->run();
			return true;
		}
		if (argc > 1 || (without && !strcmp(without, t->name)))
			continue;
		snprintf(folder, sizeof folder, "%s/%s%s", getenv("FAKEGPU_STATE"), t->name, t->cap);
		snprintf(region, sizeof region, "%s/region", folder);
		EQ(mkdir(folder, 0700), 0);
		int status = AGAIN(t->name, "FAKEGPU_STATE", folder, "RATION_REGION", region, "RATION_COMPUTE_MAX", t->cap);
		if (status)
			fprintf(stderr, "%s %s: status %#x\n", t->name, t->cap, (unsigned)status);
		EQ(status, 0);
	}
	return false;
}

#endif
