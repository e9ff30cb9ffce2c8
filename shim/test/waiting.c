/* Requests that wait for memory of their job, with processes that free, die, are stopped and are killed.
 * With the argument "faults", the library dies or stops at the points of the protocol. */
#include <poll.h>
#include <pthread.h>
#include <time.h>

#include "held.h"
#include "../region/internal.h"
#include "worker.h"

enum { LIMIT = 200, MOST = 150, SLOT_WAIT_MS = 20000 };

static CUcontext context;
static CUstream stream;
static CUdeviceptr linear, pooled;
static CUmemGenericAllocationHandle handle;

static void say(int result)
{
	char c = result == CUDA_SUCCESS ? 'd' : result == CUDA_ERROR_OUT_OF_MEMORY ? 'o' : '?';
	if (write(1, &c, 1) != 1)
		_exit(1);
}

static void *ask_in_thread(void *out)
{
	cuCtxSetCurrent(context);
	return (void *)(intptr_t)cuMemAlloc_v2(out, 60 * MIB);
}

static int two_threads(void)
{
	static CUdeviceptr at[2];
	pthread_t t[2];
	void *result[2];
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, ask_in_thread, &at[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], &result[i]);
	return result[0] ? (int)(intptr_t)result[0] : (int)(intptr_t)result[1];
}

static int in_capture(void)
{
	CUgraph graph = NULL;
	EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), 0);
	int result = cuMemAlloc_v2(&linear, MOST * MIB);
	cuStreamEndCapture(stream, &graph);
	return result;
}

/* One byte, one call. */
static int step(char c)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	switch (c) {
	case 'x': return cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cuStreamCreate(&stream, 0);
	case 'h': return cuMemAlloc_v2(&linear, MOST * MIB);
	case 'q': return cuMemAlloc_v2(&linear, 90 * MIB);
	case 's': return cuMemAlloc_v2(&pooled, MIB);
	case 'b': return cuMemAlloc_v2(&pooled, (LIMIT + 1) * MIB);
	case 'f': return cuMemFree_v2(linear);
	case 'p': return cuMemAllocAsync(&pooled, 128 * MIB, stream);
	case 'P': return cuMemFreeAsync(pooled, stream) || cuStreamSynchronize(stream);
	case 'v': return cuMemCreate(&handle, 128 * MIB, &prop, 0);
	case 'V': return cuMemRelease(handle);
	case 't': return two_threads();
	case 'c': return in_capture();
	default: return -1;
	}
}

static int work(void)
{
	char c = 'r';
	if (cuInit(0) || write(1, &c, 1) != 1)
		return 1;
	while (read(0, &c, 1) == 1)
		say(step(c));
	return 0;
}

static struct worker new_worker(const char *fault)
{
	const char *variables[] = {"RATION_FAULT", fault, NULL};
	struct worker w = worker_begin(fault ? variables : variables + 2);
	tell(&w, 'x', 'd');
	return w;
}

static void ask(const struct worker *w, char c) { EQ(write(w->to, &c, 1), 1); }

static void answer(const struct worker *w, char want)
{
	char said = 0;
	EQ(read(w->from, &said, 1), 1);
	EQ(said, want);
}

static bool answered(const struct worker *w, int ms)
{
	struct pollfd p = {.fd = w->from, .events = POLLIN};
	return poll(&p, 1, ms) == 1;
}

static unsigned waiting(void)
{
	unsigned n = 0;
	for (unsigned i = 0; i < RATION_WAITERS; i++)
		n += load_acquire(&region_here()->m->header.waiters[i].place) != 0;
	return n;
}

/* until_waiting waits until so many requests wait. */
static void until_waiting(unsigned n)
{
	for (int i = 0; i < SLOT_WAIT_MS && waiting() != n; i++)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	EQ(waiting(), n);
}

static int set_time(struct ration_limits *page, const void *ms)
{
	store_release(&page->wait_alloc, *(const uint64_t *)ms);
	return REGION_OK;
}

static void wait_at_most(uint64_t ms) { EQ(region_limits_with(region_here(), set_time, &ms), REGION_OK); }

/* last_refusal copies the newest entry of the ring. */
static struct ration_refusal last_refusal(void)
{
	struct ration_region *m = region_here()->m;
	return m->refusals[(load_acquire(&m->header.refusal_next) - 1) % RATION_REFUSALS];
}

