/* Caps on programs that are slower than the device: they launch short kernels one right after another, and each has ended
 * before the next comes, or nearly so. What they use is measured by chance. Time is the machine's, as in compute_caps.c. */
#include "compute.h"

/* One launch of a pattern, and when the next one comes. */
struct step {
	const char *kernel;
	uint64_t next_ns;
};

static const struct step short_ones[] = {{"tiny", 20 * US}, {NULL, 0}};
/* The last has not ended when the next comes, but soon after. */
static const struct step uneven[] = {{"tiny", 20 * US}, {"tiny", 20 * US}, {"hundred", 50 * US},
				     {"zero", 50 * US}, {"tiny", 60 * US}, {NULL, 0}};
/* And here it has, in the pause: 100 of its 180 microseconds cannot be told from none. */
static const struct step hidden[] = {{"tiny", 20 * US}, {"zero", 5 * US},      {"tiny", 20 * US},
				     {"zero", 5 * US},  {"hundred", 150 * US}, {NULL, 0}};

struct outcome {
	double got, charged, waited, looks; /* of the time that passed; looks at the clock for each launch */
};

/* launch_steps repeats a pattern, and now and then loses the processor. */
static struct outcome launch_steps(const struct step *steps, uint64_t long_ns, uint64_t every_ns, uint64_t hiccup_ns)
{
	CUfunction f[8];
	unsigned n = 0;
	struct ration_compute *c;
	start_timed();
	for (; steps[n].kernel; n++)
		f[n] = kernel(steps[n].kernel);
	uint64_t since = machine_now(0), next = since + every_ns, launches = 0, looks = clock_looks;
	for (unsigned i = 0; machine_now(0) - since < long_ns; i = (i + 1) % n) {
		OK(launch(f[i], NULL));
		launches++;
		later(steps[i].next_ns);
		if (hiccup_ns && machine_now(0) >= next) {
			later(hiccup_ns);
			next += every_ns;
		}
	}
	looks = clock_looks - looks;
	later(10 * MS);
	OK(cuCtxSynchronize());
	double all = (double)(machine_now(0) - since);
	c = &region_here()->m->compute[0];
	struct outcome o = {(double)books_of(0, getpid(), 0).got_ns / all, (double)load_acquire(&c->used) / all,
			    (double)load_acquire(&c->waited) / all, (double)looks / (double)launches};
	return o;
}

/* A cap that is not reached delays nothing, and costs little: a launch looks at the clock once. */
static void unhindered(struct outcome o, double off)
{
	CHECK(o.charged > o.got - off && o.charged < o.got + off);
	CHECK(o.waited < 0.001);
	CHECK(o.looks < 3);
}

static void below(void) { unhindered(launch_steps(short_ones, 3 * SECOND, 0, 0), 0.02); }
static void below_uneven(void) { unhindered(launch_steps(uneven, 4 * SECOND, 0, 0), 0.08); }
static void below_hidden(void) { unhindered(launch_steps(hidden, 10 * SECOND, 0, 0), 0.08); }
/* A program that loses the processor for a moment pays for that moment, and no more. */
static void hiccups(void) { unhindered(launch_steps(short_ones, 5 * SECOND, 1000 * MS, 4 * MS), 0.02); }

/* One that waits for the device, and then pauses, has no launch that was missed. */
static void waits(void)
{
	CUevent done;
	start_timed();
	CUfunction tiny = kernel("tiny"), hundred = kernel("hundred");
	OK(cuEventCreate(&done, 2));
	OK(cuEventRecord(done, NULL));
	uint64_t looks = clock_looks, launches = 0;
	for (unsigned i = 0; i < 400; i++) {
		for (unsigned k = 0; k < 100; k++, launches++) {
			OK(launch(tiny, NULL));
			later(20 * US);
		}
		OK(launch(hundred, NULL));
		launches++;
		later(5 * US);
		/* The clock stands still in a wait: for what was reached long ago. */
		OK(cuEventSynchronize(done));
		later(50 * MS);
	}
	CHECK((double)(clock_looks - looks) / (double)launches < 3);
}

