/* Caps on programs of several contexts, more than can be measured at a time, and that end. Time is the machine's, as in
 * compute_caps.c. */
#include "compute.h"

/* The last of many contexts has the cap, too. */
static void many_contexts(void)
{
	CUcontext c = NULL;
	start_timed();
	for (unsigned i = 0; i < 40; i++) {
		OK(cuCtxCreate_v2(&c, 0, 0));
		OK(launch(kernel("one"), NULL));
		later(10 * MS);
	}
	CUfunction f = kernel("one");
	uint64_t since = machine_now(0), before = charged();
	while (machine_now(0) - since < 4 * SECOND)
		OK(launch(f, NULL));
	CHECK(charged() - before > 1900 * MS && charged() - before < 2200 * MS);
}

/* What the device did since is within so many points of the cap, or at least not more. */
static void occupies(uint64_t since, uint64_t before, double points, bool less, unsigned line)
{
	double percent = 100.0 * (double)(occupied() - before) / (double)(machine_now(0) - since), cap = cap_here();
	if ((!less && percent < cap - points) || percent > cap + points)
		fprintf(stderr, "line %u: occupied %.1f %%, not %.1f\n", line, percent, cap);
	CHECK((less || percent >= cap - points) && percent <= cap + points);
}
#define OCCUPIES(since, before, less) occupies(since, before, 2, less, __LINE__)

/* More contexts than can be measured at a time, by turns, a few launches each: together they have one cap. */
static void by_turns(unsigned contexts, const char *name, unsigned launches, const char *last, uint64_t long_ns)
{
	static CUcontext c[60];
	static CUfunction f[60], g[60];
	start_timed();
	for (unsigned i = 0; i < contexts; i++) {
		OK(cuCtxCreate_v2(&c[i], 0, 0));
		f[i] = kernel(name);
		g[i] = kernel(last);
	}
	uint64_t since = machine_now(0), before = occupied();
	for (unsigned n = 0; machine_now(0) - since < long_ns; n++) {
		OK(cuCtxSetCurrent(c[n % contexts]));
		for (unsigned i = 0; i < launches; i++)
			OK(launch(f[n % contexts], NULL));
		OK(launch(g[n % contexts], NULL));
		later(3 * US);
	}
	/* Each is measured together with turns of others, which are remembered for a second; 60 of them got 47.4 for 50.
	 * Switches from one to another are not charged: with kernels that are longer than a slice, 12.4 for 10. */
	occupies(since, before, long_ns > 4 * SECOND ? 3 : 2, contexts == 60 || long_ns > 10 * SECOND, __LINE__);
}

static void turns(void) { by_turns(40, "one", 0, "one", 4 * SECOND); }
static void turns_of_many(void) { by_turns(60, "one", 20, "one", 4 * SECOND); }
static void turns_long_last(void) { by_turns(40, "tiny", 31, "five", 10 * SECOND); }
static void long_turns(void) { by_turns(40, "one", 0, "long_one", 100 * SECOND); }

/* Where all that are measured have work for long, the next launch waits for a second, and not for them. */
static void all_busy(void)
{
	CUcontext c = NULL;
	start_timed();
	uint64_t since = 0;
	for (unsigned i = 0; i < 33; i++) {
		OK(cuCtxCreate_v2(&c, 0, 0));
		CUfunction f = kernel("long_one");
		since = machine_now(0);
		OK(launch(f, NULL));
	}
	CHECK(machine_now(0) - since >= SECOND && machine_now(0) - since < SECOND + SECOND / 10);
}