static uint64_t refusals(void) { return load_acquire(&region_here()->m->header.counters.refused); }

static uint32_t wakes(void) { return load32_acquire(&region_here()->m->devices[0].wake) / RATION_WAKE_STEP; }

static void test_freed(void)
{
	struct worker one = new_worker(NULL), two = new_worker(NULL);
	static const char ways[][3] = {"hhf", "vhV", "pvP", "hpf", "hvf", "htf"}; /* how one asks; how two asks; how one frees */
	static const char ends[] = "ffVPVf";
	for (unsigned i = 0; i < sizeof ends - 1; i++) {
		uint64_t before = refusals();
		tell(&one, ways[i][0], 'd');
		ask(&two, ways[i][1]);
		until_waiting(ways[i][1] == 't' ? 2 : 1);
		EQ(answered(&two, 50), false);
		/* It is stopped meanwhile: a request that leaves wakes the others, too. */
		kill(two.pid, SIGSTOP);
		EQ(waitpid(two.pid, NULL, WUNTRACED), two.pid);
		uint32_t woken = wakes();
		tell(&one, ways[i][2], 'd');
		CHECK(wakes() != woken);
		kill(two.pid, SIGCONT);
		answer(&two, 'd');
		EQ(waiting(), 0);
		EQ(refusals(), before);
		if (ways[i][1] != 't')
			tell(&two, ends[i], 'd');
	}
	finish_worker(&one, false);
	finish_worker(&two, false);
}

static void test_died(void)
{
	struct worker one = new_worker(NULL), two = new_worker(NULL);
	tell(&one, 'h', 'd');
	ask(&two, 'h');
	until_waiting(1);
	finish_worker(&one, true);
	answer(&two, 'd');
	EQ(waiting(), 0);
	finish_worker(&two, false);
}

static void test_limit(void)
{
	struct worker one = new_worker(NULL), two = new_worker(NULL);
	tell(&one, 'h', 'd');
	ask(&two, 'h');
	until_waiting(1);
	EQ(region_set_limit(region_here(), 0, make_limit(2 * LIMIT * MIB)), REGION_OK);
	answer(&two, 'd');
	EQ(region_set_limit(region_here(), 0, make_limit(LIMIT * MIB)), REGION_OK);
	finish_worker(&one, false);
	finish_worker(&two, false);
}

/* The first of those that wait is served first; one that is killed or stopped keeps nobody waiting. */
static void test_order(int signal)
{
	struct worker one = new_worker(NULL), two = new_worker(NULL), three = new_worker(NULL);
	tell(&one, 'h', 'd');
	ask(&two, 'h');
	until_waiting(1);
	ask(&three, 'q'); /* which would fit as soon as anything does */
	until_waiting(2);
	if (signal)
		kill(two.pid, signal);
	tell(&one, 'f', 'd');
	if (signal) {
		answer(&three, 'd');
		tell(&three, 'f', 'd');
	} else {
		answer(&two, 'd');
		EQ(answered(&three, 300), false);
		tell(&two, 'f', 'd');
		answer(&three, 'd');
	}
	if (signal == SIGSTOP) {
		kill(two.pid, SIGCONT);
		answer(&two, 'd');
	}
	until_waiting(0);
	finish_worker(&one, false);
	finish_worker(&two, signal == SIGKILL);
	finish_worker(&three, false);
}

/* What cannot be served by waiting is refused at once. */
static void test_refused(void)
{
	struct worker one = new_worker(NULL), two = new_worker(NULL);
	wait_at_most(RATION_MAX_WAIT_ALLOC);
	tell(&one, 'b', 'o'); /* more than the limit */
	EQ(last_refusal().waited, 0);
	tell(&one, 'h', 'd');
	tell(&one, 'q', 'o'); /* its own bytes are in the way */
	tell(&two, 'c', 'o'); /* a stream is captured */
	EQ(last_refusal().waited, 0);
	wait_at_most(RATION_WAIT_ALLOC_NONE);
	tell(&two, 'h', 'o');
	wait_at_most(200);
	tell(&two, 'h', 'o');
	struct ration_refusal r = last_refusal();
	CHECK(r.waited >= 200000000 && r.waited < 20000000000);
	EQ(waiting(), 0);
	finish_worker(&one, false);
	finish_worker(&two, false);
}

