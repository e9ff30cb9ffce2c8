/* Kernels of one process that take time: streams, events and what waits. */
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>

#include "kernels.h"

static float between(CUevent a, CUevent b)
{
	float ms = -1;
	OK(cuEventElapsedTime(&ms, a, b));
	return ms;
}

/* One context: streams are queues, events have times, and questions have answers. */
static int alone(void)
{
	CUfunction one, ten, wide;
	CUstream s, t, independent;
	CUevent a, b, c, untimed;
	CUdeviceptr p;
	float ms;
	char byte;

	start();
	one = kernel("short_one"), ten = kernel("long_one"), wide = kernel("wide");
	OK(cuStreamCreate(&s, 0));
	OK(cuStreamCreate(&t, 0));
	OK(cuStreamCreate(&independent, 1));
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	OK(cuEventCreate(&c, 0));
	OK(cuEventCreate(&untimed, 2));
	OK(cuMemAlloc_v2(&p, 4096));
	OK(cuEventQuery(a)); /* never recorded */
	OK(cuStreamQuery(s));

	OK(cuEventRecord(a, s));
	OK(cuEventQuery(a)); /* nothing before it */
	OK(launch(one, 1, s));
	OK(cuEventRecord(b, s));
	EQ(cuEventQuery(b), CUDA_ERROR_NOT_READY);
	EQ(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_NOT_READY);
	EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	EQ(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY); /* waits for all that wait for it */
	OK(cuStreamQuery(t));
	OK(cuStreamQuery(independent));
	later(180 * US + 999 * US); /* the first switch, and not quite the kernel */
	EQ(cuEventQuery(b), CUDA_ERROR_NOT_READY);
	later(1 * US);
	OK(cuEventQuery(b));
	OK(cuStreamQuery(s));
	OK(cuEventSynchronize(b));
	OK(cuStreamSynchronize(s));
	CHECK(between(a, b) == 1.18f);

	/* Longer than a slice, and by blocks; two streams of one context run in order. No other
	 * context comes between, so no switch is paid. */
	OK(cuEventRecord(a, s));
	OK(launch(ten, 7, s));
	OK(cuEventRecord(b, s));
	OK(launch(wide, 7, t));
	OK(cuEventRecord(c, t));
	OK(cuEventRecord(untimed, t));
	later(10 * MS);
	OK(cuEventQuery(b));
	EQ(cuEventQuery(c), CUDA_ERROR_NOT_READY);
	later(70 * US);
	OK(cuEventQuery(c));
	OK(cuStreamWaitEvent(s, c, 0));
	CHECK(between(a, b) == 10.f);
	CHECK(between(b, c) == 0.07f);
	EQ(cuEventElapsedTime(&ms, a, untimed), CUDA_ERROR_INVALID_HANDLE);

	/* The legacy stream does not wait for one that is made to be independent. */
	OK(launch(ten, 1, independent));
	OK(cuStreamSynchronize(NULL));
	OK(cuMemcpyDtoH_v2(&byte, p, 1));
	EQ(cuStreamQuery(independent), CUDA_ERROR_NOT_READY);
	later(10 * MS);
	OK(cuCtxSynchronize());
	OK(cuMemFree_v2(p));

	/* An event that is recorded again has its latest time, and one that nobody asks about for a
	 * long time keeps its. */
	OK(cuEventRecord(a, s));
	OK(cuEventRecord(b, s));
	OK(launch(one, 1, s));
	OK(cuEventRecord(b, s));
	EQ(cuEventQuery(b), CUDA_ERROR_NOT_READY);
	for (int i = 0; i < 3000; i++) {
		later(1 * MS);
		OK(launch(one, 1, s));
	}
	CHECK(between(a, b) == 1.f);
	later(1 * MS);

	struct fakegpu_engine e;
	struct fakegpu_engine_context mine = books((uint32_t)getpid(), 0);
	EQ(fakegpu_engine(0, &e, NULL, 0), 1);
	EQ(mine.submitted_ns, (1 + 10 + 10 + 1 + 3000) * MS + 70 * US);
	EQ(mine.got_ns, mine.submitted_ns);
	EQ(mine.waited_ns, 180 * US);
	EQ(e.switches, 1);
	EQ(e.switching_ns, 180 * US);
	EQ(e.now_ns, (int64_t)(mine.got_ns + e.switching_ns + e.idle_ns));
	return checks_failed > 0;
}

static void nothing(void *arg) { (void)arg; }
static void nothing_back(CUstream s, CUresult result, void *arg) { (void)s, (void)result, (void)arg; }