/* Kernels that are as short as ever, but come ten times as far apart: each could be that much longer, and nobody knows before it is
 * measured. So as many are in the same time. */
static void at_stake(void)
{
	start_timed();
	CUfunction zero = kernel("zero");
	unsigned long measured[2];
	for (unsigned k = 0; k < 2; k++) {
		uint64_t apart = k ? 200 * US : 20 * US;
		for (unsigned i = 0; i < 5000; i++) { /* the first ones after a change are not like the others */
			OK(launch(zero, NULL));
			later(apart);
		}
		measured[k] = fakegpu_events();
		for (uint64_t n = 4 * SECOND / apart; n; n--) {
			OK(launch(zero, NULL));
			later(apart);
		}
		measured[k] = fakegpu_events() - measured[k];
	}
	if (measured[1] < measured[0] / 2 || measured[1] > measured[0] * 2)
		fprintf(stderr, "%lu events, then %lu\n", measured[0], measured[1]);
	CHECK(measured[1] > measured[0] / 2 && measured[1] < measured[0] * 2);
}

/* A kernel that still runs when the next launch is looked at is measured from its launch on: that it was also expected to take as long as
 * others did is no reason to count it twice. */
static void counted_once(void)
{
	CUstream s;
	start_timed();
	CUfunction hundred = kernel("hundred"), quick = kernel("quick");
	OK(cuStreamCreate(&s, 1));
	CUgraphExec exec = captured_graph(quick, 1, s);
	for (unsigned i = 0; i < 5000; i++) {
		OK(launch(hundred, s));
		later(120 * US);
	}
	uint64_t got = books_of(0, getpid(), 0).got_ns, charged = load_acquire(&region_here()->m->compute[0].used);
	for (unsigned i = 0; i < 10000; i++) {
		OK(launch(hundred, s));
		later(50 * US);
		OK(cuGraphLaunch(exec, s)); /* it is looked at, behind a kernel */
		later(300 * US);
	}
	got = books_of(0, getpid(), 0).got_ns - got;
	charged = load_acquire(&region_here()->m->compute[0].used) - charged;
	if (charged < got * 0.95 || charged > got * 1.05)
		fprintf(stderr, "charged %.3f ms, used %.3f ms\n", (double)charged / 1e6, (double)got / 1e6);
	CHECK(charged > got * 0.95 && charged < got * 1.05);
}

/* One that is reached holds. */
static void hindered(const struct step *steps, double cap)
{
	struct outcome o = launch_steps(steps, 5 * SECOND, 0, 0);
	CHECK(o.got > cap - 0.05 && o.got < cap + 0.05);
	CHECK(o.waited > 0);
}

static void above(void) { hindered(short_ones, 0.3); }
static void above_hidden(void) { hindered(hidden, 0.3); }

/* What the device did for this process since then, as a part of the time. */
static void got_at_most(double most, uint64_t since)
{
	double got = (double)books_of(0, getpid(), 0).got_ns / (double)(machine_now(0) - since);
	if (got > most)
		fprintf(stderr, "got %.1f %%\n", 100 * got);
	CHECK(got <= most);
}

/* So many that only some are looked at from then on. */
static void many(CUfunction f, CUstream s)
{
	for (unsigned i = 0; i < 5000; i++) {
		OK(launch(f, s));
		later(20 * US);
	}
}

