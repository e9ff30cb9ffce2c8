/* Caps, where a process or the machine's clock ends: work that is under way when a process ends is
 * charged all the same, and a due time of another boot or of another time namespace stops nothing.
 * The clock is the machine's, as in compute_caps. */
#include <math.h>

#include "compute.h"

static struct ration_compute *words(void) { return &region_here()->m->compute[0]; }

/* A due time that an earlier boot wrote is none, and neither are the parts that it claimed. */
static void other_boot(void)
{
	start_timed();
	CUfunction f = kernel("one");
	uint64_t part = machine_now(3000 * SECOND) / RATION_PART_NS;
	store_release(&words()->clock, CLOCK_BOOTED - 50000 * SECOND);
	store_release(&words()->used, 10000 * SECOND);
	store_release(&words()->due, make_due(machine_now(0) + 3000 * SECOND, 50));
	for (unsigned i = 0; i < RATION_PARTS; i++)
		store_release(&words()->parts[(part + i) % RATION_PARTS], make_time_part(part + i, RATION_PART_NS));
	uint64_t since = machine_now(0);
	OK(launch(f, NULL));
	EQ(slept_ns, 0);
	for (unsigned i = 0; i < RATION_PARTS; i++)
		CHECK(time_part_number(load_acquire(&words()->parts[i])) <= machine_now(0) / RATION_PART_NS);
	while (machine_now(0) - since < 5 * SECOND)
		OK(launch(f, NULL));
	GETS(since, cap_here());
	/* Setting the time of day is no boot: the debt stays. */
	CHECK(load_acquire(&words()->clock) - CLOCK_BOOTED + SECOND < 2 * SECOND);
	store_release(&words()->clock, CLOCK_BOOTED + SECOND);
	uint64_t due = machine_now(0) + 2 * SECOND;
	store_release(&words()->due, make_due(due, 50));
	OK(launch(f, NULL));
	CHECK(machine_now(0) >= due);
}

/* No launch waits for longer than all that was ever charged would take. */
static void beyond_used(void)
{
	start_timed();
	CUfunction f = kernel("one");
	store_release(&words()->due, UINT64_MAX);
	OK(launch(f, NULL));
	EQ(slept_ns, 0);
	later(10 * MS);
	OK(cuCtxSynchronize());
	store_release(&words()->used, SECOND);
	store_release(&words()->due, UINT64_MAX);
	OK(launch(f, NULL));
	CHECK(slept_ns >= 2 * SECOND - 10 * MS && slept_ns <= 2 * SECOND);
}

/* Processes in two time namespaces have one cap. */
#define NAMESPACE_S 100000ull

/* In the other namespace: the debt is neither more nor less. */
static void namespace_inside(void)
{
	namespace_ns = NAMESPACE_S * SECOND;
	start_timed();
	CUfunction f = kernel("long_one");
	OK(launch(f, NULL));
	double want = atof(getenv("RATION_TEST_DEBT_MS")), waited = (double)slept_ns / MS;
	if (fabs(want - waited) > 5)
		fprintf(stderr, "waited %.1f ms, not %.1f\n", waited, want);
	CHECK(fabs(want - waited) <= 5);
	later(201 * MS);
	OK(cuCtxSynchronize());
}

/* Writes the offset of a new time namespace, in which its next child will be. */
static bool namespace_made(void)
{
	char text[64];
	int n = snprintf(text, sizeof text, "monotonic %llu 0\n", NAMESPACE_S);
	if (unshare(0x00000080 /* CLONE_NEWTIME */)) {
		int uid = (int)getuid(), map;
		char line[32];
		if (unshare(CLONE_NEWUSER | 0x00000080) || (map = open("/proc/self/uid_map", O_WRONLY)) < 0)
			return false;
		int m = snprintf(line, sizeof line, "%d %d 1\n", uid, uid);
		bool mapped = write(map, line, (size_t)m) == m;
		close(map);
		if (!mapped)
			return false;
	}
	int fd = open("/proc/self/timens_offsets", O_WRONLY);
	bool wrote = fd >= 0 && write(fd, text, (size_t)n) == n;
	close(fd);
	return wrote;
}

static void time_namespace(void)
{
	char debt[32];
	int status;
	start_timed();
	CUfunction f = kernel("long_one");
	OK(launch(f, NULL));
	later(201 * MS);
	OK(cuCtxSynchronize());
	snprintf(debt, sizeof debt, "%f", (double)(due_time(load_acquire(&words()->due)) - machine_now(0)) / MS);
	setenv("RATION_TEST_DEBT_MS", debt, 1);
	pid_t pid = fork();
	if (pid == 0) {
		if (!namespace_made())
			_exit(77);
		_exit(AGAIN("namespace_inside", "RATION_TEST_NAMESPACE", "1") != 0);
	}
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		fprintf(stderr, "compute_ends: time_namespace not tried: this machine lets nobody make a time namespace\n");
		return;
	}
	EQ(status, 0);
	double want = 201 * 100 / cap_here(), waited;
	uint64_t since = machine_now(0);
	OK(launch(f, NULL));
	waited = (double)(machine_now(0) - since) / MS;
	if (waited < want - 260 || waited > want)
		fprintf(stderr, "waited %.1f ms, for 200 ms at %.0f %%\n", waited, cap_here());
	CHECK(waited >= want - 260 && waited <= want);
}

/* run_after runs a process of the job on this process's machine, and returns its status. Before that
 * process has called cuInit, it cannot ask for the machine's time. */