/* Copies and host functions take time of their own, in the order of their stream and beside kernels. */
static int beside(void)
{
	enum { MICROSECOND = 1000, MILLISECOND = 1000 * MICROSECOND }; /* in bytes that are copied */
	static char host[10 * MILLISECOND];
	CUfunction one, ten;
	CUstream s, t, blocking;
	CUevent a, b, c, d;
	CUdeviceptr p;
	uint64_t shaped[16] = {[14] = MILLISECOND, [15] = 3};

	start();
	one = kernel("short_one"), ten = kernel("long_one");
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamCreate(&t, 1));
	OK(cuStreamCreate(&blocking, 0));
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	OK(cuEventCreate(&c, 0));
	OK(cuEventCreate(&d, 0));
	OK(cuMemAlloc_v2(&p, sizeof host));
	OK(launch(one, 1, s));
	later(1 * MS + 180 * US);
	OK(cuStreamQuery(s));

	/* A kernel, a copy of 10 ms and a kernel in one stream; 10 ms of another one meanwhile. */
	OK(launch(one, 1, s));
	OK(cuEventRecord(a, s));
	OK(cuMemcpyHtoDAsync_v2(p, host, sizeof host, s));
	OK(cuEventRecord(b, s));
	OK(launch(one, 1, s));
	OK(cuEventRecord(c, s));
	OK(launch(ten, 1, t));
	OK(cuEventRecord(d, t));
	later(1 * MS);
	OK(cuEventQuery(a));
	later(9 * MS + 999 * US);
	EQ(cuEventQuery(b), CUDA_ERROR_NOT_READY);
	EQ(cuStreamQuery(t), CUDA_ERROR_NOT_READY);
	later(1 * US);
	OK(cuEventQuery(b));
	OK(cuStreamQuery(t));
	EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	later(1 * MS);
	OK(cuStreamQuery(s));
	CHECK(between(a, b) == 10.f);
	CHECK(between(b, c) == 1.f);
	CHECK(between(a, d) == 10.f);
	EQ(books((uint32_t)getpid(), 0).got_ns, 13 * MS);
	EQ(books((uint32_t)getpid(), 0).submitted_ns, 13 * MS);

	/* While a copy runs alone the device is idle, also where a kernel waits for it, by its stream or by an event. */
	struct fakegpu_engine before, after;
	OK(cuMemcpyHtoDAsync_v2(p, host, sizeof host, s));
	OK(cuEventRecord(a, s));
	OK(cuStreamWaitEvent(t, a, 0));
	OK(launch(one, 1, t));
	OK(cuEventRecord(b, t));
	fakegpu_engine(0, &before, NULL, 0);
	later(10 * MS);
	fakegpu_engine(0, &after, NULL, 0);
	EQ(after.idle_ns - before.idle_ns, 10 * MS);
	EQ(cuEventQuery(b), CUDA_ERROR_NOT_READY);
	later(1 * MS);
	CHECK(between(a, b) == 1.f);

	/* The legacy stream and those that wait for it are one. A copy beside a kernel that is under way leaves it alone. */
	OK(launch(ten, 1, s));
	later(4 * MS);
	OK(cuEventRecord(a, NULL));
	OK(cuMemcpy2DAsync_v2(shaped, NULL));
	OK(launch(one, 1, blocking));
	OK(cuEventRecord(b, blocking));
	later(6 * MS);
	OK(cuStreamQuery(s));
	EQ(cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
	later(1 * MS);
	OK(cuStreamQuery(blocking));
	CHECK(between(a, b) == 7.f); /* 6 ms until the device is free, and 1 */

	/* Host functions, 2 ms each. */
	OK(cuEventRecord(a, s));
	OK(cuLaunchHostFunc(s, nothing, NULL));
	OK(cuStreamAddCallback(s, nothing_back, NULL, 0));
	OK(launch(one, 1, s));
	OK(cuEventRecord(b, s));
	later(5 * MS);
	CHECK(between(a, b) == 5.f);
	OK(cuCtxSynchronize());

	/* More than the queue has places for: entries that were done out of turn are done once. */
	uint64_t got = books((uint32_t)getpid(), 0).got_ns;
	for (int i = 0; i < 600; i++) {
		OK(cuMemcpyHtoDAsync_v2(p, host, MILLISECOND, s));
		OK(launch(one, 1, s));
		OK(launch(one, 1, t));
		OK(cuEventRecord(d, t));
		later(1 * MS + 500 * US);
	}
	later(1000 * MS);
	EQ(books((uint32_t)getpid(), 0).got_ns - got, 1200 * MS);
	OK(cuCtxSynchronize());
	OK(cuStreamQuery(s));
	EQ(fakegpu_errors(), 0);
	return checks_failed > 0;
}