/* One that knows when it is looked at: at a graph behind a kernel. What is measured there says nothing of the launches after it. */
static void above_graphs(void)
{
	CUstream s;
	start_timed();
	CUfunction zero = kernel("zero"), quick = kernel("quick"), longer = kernel("twentyfive");
	OK(cuStreamCreate(&s, 1));
	CUgraphExec exec = captured_graph(quick, 1, s);
	uint64_t since = machine_now(0);
	for (unsigned i = 0; i < 5000; i++) {
		OK(i % 50 ? launch(zero, s) : cuGraphLaunch(exec, s));
		later(20 * US);
	}
	while (machine_now(0) - since < 8 * SECOND) {
		for (unsigned i = 0; i < 4; i++) {
			OK(cuGraphLaunch(exec, s));
			later(i == 2 ? 14 * US : i < 2 ? 2 * US : 8 * US);
		}
		for (unsigned i = 0; i < 60; i++) {
			OK(launch(longer, s));
			later(25 * US);
		}
	}
	got_at_most(0.36, since);
}

/* One that has something under way, and launches many short kernels and then some long ones behind it: where chance chooses a long one, what
 * came before it says nothing of it. */
static void behind(unsigned longs, bool notices)
{
	CUstream s;
	CUdeviceptr copy_to;
	start_timed();
	OK(cuMemAlloc_v2(&copy_to, 1));
	CUfunction brief = kernel("brief"), hundred = kernel("hundred");
	OK(cuStreamCreate(&s, 1));
	CUgraphExec exec = captured_graph(hundred, 1, s);
	uint64_t since = machine_now(0);
	many(brief, s);
	while (machine_now(0) - since < 8 * SECOND) {
		OK(cuGraphLaunch(exec, s));
		for (unsigned i = 0; i < 200; i++)
			OK(launch(brief, s));
		for (unsigned i = 0; i < longs; i++) {
			unsigned long events = fakegpu_events();
			OK(launch(hundred, s));
			later(2 * US);
			for (unsigned k = 0; notices && fakegpu_events() != events && k < 2; k++) {
				OK(launch(brief, s));
				OK(cuMemcpyHtoDAsync_v2(copy_to, "", 1, s)); /* an event comes before it */
			}
		}
		later(1950 * US);
	}
	got_at_most(0.36, since);
}

static void above_behind(void) { behind(12, false); }
/* The long ones at the end are always those that no event follows: what is known of those before it says nothing of them either. */
static void above_burst_ends(void) { behind(8, false); }
/* And one that notices which was chosen gets nothing by other events behind it. */
static void above_noticed(void) { behind(12, true); }

/* Nor do graphs that follow graphs, of which chance chooses, too. */
static void above_graph_ends(void)
{
	CUstream s;
	start_timed();
	OK(cuStreamCreate(&s, 1));
	CUgraphExec brief = captured_graph(kernel("brief"), 1, s), hundred = captured_graph(kernel("hundred"), 1, s);
	uint64_t since = machine_now(0);
	for (unsigned i = 0; i < 5000; i++) {
		OK(cuGraphLaunch(brief, s));
		later(20 * US);
	}
	while (machine_now(0) - since < 8 * SECOND) {
		for (unsigned i = 0; i < 212; i++)
			OK(cuGraphLaunch(i < 200 ? brief : hundred, s));
		later(1950 * US);
	}
	got_at_most(0.36, since);
}

/* Graphs that keep the device at work cost little more than kernels that do: few of them are looked at. */
static void few_events(void)
{
	CUstream s;
	start_timed();
	OK(cuStreamCreate(&s, 1));
	CUgraphExec exec = captured_graph(kernel("twentyfive"), 1, s);
	unsigned long before = fakegpu_events(), launches = 0;
	for (uint64_t since = machine_now(0); machine_now(0) - since < SECOND / 4; launches++) {
		OK(cuGraphLaunch(exec, s));
		later(24 * US);
	}
	if (fakegpu_events() - before > launches / 10)
		fprintf(stderr, "%lu events for %lu launches\n", fakegpu_events() - before, launches);
	CHECK(fakegpu_events() - before <= launches / 10);
}