/* Contexts that are made for a launch each, and destroyed, with it under way or long after it. */
static void short_lived(void)
{
	CUcontext c = NULL;
	start_timed();
	uint64_t since = machine_now(0), before = occupied();
	for (unsigned n = 0; n < 60; n++) {
		OK(cuCtxCreate_v2(&c, 0, 0));
		OK(launch(kernel("long_one"), NULL));
		later((n % 3) * 120 * MS);
		OK(cuCtxDestroy_v2(c));
	}
	OCCUPIES(since, before, false);
	/* What was idle for long is not charged for that. */
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(launch(kernel("long_one"), NULL));
	uint64_t used = charged();
	later(100 * SECOND);
	OK(cuCtxDestroy_v2(c));
	CHECK(charged() - used > 190 * MS && charged() - used < 210 * MS);
}

/* What is under way in one context holds no launch in another up. */
static void two_contexts(void)
{
	CUcontext c = NULL;
	start_timed();
	CUfunction f = kernel("long_one");
	OK(launch(f, NULL));
	later(10 * MS);
	OK(cuCtxCreate_v2(&c, 0, 0));
	f = kernel("one");
	later(3 * SECOND);
	for (unsigned i = 0; i < 6; i++) {
		OK(launch(f, NULL));
		later(100 * MS);
	}
	EQ(slept_ns, 0);
}

static void *releases(void *arg)
{
	(void)arg;
	OK(cuDevicePrimaryCtxRelease_v2(0));
	return NULL;
}

/* Launches while another thread gives back a reference of the primary context, which is not the last: it has one
 * meter all the same, so that none is left with the events of a context that has ended. */
static void half_released(void)
{
	CUcontext again;
	pthread_t t;
	for (unsigned i = 0; i < 40; i++) { /* more often than there are meters */
		start_timed();
		OK(cuDevicePrimaryCtxRetain(&again, 0));
		CUfunction f = kernel("one");
		OK(launch(f, NULL));
		fakegpu_hold("cuDevicePrimaryCtxRelease", 1);
		EQ(pthread_create(&t, NULL, releases, NULL), 0);
		EQ(fakegpu_held("cuDevicePrimaryCtxRelease", 1, 10000), 1);
		OK(launch(f, NULL));
		fakegpu_open("cuDevicePrimaryCtxRelease");
		EQ(pthread_join(t, NULL), 0);
		OK(launch(f, NULL));
		later(100 * MS);
		OK(cuCtxSynchronize());
		OK(cuDevicePrimaryCtxRelease_v2(0));
		EQ(fakegpu_errors(), 0);
	}
	CHECK(slept_ns < SECOND); /* for a meter */
}

/* A green context may be the last that keeps the primary one. What that one's work took is asked before it ends. */
static void green_ends_primary(void)
{
	CUdevResource all;
	CUdevResourceDesc desc;
	CUgreenCtx g;
	start_timed();
	OK(cuDeviceGetDevResource(0, &all, 1));
	OK(cuDevResourceGenerateDesc(&desc, &all, 1));
	OK(cuGreenCtxCreate(&g, desc, 0, 1));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	CUfunction f = kernel("one");
	OK(launch(f, NULL));
	later(100 * MS);
	OK(cuGreenCtxDestroy(g));
	EQ(fakegpu_errors(), 0);
	uint64_t used = load_acquire(&region_here()->m->compute[0].used);
	CHECK(used >= MS && used < 2 * MS); /* with a switch of the device */
}

static const struct cap_test tests[] = {
	{"half_released", half_released, "50"},
	{"green_ends_primary", green_ends_primary, "50"},
	{"many_contexts", many_contexts, "50"},
	{"turns", turns, "50"},
	{"turns", turns, "10"},
	{"turns_of_many", turns_of_many, "50"},
	{"turns_long_last", turns_long_last, "50"},
	{"turns_long_last", turns_long_last, "10"},
	{"all_busy", all_busy, "90"},
	{"long_turns", long_turns, "10"},
	{"short_lived", short_lived, "20"},
	{"two_contexts", two_contexts, "50"},
};

int main(int argc, char **argv) { return run_cap_tests(tests, sizeof tests / sizeof *tests, argc, argv) ? checks_failed > 0 : FINISH(); }