/* What waits. */
struct waiter {
	CUresult (*call)(struct waiter *w);
	CUcontext context;
	CUstream stream, elsewhere; /* of another context */
	CUevent event;
	CUfunction function;
	CUdeviceptr p;
	int returned; /* atomic */
	pthread_t thread;
};

static CUresult wait_stream(struct waiter *w) { return cuStreamSynchronize(w->stream); }
static CUresult wait_event(struct waiter *w) { return cuEventSynchronize(w->event); }
static CUresult wait_context(struct waiter *w)
{
	(void)w;
	return cuCtxSynchronize();
}
static CUresult wait_copy(struct waiter *w)
{
	char byte;
	return cuMemcpyDtoH_v2(&byte, w->p, 1);
}
static void set(void *flag) { __atomic_store_n((int *)flag, 2, __ATOMIC_RELEASE); }
static CUresult wait_host(struct waiter *w) { return cuLaunchHostFunc(w->stream, set, &w->returned); }
static CUresult wait_between(struct waiter *w) { return cuStreamWaitEvent(w->elsewhere, w->event, 0); }
static CUresult wait_free(struct waiter *w)
{
	CUresult r = cuMemFree_v2(w->p);
	w->p = 0;
	return r;
}
static CUresult wait_queue(struct waiter *w) { return launch(w->function, 1, w->stream); }

