/* Caps on programs with copies, host functions and waits for other streams between their kernels: those are free. Time is the
 * machine's, as in compute_caps.c. */
#include "compute.h"

/* Copies of 4 or 0.1 ms and host functions of 0.1 ms between kernels: they run beside the device, and are free. Charged with the
 * kernels, they leave a program of one stream 28 to 40 % for a cap of 50. */
enum { COPY_4_MS = 4 * 1000 * 1000 }; /* in bytes */
static CUdeviceptr copy_to;
static char copy_from[COPY_4_MS];

static void noop(void *arg) { (void)arg; }

static void copy_in(CUstream s) { OK(cuMemcpyHtoDAsync_v2(copy_to, copy_from, COPY_4_MS, s)); }
static void copy_little(CUstream s) { OK(cuMemcpyHtoDAsync_v2(copy_to, copy_from, COPY_4_MS / 40, s)); }
static void call_back(CUstream s) { OK(cuLaunchHostFunc(s, noop, NULL)); }

/* On so many streams by turns, kernels and then so many copies. */
static void copying(unsigned streams, const char *name, unsigned kernels, unsigned copies, void (*copy)(CUstream))
{
	CUstream s[4] = {NULL};
	start_timed();
	OK(cuMemAlloc_v2(&copy_to, COPY_4_MS));
	CUfunction f = kernel(name);
	for (unsigned i = 0; streams > 1 && i < streams; i++)
		OK(cuStreamCreate(&s[i], 1));
	uint64_t since = machine_now(0);
	for (unsigned n = 0; machine_now(0) - since < 5 * SECOND; n++) {
		for (unsigned i = 0; i < kernels; i++)
			OK(launch(f, s[n % streams]));
		for (unsigned i = 0; i < copies; i++)
			copy(s[n % streams]);
	}
	GETS(since, cap_here());
	CHARGED_ALL();
}

/* Alone they would have the device for 56 % of the time, or 67; in two streams for 57, in four for 80 or all of it. */
static void copies(void) { copying(1, "five", 1, 1, copy_in); }
static void copies_after_many(void) { copying(1, "one", 5, 1, copy_in); }
static void copies_after_short(void) { copying(1, "tiny", 20, 1, copy_little); }
static void copies_in_streams(void) { copying(2, "tiny", 20, 5, copy_little); }
static void copies_in_four_streams(void) { copying(4, "one", 3, 3, copy_in); }
static void copies_in_full_streams(void) { copying(4, "five", 1, 3, copy_in); }
static void host_functions(void) { copying(1, "tiny", 20, 1, call_back); }
static void host_functions_in_streams(void) { copying(2, "tiny", 20, 5, call_back); }

/* A copy behind what was launched, by a stream of its own, and the launches' stream waits for it. */
static void wait_for_copy(CUstream s)
{
	static CUstream copier;
	static CUevent launched, copied;
	if (!copier) {
		OK(cuStreamCreate(&copier, 1));
		OK(cuEventCreate(&launched, 0));
		OK(cuEventCreate(&copied, 0));
	}
	OK(cuEventRecord(launched, s));
	OK(cuStreamWaitEvent(copier, launched, 0));
	copy_in(copier);
	OK(cuEventRecord(copied, copier));
	OK((s == CU_STREAM_PER_THREAD ? cuStreamWaitEvent_ptsz : cuStreamWaitEvent)(s == CU_STREAM_PER_THREAD ? NULL : s, copied, 0));
}

/* What a stream waits for is free in the same way: that is nothing's time, or another stream's, which is charged for it. */
static void stream_waits(void) { copying(1, "five", 1, 1, wait_for_copy); }
static void stream_waits_after_many(void) { copying(1, "one", 5, 1, wait_for_copy); }
static void stream_waits_in_streams(void) { copying(2, "one", 3, 1, wait_for_copy); }

/* Two streams that wait for each other's kernels have as much together as one. */
static void streams_by_turns(void)
{
	CUstream s[2];
	CUevent done[2];
	start_timed();
	CUfunction f = kernel("one");
	for (unsigned i = 0; i < 2; i++) {
		OK(cuStreamCreate(&s[i], 1));
		OK(cuEventCreate(&done[i], 0));
	}
	uint64_t since = machine_now(0);
	for (unsigned n = 0; machine_now(0) - since < 5 * SECOND; n++) {
		OK(launch(f, s[n % 2]));
		OK(cuEventRecord(done[n % 2], s[n % 2]));
		OK(cuStreamWaitEvent(s[1 - n % 2], done[n % 2], 0));
	}
	GETS(since, cap_here());
	CHARGED_ALL();
}

