/* Caps on programs that launch short and long kernels by turns: how long a launch takes is not known from
 * those before it. Time is the machine's, as in compute_caps.c. */
#include "compute.h"

/* Long kernels after many short ones, from a program that never waits. */
static void long_after_tiny(void)
{
	start_timed();
	CUfunction tiny = kernel("tiny"), long_one = kernel("long_one");
	for (unsigned i = 0; i < 20000; i++)
		OK(launch(tiny, NULL));
	uint64_t since = machine_now(0), before = books_of(0, getpid(), 0).got_ns;
	for (unsigned i = 0; i < 60; i++) {
		OK(launch(long_one, NULL));
		later(10 * MS);
	}
	double percent = 100.0 * (double)(books_of(0, getpid(), 0).got_ns - before) / (double)(machine_now(0) - since);
	CHECK(percent > 48 && percent < 52);
	CHARGED_ALL();
}

/* The same, by turns with short ones, with nothing that waits. */
static void never_waits(void)
{
	start_timed();
	CUfunction tiny = kernel("tiny"), five = kernel("five");
	for (unsigned n = 0; n < 200; n++) {
		OK(launch(tiny, NULL));
		OK(launch(five, NULL));
		OK(launch(five, NULL));
		later(40 * MS);
	}
	CHARGED_ALL();
	CHECK(slept_ns < 2 * MS); /* for the first ones */
}

/* A training loop: one stream, launches of short and long kernels from two threads by turns, and a
 * wait for the step before the last. The device is never idle but for the cap: after each pause, when
 * it works off short kernels faster than they are launched. */
static CUcontext thread_context;
static CUstream thread_stream;
static CUevent step_ends[3];
static pthread_barrier_t half_step;
static bool trained;

static void half_a_step(CUfunction tiny, CUfunction one)
{
	for (unsigned i = 0; i < 60; i++) {
		OK(launch(i % 20 == 19 ? one : tiny, thread_stream));
		later(12 * US);
	}
}

static void *backward(void *arg)
{
	OK(cuCtxSetCurrent(thread_context));
	CUfunction tiny = kernel("tiny"), one = kernel("one");
	while (pthread_barrier_wait(&half_step), !trained) {
		half_a_step(tiny, one);
		pthread_barrier_wait(&half_step);
	}
	return arg;
}

static void training(void)
{
	pthread_t t;
	thread_context = start_timed();
	CUfunction tiny = kernel("tiny"), one = kernel("one");
	OK(cuStreamCreate(&thread_stream, 1));
	for (int i = 0; i < 3; i++)
		OK(cuEventCreate(&step_ends[i], 2));
	pthread_barrier_init(&half_step, NULL, 2);
	EQ(pthread_create(&t, NULL, backward, NULL), 0);
	uint64_t since = machine_now(0);
	for (unsigned n = 0; books_of(0, getpid(), 0).got_ns < SECOND; n++) {
		half_a_step(tiny, one);
		pthread_barrier_wait(&half_step);
		pthread_barrier_wait(&half_step);
		OK(cuEventRecord(step_ends[n % 3], thread_stream));
		while (n >= 2 && cuEventQuery(step_ends[(n - 2) % 3]) == CUDA_ERROR_NOT_READY)
			later(50 * US);
		if (n >= 2)
			OK(cuEventSynchronize(step_ends[(n - 2) % 3]));
	}
	GETS(since - 50 * MS, cap_here()); /* with the credit that it begins with */
	double got = (double)books_of(0, getpid(), 0).got_ns, used = (double)charged();
	if (used < got * 0.98 || used > got * 1.02)
		fprintf(stderr, "charged %.3f ms, used %.3f ms\n", used / 1e6, got / 1e6);
	CHECK(used >= got * 0.98 && used <= got * 1.02);
	trained = true;
	pthread_barrier_wait(&half_step);
	EQ(pthread_join(t, NULL), 0);
}

/* Bursts of short kernels with long ones among them, after which the program waits: how long the last
 * launches take is not known from those before them. What it gets is within 2 points of its cap over
 * a second of the device's time or more, and what it is charged within 3 %. */
enum burst_wait { BY_STREAM, BY_EVENT, UNSEEN };

static void bursts_of(unsigned before, unsigned longs, unsigned after, const char *length, enum burst_wait wait)
{
	CUstream s;
	CUevent e;
	start_timed();
	CUfunction tiny = kernel("tiny"), long_one = kernel(length);
	OK(cuStreamCreate(&s, 1));
	OK(cuEventCreate(&e, 2));
	uint64_t since = machine_now(0);
	while (books_of(0, getpid(), 0).got_ns < 2 * SECOND) {
		for (unsigned i = 0; i < before + longs + after; i++) {
			OK(launch(i < before || i >= before + longs ? tiny : long_one, s));
			later(3 * US);
		}
		OK(cuEventRecord(e, s));
		if (wait == UNSEEN)
			later(20 * MS);
		while (wait != UNSEEN && (wait == BY_EVENT ? cuEventQuery(e) : cuStreamQuery(s)) == CUDA_ERROR_NOT_READY)
			later(50 * US);
		if (wait == BY_STREAM)
			OK(cuStreamSynchronize(s));
		if (wait == BY_EVENT)
			OK(cuEventSynchronize(e));
	}
	OK(cuCtxSynchronize());
	GETS(since - 50 * MS, cap_here());
	double got = (double)books_of(0, getpid(), 0).got_ns, used = (double)charged();
	if (used < got * 0.97 || used > got * 1.03)
		fprintf(stderr, "%u, %u of %s, %u: charged %.3f ms, used %.3f ms\n", before, longs, length, after, used / 1e6, got / 1e6);
	CHECK(used >= got * 0.97 && used <= got * 1.03);
}

static void long_last(void) { bursts_of(10, 1, 0, "five", BY_STREAM); }
static void long_last_by_event(void) { bursts_of(30, 1, 0, "five", BY_EVENT); }
static void long_last_of_many(void) { bursts_of(60, 3, 0, "five", BY_STREAM); }
static void long_last_unseen(void) { bursts_of(30, 1, 0, "five", UNSEEN); } /* as if it waited by a word in memory */
static void long_first(void) { bursts_of(0, 1, 10, "five", BY_STREAM); }
static void ones_last(void) { bursts_of(12, 20, 0, "one", BY_STREAM); }

static const struct cap_test tests[] = {
	{"long_after_tiny", long_after_tiny, "50"},
	{"never_waits", never_waits, "50"},
	{"long_last", long_last, "10"},
	{"long_last_by_event", long_last_by_event, "10"},
	{"long_last_of_many", long_last_of_many, "50"},
	{"long_last_unseen", long_last_unseen, "10"},
	{"long_first", long_first, "50"},
	{"ones_last", ones_last, "30"},
	{"training", training, "10"},
	{"training", training, "50"},
	{"training", training, "90"},
};

int main(int argc, char **argv) { return run_cap_tests(tests, sizeof tests / sizeof *tests, argc, argv) ? checks_failed > 0 : FINISH(); }