static void *waits(void *arg)
{
	struct waiter *w = arg;
	cuCtxSetCurrent(w->context);
	OK(w->call(w));
	if (w->call != wait_queue)
		OK(cuStreamQuery(w->stream));
	__atomic_store_n(&w->returned, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* What fake-smi prints is what the books say. */
static int smi(void)
{
	struct fakegpu_engine_context c;
	char line[1024], want[512];
	unsigned found = 0, devices = 0;
	FILE *f;
	start();
	OK(launch(kernel("long_one"), 1, NULL));
	later(3 * MS + 180 * US);
	c = books((uint32_t)getpid(), 0);
	EQ(c.got_ns, 3 * MS);
	snprintf(want, sizeof want,
		 "{\"device\":0,\"pid\":%d,\"context\":%u,\"live\":true,\"slice_us\":%llu,\"submitted_ns\":10000000,\"got_ns\":3000000,"
		 "\"waited_ns\":180000,\"turns\":%llu}\n",
		 (int)getpid(), c.context, (unsigned long long)c.slice_us, (unsigned long long)c.turns);
	f = popen("\"$LD_LIBRARY_PATH\"/fake-smi --engine", "r");
	CHECK(f != NULL);
	while (f != NULL && fgets(line, sizeof line, f) != NULL) {
		found += strcmp(line, want) == 0;
		devices += strstr(line, "\"idle_ns\":") != NULL;
	}
	EQ(f == NULL ? -1 : pclose(f), 0);
	EQ(found, 1);
	EQ(devices, 1);
	return checks_failed > 0;
}

static int waiting(void)
{
	CUresult (*const calls[])(struct waiter *) = {wait_stream, wait_event, wait_context, wait_copy, wait_host, wait_between, wait_free};
	struct waiter w = {.context = start(), .function = kernel("short_one")};
	OK(cuStreamCreate(&w.stream, 0));
	OK(cuEventCreate(&w.event, 0));
	OK(cuMemAlloc_v2(&w.p, 4096));
	CUcontext c;
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(cuStreamCreate(&w.elsewhere, 0));
	EQ(cuEventRecord(w.event, w.elsewhere), CUDA_ERROR_INVALID_HANDLE);
	OK(cuCtxSetCurrent(w.context));
	later(1 * MS);
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		w.call = calls[i];
		w.returned = 0;
		OK(launch(w.function, 1, w.stream));
		OK(cuEventRecord(w.event, w.stream));
		EQ(pthread_create(&w.thread, NULL, waits, &w), 0);
		EQ(fakegpu_held("wait", 1, LONG), 1);
		later(999 * US);
		EQ(__atomic_load_n(&w.returned, __ATOMIC_ACQUIRE), 0);
		later(181 * US);
		EQ(pthread_join(w.thread, NULL), 0);
		EQ(w.returned, 1);
	}
	/* A full queue takes one more when the first one is done. */
	for (int i = 0; i < 1024; i++)
		OK(launch(w.function, 1, w.stream));
	w.call = wait_queue;
	w.returned = 0;
	EQ(pthread_create(&w.thread, NULL, waits, &w), 0);
	EQ(fakegpu_held("queue", 1, LONG), 1);
	later(999 * US);
	EQ(__atomic_load_n(&w.returned, __ATOMIC_ACQUIRE), 0);
	later(1 * US);
	EQ(pthread_join(w.thread, NULL), 0);
	EQ(books((uint32_t)getpid(), 0).submitted_ns, (7 + 1024 + 1) * MS);
	/* One that waits is not left behind when its context ends. */
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(cuStreamCreate(&w.stream, 0));
	OK(launch(w.function, 1, w.stream));
	EQ(pthread_create(&w.thread, NULL, synchronizes, c), 0);
	EQ(fakegpu_held("wait", 1, LONG), 1);
	OK(cuCtxDestroy_v2(c));
	EQ(pthread_join(w.thread, NULL), 0);
	return checks_failed > 0;
}

/* Ten times as fast as the wall, which shows that it runs by itself; a thread that waits
 * takes no time of the processor's. */
static uint64_t now_on(clockid_t which)
{
	struct timespec t;
	clock_gettime(which, &t);
	return (uint64_t)t.tv_sec * 1000 * MS + (uint64_t)t.tv_nsec;
}

static int fast(void)
{
	uint64_t wall, cpu, clock;
	CUfunction f;
	CUevent a, b;
	start();
	f = kernel("long_one");
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	wall = now_on(CLOCK_MONOTONIC);
	clock = (uint64_t)fakegpu_clock(0);
	cpu = now_on(CLOCK_PROCESS_CPUTIME_ID);
	OK(cuEventRecord(a, NULL));
	for (int i = 0; i < 200; i++)
		OK(launch(f, 1, NULL));
	OK(cuEventRecord(b, NULL));
	OK(cuStreamSynchronize(NULL));
	cpu = now_on(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	clock = (uint64_t)fakegpu_clock(0) - clock;
	wall = now_on(CLOCK_MONOTONIC) - wall;
	CHECK(between(a, b) >= 2000.18f && between(a, b) <= (float)clock / 1e6f);
	CHECK(clock >= 2000 * MS + 180 * US && wall >= 200 * MS && clock <= wall * 10);
	CHECK(cpu < 100 * MS);
	return checks_failed > 0;
}

static int live(void)
{
	static struct fakegpu_engine_context list[MAX];
	int n = fakegpu_engine(0, NULL, list, MAX), count = 0;
	for (int i = 0; i < n && i < MAX; i++)
		count += list[i].live && list[i].pid == (uint32_t)getpid();
	return count;
}

static CUcontext another(void)
{
	CUcontext c;
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(cuCtxPopCurrent_v2(NULL));
	return c;
}

/* More contexts than the engine has places: those of ended ones are given again; a context
 * without a place works, and its kernels take no time. */
static int many(void)
{
	static CUcontext c[MAX];
	CUcontext first = start();
	CUfunction f;
	for (int i = 0; i < 2 * MAX; i++)
		OK(cuCtxDestroy_v2(another()));
	EQ(fakegpu_engine(0, NULL, NULL, 0), MAX);
	EQ(live(), 1);
	f = kernel("short_one");
	OK(launch(f, 1, NULL));
	for (int i = 0; i < MAX; i++)
		c[i] = another();
	EQ(live(), MAX);
	OK(cuCtxSetCurrent(c[MAX - 1])); /* for which there was no place */
	f = kernel("short_one");
	OK(launch(f, 1, NULL));
	OK(cuStreamQuery(NULL));
	OK(cuCtxSynchronize());
	OK(cuCtxDestroy_v2(c[7]));
	c[7] = another();
	OK(cuCtxSetCurrent(c[7]));
	f = kernel("short_one");
	OK(launch(f, 1, NULL));
	EQ(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	OK(cuCtxSetCurrent(first)); /* whose place was nobody else's meanwhile */
	EQ(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	later(2 * MS + 360 * US);
	OK(cuStreamQuery(NULL));
	OK(cuCtxSetCurrent(c[7]));
	OK(cuStreamQuery(NULL));
	return checks_failed > 0;
}

int main(int argc, char **argv)
{
	static const struct role roles[] = {{"alone", alone}, {"beside", beside}, {"waiting", waiting},
					    {"smi", smi},     {"fast", fast},     {"many", many}};
	int status = RUN_ROLE(roles, argc, argv);
	if (status >= 0)
		return status;
	EQ(AGAIN("alone", "FAKEGPU_QUIET", "1"), 0);
	EQ(AGAIN("beside", "FAKEGPU_COPY", "1000", "FAKEGPU_HOST_FUNCTION", "2000"), 0);
	EQ(AGAIN("waiting", "FAKEGPU_QUIET", "1"), 0);
	EQ(AGAIN("smi", "FAKEGPU_QUIET", "1"), 0);
	EQ(AGAIN("fast", "FAKEGPU_CLOCK", "10"), 0);
	EQ(AGAIN("many", "FAKEGPU_CONTEXT", "1m"), 0); /* takes the places of all before it */
	return FINISH();
}
