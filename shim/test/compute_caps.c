/* Caps: what a job gets of a device, by the engine's own books, beside what the cap says. Time
 * is the machine's, and passes when the library sleeps or a test says so. Each part is a
 * process in a job and on a machine of its own. */
#include <limits.h>
#include <math.h>

#include "compute.h"

/* As fast as it can. */
static void busy(const char *name, uint64_t long_ns)
{
	start_timed();
	CUfunction f = kernel(name);
	uint64_t since = machine_now(0);
	while (machine_now(0) - since < long_ns)
		OK(launch(f, NULL));
	GETS(since, cap_here());
	CHARGED_ALL();
	CHECK(longest_sleep <= SECOND);
	CHECK(load_acquire(&region_here()->m->compute[0].waited) > 0);
	CHECK(load_acquire(&account_of(0, getpid())->time_waited) == load_acquire(&region_here()->m->compute[0].waited));
	CHECK(load_acquire(&account_of(0, getpid())->time_used) == charged());
}

static void small(void) { busy("one", 5 * SECOND); }
static void tiny(void) { busy("tiny", 3 * SECOND); }
static void large(void) { busy("long_one", 20 * SECOND); }

/* A program that waits for each of its launches. */
static void synchronised(void)
{
	start_timed();
	CUfunction f = kernel("five");
	uint64_t since = machine_now(0);
	while (machine_now(0) - since < 5 * SECOND) {
		OK(launch(f, NULL));
		later(6 * MS); /* with the switch to the context */
		OK(cuStreamSynchronize(NULL));
	}
	GETS(since, cap_here());
	CHARGED_ALL();
}

/* Two streams at once: their time is one. And one that is destroyed. */
static void in_streams(const char *name)
{
	CUstream s[3];
	start_timed();
	CUfunction f = kernel(name);
	for (int i = 0; i < 3; i++)
		OK(cuStreamCreate(&s[i], 1));
	uint64_t since = machine_now(0);
	for (unsigned n = 0; machine_now(0) - since < 5 * SECOND; n++) {
		OK(launch(f, s[n % 3]));
		if (n % 64 == 63) {
			OK(cuStreamDestroy_v2(s[0]));
			OK(cuStreamCreate(&s[0], 1));
		}
	}
	GETS(since, cap_here());
	CHARGED_ALL();
}

static void streams(void) { in_streams("one"); }
static void mixed(void) { in_streams("tiny"); } /* many launches of each within one batch of another */

/* What a program launches now and then is charged as what it takes, not as the time between,
 * also where it never waits for it; and as long as that is less than the cap, nothing waits. */
static void sparse(void)
{
	start_timed();
	CUfunction f = kernel("one");
	for (unsigned n = 0; n < 200; n++) {
		for (unsigned i = 0; i < 1 + n % 3; i++)
			OK(launch(f, NULL));
		later(20 * MS);
	}
	CHARGED_ALL();
	EQ(slept_ns, 0);
}

/* Debt is kept: who has used more than was due waits for all of it, however little it wants. */
static void debt(void)
{
	start_timed();
	CUfunction f = kernel("long_one"), one = kernel("one");
	OK(launch(f, NULL));
	later(201 * MS);
	OK(cuCtxSynchronize());
	uint64_t since = machine_now(0);
	OK(launch(one, NULL));
	/* 200 ms at so many percent, of which 200 have passed, and the credit. */
	double want = 200 * 100 / cap_here() - 200 - 50, waited = (double)(machine_now(0) - since) / MS;
	if (fabs(want - waited) > 2)
		fprintf(stderr, "waited %.1f ms, not %.1f\n", waited, want);
	CHECK(fabs(want - waited) <= 2);
}

static unsigned sleeps;

static void end_the_cap(uint64_t until)
{
	(void)until;
	if (++sleeps == 3)
		set_compute(0, 0, RATION_COMPUTE_NONE);
}

/* Whatever the word says, nobody waits for longer than a second without looking again. */
static void scribble(void)
{
	start_timed();
	CUfunction f = kernel("one");
	struct ration_compute *words = &region_here()->m->compute[0];
	store_release(&words->clock, CLOCK_BOOTED);
	store_release(&words->due, UINT64_MAX);
	store_release(&words->used, UINT64_MAX / 2);
	on_sleep = end_the_cap;
	OK(launch(f, NULL));
	EQ(sleeps, 3);
	EQ(slept_ns, 3 * SECOND);
	EQ(longest_sleep, SECOND);
	/* And none is waited for for longer than an hour, from when it was first seen. */
	set_compute(0, 0, 50);
	later(10 * MS);
	on_sleep = NULL;
	OK(launch(f, NULL));
	CHECK(slept_ns <= 3600 * SECOND && slept_ns >= 3599 * SECOND);
}