/* One long kernel among many that take no time: the few that chance chooses are too many now and too few then. What is charged is the mean of both. */
static void above_rare(void)
{
	start_timed();
	CUfunction zero = kernel("zero"), one = kernel("one");
	uint64_t since = machine_now(0);
	many(zero, NULL);
	while (machine_now(0) - since < 20 * SECOND) {
		for (unsigned i = 0; i < 100; i++) {
			OK(launch(zero, NULL));
			later(2 * US);
		}
		OK(launch(one, NULL));
		later(990 * US);
		OK(launch(zero, NULL)); /* while it ends */
		later(40 * US);
	}
	got_at_most(0.33, since);
}

/* Honest: many kernels that keep the device at work, and then short ones that do not. */
static void below_phases(void)
{
	start_timed();
	CUfunction hundred = kernel("hundred"), quick = kernel("quick");
	uint64_t since = machine_now(0);
	while (machine_now(0) - since < 10 * SECOND)
		for (unsigned i = 0; i < 220; i++) {
			OK(launch(i < 20 ? hundred : quick, NULL));
			later(i < 20 ? 10 * US : 20 * US);
		}
	double got = (double)books_of(0, getpid(), 0).got_ns, charged = (double)load_acquire(&region_here()->m->compute[0].used);
	if (charged < got * 0.93 || charged > got * 1.07)
		fprintf(stderr, "charged %.3f of what was used\n", charged / got);
	CHECK(charged > got * 0.93 && charged < got * 1.07);
	CHECK(slept_ns < MS); /* for the first ones */
}

/* One that alternates between many short kernels and a few long ones. */
struct phase {
	const char *kernel;
	unsigned launches;
	uint64_t next_ns;
};

static void alternates(const struct phase phases[2])
{
	start_timed();
	CUfunction zero = kernel("zero"), f[2] = {kernel(phases[0].kernel), kernel(phases[1].kernel)};
	uint64_t since = machine_now(0);
	many(zero, NULL);
	for (unsigned k = 0; machine_now(0) - since < 8 * SECOND; k = !k) {
		for (unsigned i = 0; i < phases[k].launches; i++) {
			OK(launch(f[k], NULL));
			later(phases[k].next_ns);
		}
	}
	got_at_most(0.36, since);
}

/* The launch before which it is found that others were missed does not go unmeasured. */
static void above_missed(void) { alternates((struct phase[]){{"zero", 700, 2 * US}, {"five", 2, 5100 * US}}); }
/* A launch that was measured counts for as many as it was chosen from, however often others are. */
static void above_phases(void) { alternates((struct phase[]){{"brief", 4000, 7 * US}, {"twentyfive", 600, 25 * US}}); }

/* All of it is no cap. */
static void all(void)
{
	static const struct step full[] = {{"tiny", 10 * US}, {NULL, 0}};
	CHECK(launch_steps(full, 3 * SECOND, 0, 0).waited < 0.001);
}

static const struct cap_test tests[] = {
	{"below", below, "70"},
	{"below_uneven", below_uneven, "90"},
	{"below_hidden", below_hidden, "90"},
	{"hiccups", hiccups, "70"},
	{"at_stake", at_stake, "90"},
	{"counted_once", counted_once, "90"},
	{"above", above, "30"},
	{"above_hidden", above_hidden, "30"},
	{"above_graphs", above_graphs, "30"},
	{"above_behind", above_behind, "30"},
	{"above_burst_ends", above_burst_ends, "30"},
	{"above_noticed", above_noticed, "30"},
	{"above_graph_ends", above_graph_ends, "30"},
	{"few_events", few_events, "100"},
	{"above_rare", above_rare, "30"},
	{"below_phases", below_phases, "90"},
	{"above_missed", above_missed, "30"},
	{"above_phases", above_phases, "30"},
	{"all", all, "100"},
	{"waits", waits, "90"},
};

int main(int argc, char **argv) { return run_cap_tests(tests, sizeof tests / sizeof *tests, argc, argv) ? checks_failed > 0 : FINISH(); }