static int run_after(const char *what)
{
	char now[32];
	snprintf(now, sizeof now, "%llu", (unsigned long long)machine_now(0));
	return AGAIN(what, "RATION_TEST_NOW", now);
}

static void start_after(void)
{
	early_ns = strtoull(getenv("RATION_TEST_NOW"), NULL, 10);
	machine_clock = true;
	start_timed();
}

/* Processes that launch one kernel each, wait for it by a word in memory, and end. */
static void launches_long(void)
{
	start_after();
	OK(launch(kernel("long_one"), NULL));
	later(201 * MS);
}

static void end_by_kill(void)
{
	launches_long();
	kill(getpid(), SIGKILL);
}

static void end_by_exit(void) { launches_long(); }

static void end_by_exit_now(void)
{
	launches_long();
	_exit(0);
}

static void end_by_exec(void)
{
	launches_long();
	execl("/bin/true", "true", (char *)NULL);
}

/* Its long kernel runs beside short ones that are measured. */
static void end_beside(void)
{
	CUstream s[2];
	start_after();
	CUfunction long_one = kernel("long_one"), tiny = kernel("tiny");
	OK(cuStreamCreate(&s[0], 1));
	OK(cuStreamCreate(&s[1], 1));
	OK(launch(tiny, s[1]));
	later(MS);
	OK(cuStreamSynchronize(s[1]));
	OK(launch(long_one, s[0]));
	later(201 * MS);
	OK(launch(tiny, s[1]));
	later(MS);
	OK(cuStreamSynchronize(s[1]));
	kill(getpid(), SIGKILL);
}

static void one_after_another(const char *how)
{
	OK(cuInit(0));
	machine_clock = true;
	uint64_t since = machine_now(0);
	enum { PROCESSES = 20 };
	for (int i = 0; i < PROCESSES; i++)
		run_after(how);
	double got = 100.0 * PROCESSES * 200 * MS / (double)(machine_now(0) - since);
	/* The last one's debt is not paid yet. */
	double want = cap_here() * PROCESSES / (PROCESSES - 1);
	if (got > want + 2 || got < want - 3)
		fprintf(stderr, "%s: got %.1f %%, not %.1f\n", how, got, want);
	CHECK(got <= want + 2 && got >= want - 3);
}

static void killed_ones(void) { one_after_another("end_by_kill"); }
static void exiting_ones(void) { one_after_another("end_by_exit"); }
static void ending_ones(void) { one_after_another("end_by_exit_now"); }
static void exec_ones(void) { one_after_another("end_by_exec"); }
static void beside_ones(void) { one_after_another("end_beside"); }

/* A process that ended with work long ago is charged for ten seconds at most. One that had no work
 * is charged for nothing. */
static void noticed_late(void)
{
	OK(cuInit(0));
	machine_clock = true;
	run_after("end_by_kill");
	EQ(charged(), 0);
	later(1000 * SECOND);
	unsigned reaped;
	EQ(region_reap(region_here(), &reaped), REGION_OK);
	CHECK(reaped > 0);
	EQ(charged(), RATION_UNCHARGED_NS);
}

/* At its exit a process is charged until then. */
static void exited_late(void)
{
	OK(cuInit(0));
	machine_clock = true;
	EQ(run_after("end_by_exit"), 0);
	later(1000 * SECOND);
	unsigned reaped;
	EQ(region_reap(region_here(), &reaped), REGION_OK);
	CHECK(charged() >= 200 * MS && charged() <= 202 * MS);
}

static void end_idle(void)
{
	start_after();
	for (int i = 0; i < 100; i++)
		OK(launch(kernel("one"), NULL));
	later(200 * MS);
	OK(cuCtxSynchronize());
	kill(getpid(), SIGKILL);
}

static void idle_end(void)
{
	OK(cuInit(0));
	machine_clock = true;
	run_after("end_idle");
	uint64_t before = charged();
	CHECK(before > 95 * MS);
	later(1000 * SECOND);
	unsigned reaped;
	EQ(region_reap(region_here(), &reaped), REGION_OK);
	CHECK(reaped > 0);
	EQ(charged(), before);
}

static const struct cap_test tests[] = {
	{"other_boot", other_boot, "50"},   {"beyond_used", beyond_used, "50"},   {"time_namespace", time_namespace, "20"},
	{"killed_ones", killed_ones, "20"}, {"exiting_ones", exiting_ones, "20"}, {"ending_ones", ending_ones, "20"},
	{"exec_ones", exec_ones, "20"},     {"beside_ones", beside_ones, "20"},   {"noticed_late", noticed_late, "20"},
	{"exited_late", exited_late, "20"}, {"idle_end", idle_end, "50"},
};

/* Processes that the tests above start. */
static const struct cap_test processes[] = {
	{"namespace_inside", namespace_inside, ""},
	{"end_by_kill", end_by_kill, ""},
	{"end_by_exit", end_by_exit, ""},
	{"end_by_exit_now", end_by_exit_now, ""},
	{"end_by_exec", end_by_exec, ""},
	{"end_beside", end_beside, ""},
	{"end_idle", end_idle, ""},
};

int main(int argc, char **argv)
{
	if (argc > 1 && run_cap_tests(processes, sizeof processes / sizeof *processes, argc, argv))
		return checks_failed > 0;
	return run_cap_tests(tests, sizeof tests / sizeof *tests, argc, argv) ? checks_failed > 0 : FINISH();
}