/* Two that hold, and wait for each other: each is refused when its time is over, and the record says why. */
static void test_mutual(void)
{
	struct worker one = new_worker(NULL), two = new_worker(NULL);
	wait_at_most(RATION_MAX_WAIT_ALLOC);
	tell(&one, 'q', 'd');
	tell(&two, 'q', 'd');
	ask(&one, 'q');
	until_waiting(1);
	uint64_t before = refusals();
	ask(&two, 'q');
	until_waiting(2);
	wait_at_most(1);
	answer(&one, 'o');
	CHECK(refusals() > before);
	CHECK(region_here()->m->refusals[before % RATION_REFUSALS].waited >> RATION_WAITED_MUTUAL_BIT);
	answer(&two, 'o');
	EQ(waiting(), 0);
	wait_at_most(60000);
	finish_worker(&one, false);
	finish_worker(&two, false);
}

/* A process whose first context does not fit waits as well. */
static void test_context(void)
{
	struct worker one = new_worker(NULL), two;
	static const char *const nothing[] = {NULL};
	EQ(region_set_limit(region_here(), 0, make_limit((MOST + 10) * MIB)), REGION_OK);
	tell(&one, 'h', 'd');
	two = worker_begin(nothing);
	ask(&two, 'x');
	until_waiting(1);
	tell(&one, 'f', 'd');
	answer(&two, 'd');
	EQ(region_set_limit(region_here(), 0, make_limit(LIMIT * MIB)), REGION_OK);
	finish_worker(&one, false);
	finish_worker(&two, false);
}

/* A small request that waits does not overtake a large one that came first, though it would fit. */
static void test_turns(void)
{
	struct worker one = new_worker(NULL), two = new_worker(NULL), three = new_worker(NULL), four = new_worker(NULL);
	tell(&one, 'q', 'd');
	tell(&two, 'q', 'd'); /* with the five contexts, that is all */
	ask(&three, 'h');
	until_waiting(1);
	ask(&four, 's');
	until_waiting(2);
	tell(&one, 'f', 'd');
	EQ(answered(&four, 300), false);
	tell(&two, 'f', 'd');
	answer(&three, 'd');
	answer(&four, 'd');
	EQ(waiting(), 0);
	finish_worker(&one, false);
	finish_worker(&two, false);
	finish_worker(&three, false);
	finish_worker(&four, false);
}

/* Each of them dies, or stops, at a point: the request that waits is served nevertheless. */
static void test_fault(const char *frees, const char *waits)
{
	struct worker one = new_worker(frees), two = new_worker(waits), three = new_worker(NULL);
	tell(&one, 'h', 'd');
	ask(&two, 'h');
	if (!waits)
		until_waiting(1);
	else /* until it has died or stopped; it stays to be waited for */
		EQ(waitid(P_PID, (id_t)two.pid, &(siginfo_t){0}, WEXITED | WSTOPPED | WNOWAIT), 0);
	ask(&three, 'h');
	nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* it waits by now, or comes when there is room: both are right */
	ask(&one, 'f');
	if (waits) {
		answer(&three, 'd');
	} else {
		answer(&two, 'd');
		tell(&two, 'f', 'd');
		answer(&three, 'd');
	}
	for (struct worker *w = &one; w; w = w == &one ? &two : w == &two ? &three : NULL) {
		kill(w->pid, SIGKILL);
		waitpid(w->pid, NULL, 0);
		close(w->to), close(w->from);
	}
	EQ(waiting(), 0);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "work"))
		return work();
	struct worker first = new_worker(NULL);
	if (argc > 1) {
		test_fault("wait-called:1:kill", NULL);
		test_fault("wait-called:1:stop", NULL);
		test_fault(NULL, "wait-placed:1:kill");
		test_fault(NULL, "wait-placed:1:stop");
		test_fault(NULL, "wait-armed:1:kill");
		test_fault(NULL, "wait-armed:1:stop");
		finish_worker(&first, false);
		return FINISH();
	}
	test_freed();
	test_died();
	test_limit();
	test_turns();
	test_order(0);
	test_order(SIGKILL);
	test_order(SIGSTOP);
	test_context();
	test_refused();
	test_mutual();
	finish_worker(&first, false);
	return FINISH();
}