static void set_state(unsigned state)
{
	uint64_t *word = &region_here()->m->header.sleep;
	__atomic_store_n(word, state, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, word, 1 /* FUTEX_WAKE */, INT_MAX, NULL, NULL, 0);
}

static uint64_t wanted(void) { return load_acquire(&region_here()->m->header.wanted); }

static void fall_asleep(uint64_t until)
{
	(void)until;
	set_state(RATION_FALLING);
}

/* The job falls asleep while a launch waits for the cap. The launch asks for it to be woken before it goes on into the
 * driver, which would make it wait and tell nobody. */
static void asks_again(void)
{
	start_timed();
	CUfunction f = kernel("long_one");
	OK(launch(f, NULL));
	later(201 * MS);
	OK(cuCtxSynchronize());
	EQ(wanted(), 0);
	on_sleep = fall_asleep;
	OK(launch(f, NULL));
	on_sleep = NULL;
	CHECK(slept_ns > 0);
	CHECK(wanted() > 0);
	set_state(RATION_AWAKE);
}

static void nap(void) { syscall(SYS_nanosleep, &(struct timespec){0, 1000000}, NULL); }

static bool copied;

static void *copy_it(void *context)
{
	CUdeviceptr p;
	char data[64];
	OK(cuCtxSetCurrent(context));
	OK(cuMemAlloc_v2(&p, MIB));
	set_state(RATION_ASLEEP);
	OK(cuMemcpyDtoH_v2(data, p, sizeof data));
	OK(cuMemFree_v2(p));
	__atomic_store_n(&copied, true, __ATOMIC_RELEASE);
	return NULL;
}

/* A copy that waits for a job to wake up does not count as work: it waits at the gate, not in the driver. */
static void copy_waits(void)
{
	CUcontext context;
	pthread_t t;
	start_timed();
	OK(cuCtxGetCurrent(&context));
	EQ(wanted(), 0); /* opens the region, before there is another thread */
	fakegpu_hold("cuMemcpyDtoH:before", 1);
	EQ(pthread_create(&t, NULL, copy_it, context), 0);
	for (int i = 0; i < 20000 && !wanted(); i++)
		nap();
	CHECK(wanted() > 0);
	for (int i = 0; i < 50; i++) {
		EQ(fakegpu_held("cuMemcpyDtoH:before", 1, 0), 0);
		nap();
	}
	fakegpu_open("cuMemcpyDtoH:before");
	set_state(RATION_AWAKE);
	for (int i = 0; i < 20000 && !__atomic_load_n(&copied, __ATOMIC_ACQUIRE); i++) {
		later(MS); /* it takes time */
		nap();
	}
	pthread_join(t, NULL);
}

/* Without a cap nothing is measured, and nothing waits; it comes and goes while the process
 * runs, beside a share. */
static void live(void)
{
	start_timed();
	CUfunction f = kernel("one");
	set_compute(0, 0, RATION_COMPUTE_NONE);
	later(10 * MS);
	for (unsigned n = 0; n < 1000; n++)
		OK(launch(f, NULL));
	EQ(slept_ns, 0);
	EQ(charged(), 0);
	later(2 * SECOND);
	uint64_t got = books_of(0, getpid(), 0).got_ns;
	EQ(got, 1000 * MS);
	set_compute(0, 30, 50);
	later(10 * MS);
	uint64_t since = machine_now(0);
	while (machine_now(0) - since < 2 * SECOND)
		OK(launch(f, NULL));
	EQ(slice_of(0), 6000);
	got = books_of(0, getpid(), 0).got_ns - got;
	double percent = 100.0 * (double)got / (double)(machine_now(0) - since);
	CHECK(percent > 48 && percent < 52.6);
}

static void die(uint64_t until)
{
	(void)until;
	kill(getpid(), SIGKILL);
}

/* A process that is killed while it waits leaves nothing but what it used. */
static void killed(void)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		start_timed();
		CUfunction f = kernel("long_one");
		on_sleep = die;
		for (;;)
			(void)!launch(f, NULL);
	}
	waitpid(pid, &status, 0);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	unsigned reaped;
	EQ(region_reap(region_here(), &reaped), REGION_OK);
	EQ(reaped, 1);
	EQ(region_used(region_here(), 0), 0);
	start_timed();
	CUfunction f = kernel("one");
	later(SECOND);
	OK(launch(f, NULL));
	EQ(slept_ns, 0);
}