/* The same on the thread's own stream. */
static void copying_per_thread(void (*copy)(CUstream))
{
	start_timed();
	OK(cuMemAlloc_v2(&copy_to, COPY_4_MS));
	CUfunction f = kernel("five");
	uint64_t since = machine_now(0);
	while (machine_now(0) - since < 5 * SECOND) {
		OK(cuLaunchKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
		copy(CU_STREAM_PER_THREAD);
	}
	GETS(since, cap_here());
	CHARGED_ALL();
}

static void copy_in_ptsz(CUstream s)
{
	(void)s;
	OK(cuMemcpyHtoDAsync_v2_ptsz(copy_to, copy_from, COPY_4_MS, NULL));
}

static void copies_per_thread(void) { copying_per_thread(copy_in_ptsz); }
static void stream_waits_per_thread(void) { copying_per_thread(wait_for_copy); }

/* And where another thread than the one that launches copies. */
static CUcontext launching_context;
static CUstream launching_stream;
static pthread_barrier_t half_turn;
static bool enough;

static void *copies_for_other(void *arg)
{
	OK(cuCtxSetCurrent(launching_context));
	while (pthread_barrier_wait(&half_turn), !enough) {
		copy_in(launching_stream);
		pthread_barrier_wait(&half_turn);
	}
	return arg;
}

static void copies_by_thread(void)
{
	pthread_t t;
	launching_context = start_timed();
	OK(cuMemAlloc_v2(&copy_to, COPY_4_MS));
	CUfunction f = kernel("five");
	OK(cuStreamCreate(&launching_stream, 1));
	pthread_barrier_init(&half_turn, NULL, 2);
	EQ(pthread_create(&t, NULL, copies_for_other, NULL), 0);
	uint64_t since = machine_now(0);
	while (machine_now(0) - since < 5 * SECOND) {
		OK(launch(f, launching_stream));
		pthread_barrier_wait(&half_turn);
		pthread_barrier_wait(&half_turn);
	}
	GETS(since, cap_here());
	CHARGED_ALL();
	enough = true;
	pthread_barrier_wait(&half_turn);
	EQ(pthread_join(t, NULL), 0);
}

/* Bursts of short kernels, some of which no event follows, and a copy when the stream has long been idle: it is busy again then, but
 * not with them. */
static void copies_after_idle(void)
{
	start_timed();
	OK(cuMemAlloc_v2(&copy_to, COPY_4_MS));
	CUfunction f = kernel("tiny");
	for (unsigned n = 0; n < 500; n++) {
		for (unsigned i = 0; i < 40; i++)
			OK(launch(f, NULL));
		later(20 * MS);
		copy_in(NULL);
	}
	CHARGED_ALL();
	CHECK(slept_ns < MS); /* for the first ones */
}

/* A copy that is captured ends nothing: nothing of ours is recorded on a stream that is captured. */
static void copies_captured(void)
{
	CUstream s;
	CUgraph g;
	int status;
	start_timed();
	OK(cuMemAlloc_v2(&copy_to, COPY_4_MS));
	CUfunction f = kernel("tiny");
	OK(cuStreamCreate(&s, 1));
	for (unsigned n = 0; n < 100; n++) {
		for (unsigned i = 0; i < 100 + n; i++) /* of which some have no event yet */
			OK(launch(f, s));
		later(5 * MS); /* they are done, but nothing may be asked about the stream from here on */
		OK(cuStreamBeginCapture_v2(s, 0));
		copy_in(s);
		call_back(s);
		OK(launch(f, s));
		status = 0;
		OK(cuStreamIsCapturing(s, &status));
		EQ(status, 1);
		g = NULL;
		OK(cuStreamEndCapture(s, &g));
		CHECK(g != NULL);
		OK(cuGraphDestroy(g));
		copy_in(s);
		later(20 * MS);
	}
	CHARGED_ALL();
	EQ(fakegpu_errors(), 0);
}

/* A wait that takes a stream into a capture, and one within it. What the streams had launched before is charged all the same. */
static void stream_waits_captured(void)
{
	CUstream s, t;
	CUevent forked, joined;
	CUgraph g;
	int status;
	start_timed();
	CUfunction f = kernel("tiny");
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamCreate(&t, 1));
	OK(cuEventCreate(&forked, 0));
	OK(cuEventCreate(&joined, 0));
	for (unsigned n = 0; n < 100; n++) {
		for (unsigned i = 0; i < 100 + n; i++) { /* of which some have no event yet */
			OK(launch(f, s));
			OK(launch(f, t));
		}
		later(n % 2 ? 10 * MS : 10 * US); /* they are done, or not */
		OK(cuStreamBeginCapture_v2(s, 0));
		OK(launch(f, s));
		OK(cuEventRecord(forked, s));
		OK(cuStreamWaitEvent(t, forked, 0));
		OK(launch(f, t));
		OK(cuEventRecord(joined, t));
		OK(cuStreamWaitEvent(s, joined, 0));
		status = 0;
		OK(cuStreamIsCapturing(t, &status));
		EQ(status, 1);
		g = NULL;
		OK(cuStreamEndCapture(s, &g));
		CHECK(g != NULL);
		OK(cuGraphDestroy(g));
		later(20 * MS);
	}
	CHARGED_ALL();
	EQ(fakegpu_errors(), 0);
}

static const struct cap_test tests[] = {
	{"copies", copies, "50"},
	{"copies", copies, "10"},
	{"copies_after_many", copies_after_many, "50"},
	{"copies_after_short", copies_after_short, "50"},
	{"copies_in_streams", copies_in_streams, "50"},
	{"copies_in_four_streams", copies_in_four_streams, "50"},
	{"copies_in_full_streams", copies_in_full_streams, "90"},
	{"copies_per_thread", copies_per_thread, "50"},
	{"copies_by_thread", copies_by_thread, "50"},
	{"copies_after_idle", copies_after_idle, "50"},
	{"copies_captured", copies_captured, "50"},
	{"stream_waits", stream_waits, "50"},
	{"stream_waits", stream_waits, "10"},
	{"stream_waits_after_many", stream_waits_after_many, "50"},
	{"stream_waits_in_streams", stream_waits_in_streams, "50"},
	{"stream_waits_per_thread", stream_waits_per_thread, "50"},
	{"streams_by_turns", streams_by_turns, "50"},
	{"stream_waits_captured", stream_waits_captured, "50"},
	{"host_functions", host_functions, "50"},
	{"host_functions_in_streams", host_functions_in_streams, "50"},
};

int main(int argc, char **argv) { return run_cap_tests(tests, sizeof tests / sizeof *tests, argc, argv) ? checks_failed > 0 : FINISH(); }