/* What another process of the job, which may have died anywhere (chaos_test.sh), leaves behind: nothing
 * that holds this one up, or lets it have more. */
static void survivor(void)
{
	unsigned reaped, slots = 0;
	uint32_t asked[RATION_SLOTS] = {0};
	EQ(region_reap(region_here(), &reaped), REGION_OK);
	for (unsigned i = 0; i < RATION_SLOTS; i++)
		slots += status_state(load_acquire(&region_here()->m->status[i])) != RATION_SLOT_FREE;
	EQ(slots, 0);
	EQ(region_workers(region_here(), 0, 0, asked), 0);
	start_timed();
	CUfunction f = kernel("one");
	uint64_t since = machine_now(0);
	while (machine_now(0) - since < 5 * SECOND)
		OK(launch(f, NULL));
	GETS(since, cap_here());
}

/* The threads of a process, each with a stream of its own, have one cap together. */
static CUfunction thread_kernel;
static CUcontext thread_context;
static uint64_t thread_until;

static void *launching(void *arg)
{
	CUstream s = NULL;
	OK(cuCtxSetCurrent(thread_context));
	if (arg)
		OK(cuStreamCreate(&s, 1));
	while (machine_now(0) < thread_until)
		OK(arg ? launch(thread_kernel, s) : cuLaunchKernel_ptsz(thread_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	timed_thread_ends();
	return NULL;
}

static void threads(void)
{
	pthread_t t[4];
	thread_context = start_timed();
	thread_kernel = kernel("one");
	uint64_t since = machine_now(0);
	thread_until = since + (preempted ? 4 : 10) * SECOND;
	timed_threads = 4;
	for (uintptr_t i = 0; i < 4; i++)
		EQ(pthread_create(&t[i], NULL, launching, (void *)(i % 2)), 0);
	for (int i = 0; i < 4; i++)
		EQ(pthread_join(t[i], NULL), 0);
	GETS(since, cap_here());
	CHARGED_ALL();
}

/* Also where each loses the processor again and again, with the meter in its hands. */
static void preempted_threads(void)
{
	preempted = 7;
	threads();
}

/* A thread that is stopped with the meter in its hands stops no other, and when it goes on the cap holds again. */
static void *launches_one(void *s)
{
	OK(cuCtxSetCurrent(thread_context));
	OK(launch(thread_kernel, s));
	return NULL;
}

static void stopped_thread(void)
{
	pthread_t t;
	CUstream s;
	thread_context = start_timed();
	thread_kernel = kernel("one");
	OK(cuStreamCreate(&s, 1));
	fakegpu_hold("cuEventRecord:before", 1);
	EQ(pthread_create(&t, NULL, launches_one, s), 0);
	EQ(fakegpu_held("cuEventRecord:before", 1, 10000), 1);
	for (int i = 0; i < 100; i++)
		OK(launch(thread_kernel, NULL));
	EQ(fakegpu_held("cuEventRecord:before", 1, 0), 1);
	fakegpu_open("cuEventRecord:before");
	EQ(pthread_join(t, NULL), 0);
	later(SECOND);
	uint64_t since = machine_now(0), before = books_of(0, getpid(), 0).got_ns;
	while (machine_now(0) - since < 3 * SECOND)
		OK(launch(thread_kernel, s));
	double percent = 100.0 * (double)(books_of(0, getpid(), 0).got_ns - before) / (double)(machine_now(0) - since);
	CHECK(percent > 48 && percent < 52);
}

/* Graph launches are launches. */
static void graphs(void)
{
	CUstream s;
	start_timed();
	OK(cuStreamCreate(&s, 1));
	CUgraphExec exec = captured_graph(kernel("one"), 3, s);
	EQ(charged(), 0);
	uint64_t since = machine_now(0);
	while (machine_now(0) - since < 5 * SECOND)
		OK(cuGraphLaunch(exec, s));
	GETS(since, cap_here());
	CHARGED_ALL();
}

/* A thread that beside all captures of others launches, waits and is charged. */
static uint32_t beside_done;

static void *beside(void *arg)
{
	(void)arg;
	CUstream s;
	OK(cuCtxSetCurrent(thread_context));
	OK(cuStreamCreate(&s, 1));
	while (machine_now(0) < thread_until)
		OK(launch(thread_kernel, s));
	__atomic_store_n(&beside_done, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* No launch waits in a capture, however large the debt is, and nothing of ours breaks it off:
 * neither on its own stream nor from another thread. */
static void captures(void)
{
	CUstream s;
	pthread_t t;
	thread_context = start_timed();
	thread_kernel = kernel("one");
	OK(cuStreamCreate(&s, 1));
	for (unsigned i = 0; i < 4; i++) /* with a batch open on the stream */
		OK(launch(thread_kernel, s));
	later(20 * MS);
	store_release(&region_here()->m->compute[0].used, 10 * SECOND);
	store_release(&region_here()->m->compute[0].due, make_due(machine_now(0) + 10 * SECOND, 50));
	uint64_t slept = slept_ns;
	CUgraphExec exec = captured_graph(thread_kernel, 600, s);
	EQ(slept_ns, slept);
	uint64_t since = machine_now(0);
	OK(cuGraphLaunch(exec, s));
	CHECK(machine_now(0) - since >= 10 * SECOND - MS);
	/* The other thread works for two seconds, all of them within a capture of this one. */
	CUgraph g = NULL;
	int status = 0;
	later(SECOND);
	thread_until = machine_now(0) + 2 * SECOND;
	uint64_t before = charged();
	OK(cuStreamBeginCapture_v2(s, 0));
	EQ(pthread_create(&t, NULL, beside, NULL), 0);
	while (!__atomic_load_n(&beside_done, __ATOMIC_ACQUIRE))
		OK(launch(thread_kernel, s));
	EQ(pthread_join(t, NULL), 0);
	OK(cuStreamIsCapturing(s, &status));
	EQ(status, 1);
	OK(cuStreamEndCapture(s, &g));
	CHECK(charged() - before > 900 * MS);
}

/* What a program launched in a moment and waits for much later is charged as what it took. */
static void late_wait(void)
{
	start_timed();
	CUfunction f = kernel("tiny");
	for (unsigned n = 0; n < 20; n++) {
		for (unsigned i = 0; i < 5; i++)
			OK(launch(f, NULL));
		later(500 * MS);
		OK(cuCtxSynchronize());
	}
	/* 1 ms, and the first switch to the context. */
	CHECK(charged() > 900 * US && charged() < 1500 * US);
	CHECK(slept_ns < MS); /* for the first ones, of which nothing is known */
}

/* More streams than there are places for, all with work, and one more after them. */
static void many_streams(void)
{
	static CUstream s[250];
	start_timed();
	CUfunction tiny = kernel("tiny"), one = kernel("one");
	for (int i = 0; i < 250; i++)
		OK(cuStreamCreate(&s[i], 1));
	uint64_t since = machine_now(0);
	for (unsigned n = 0; machine_now(0) - since < 3 * SECOND; n++)
		OK(launch(n % 7 ? tiny : one, s[n % 249]));
	while (machine_now(0) - since < 6 * SECOND)
		OK(launch(one, s[249]));
	GETS(since, cap_here());
	CHARGED_ALL();
}

/* Per-thread streams of threads that have gone leave places for others. */
static pthread_barrier_t gone_barrier;

static void *going(void *arg)
{
	OK(cuCtxSetCurrent(thread_context));
	for (int i = 0; i < 5; i++)
		OK(cuLaunchKernel_ptsz(thread_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	pthread_barrier_wait(&gone_barrier); /* all at once, so that no two have the same name */
	return arg;
}

static void gone_threads(void)
{
	pthread_t t[120];
	thread_context = start_timed();
	thread_kernel = kernel("zero");
	CUfunction one = kernel("one");
	pthread_barrier_init(&gone_barrier, NULL, 120);
	for (int i = 0; i < 120; i++)
		EQ(pthread_create(&t[i], NULL, going, NULL), 0);
	for (int i = 0; i < 120; i++)
		EQ(pthread_join(t[i], NULL), 0);
	uint64_t since = machine_now(0);
	while (machine_now(0) - since < 4 * SECOND)
		OK(launch(one, NULL));
	GETS(since, cap_here());
}

/* A capture that was left behind, or is another thread's by now, frees no launch from the cap. */
static void *ends_capture(void *s)
{
	CUgraph g = NULL;
	OK(cuCtxSetCurrent(thread_context));
	OK(cuStreamEndCapture(s, &g));
	return NULL;
}

static void left_capture(void)
{
	CUstream s[2];
	CUgraph g = NULL;
	pthread_t t;
	thread_context = start_timed();
	CUfunction f = kernel("one");
	for (int i = 0; i < 2; i++)
		OK(cuStreamCreate(&s[i], 1));
	OK(cuStreamBeginCapture_v2(s[0], 2));
	OK(launch(f, s[0]));
	EQ(pthread_create(&t, NULL, ends_capture, s[0]), 0);
	EQ(pthread_join(t, NULL), 0);
	OK(cuStreamBeginCapture_v2(s[0], 0));
	CHECK(cuStreamEndCapture(s[1], &g) != CUDA_SUCCESS);
	OK(launch(f, s[0]));
	OK(cuStreamDestroy_v2(s[0]));
	uint64_t since = machine_now(0);
	while (machine_now(0) - since < 3 * SECOND)
		OK(launch(f, s[1]));
	GETS(since, cap_here());
}

/* Nothing is recorded on a stream that has been destroyed. */
static void destroyed(void)
{
	CUstream s;
	start_timed();
	CUfunction f = kernel("tiny");
	OK(cuStreamCreate(&s, 1));
	for (unsigned i = 0; i < 600; i++)
		OK(launch(f, s));
	set_compute(0, 0, RATION_COMPUTE_NONE);
	later(10 * MS);
	OK(launch(f, NULL));
	OK(cuStreamDestroy_v2(s));
	set_compute(0, 0, 50);
	for (unsigned i = 0; i < 3; i++) {
		later(10 * MS);
		OK(launch(f, NULL));
	}
	later(10 * MS);
	OK(cuCtxSynchronize());
	EQ(fakegpu_errors(), 0);
}

/* A debt is of the device's time: at another cap one waits for it as long as it takes there. */
static void raised(void)
{
	start_timed();
	CUfunction f = kernel("long_one"), one = kernel("one");
	OK(launch(f, NULL));
	later(201 * MS);
	OK(cuCtxSynchronize());
	/* 200 ms at 10 % are 2 s, of which 200 ms and the credit have passed; at 50 % a fifth of the rest. */
	set_compute(0, 0, 50);
	uint64_t since = machine_now(0);
	OK(launch(one, NULL));
	double waited = (double)(machine_now(0) - since) / MS;
	CHECK(fabs(waited - (2000 - 250) / 5.0) <= 2);
	/* And at a lower one longer. */
	later(SECOND);
	OK(launch(f, NULL));
	later(201 * MS);
	OK(cuCtxSynchronize());
	set_compute(0, 0, 5);
	since = machine_now(0);
	OK(launch(one, NULL));
	waited = (double)(machine_now(0) - since) / MS;
	CHECK(fabs(waited - (400 - 250) * 10.0) <= 50);
}

/* A process of a job that had neither a share nor a cap when it began is not held to one that it gets
 * later; one that begins then is. */
static void began_before(void)
{
	start_timed();
	CUfunction f = kernel("one");
	OK(launch(f, NULL));
	set_compute(0, 0, 50);
	for (unsigned n = 0; n < 300; n++) {
		later(10 * MS);
		OK(launch(f, NULL));
	}
	later(10 * MS);
	EQ(slept_ns, 0);
	EQ(charged(), 0);
	EQ(AGAIN("small", "RATION_COMPUTE_MAX", "50"), 0);
}

static const struct cap_test tests[] = {
	{"small", small, "50"},
	{"small", small, "10"},
	{"small", small, "90"},
	{"tiny", tiny, "50"},
	{"tiny", tiny, "10"},
	{"large", large, "50"},
	{"large", large, "10"},
	{"large", large, "90"},
	{"synchronised", synchronised, "50"},
	{"synchronised", synchronised, "10"},
	{"streams", streams, "50"},
	{"mixed", mixed, "50"},
	{"sparse", sparse, "50"},
	{"debt", debt, "20"},
	{"scribble", scribble, "50"},
	{"asks_again", asks_again, "20"},
	{"copy_waits", copy_waits, "50"},
	{"live", live, "50"},
	{"killed", killed, "50"},
	{"survivor", survivor, "50"},
	{"threads", threads, "50"},
	{"preempted_threads", preempted_threads, "50"},
	{"preempted_threads", preempted_threads, "10"},
	{"stopped_thread", stopped_thread, "50"},
	{"graphs", graphs, "50"},
	{"captures", captures, "50"},
	{"late_wait", late_wait, "50"},
	{"many_streams", many_streams, "50"},
	{"gone_threads", gone_threads, "50"},
	{"left_capture", left_capture, "50"},
	{"destroyed", destroyed, "50"},
	{"raised", raised, "10"},
	{"began_before", began_before, "0"},
};

int main(int argc, char **argv) { return run_cap_tests(tests, sizeof tests / sizeof *tests, argc, argv) ? checks_failed > 0 : FINISH(); }
