/* Kernels that take time: the engine's turns, streams, events and what waits. In most
 * the clock stands still but for what they add to it (FAKEGPU_CLOCK=0), and in none does the result
 * depend on how fast the machine is. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#include "check.h"
#include "control.h"

enum { LONG = 20000, MAX = 256 };

#define US 1000ull /* in ns */
#define MS (1000 * US)

static CUfunction kernel(const char *name)
{
	static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry short_one() { ret; }\n"
				  ".visible .entry long_one() { ret; }\n.visible .entry wide() { ret; }\n";
	CUmodule m = NULL;
	CUfunction f = NULL;
	OK(cuModuleLoadData(&m, ptx));
	OK(cuModuleGetFunction(&f, m, name));
	return f;
}

static CUresult launch(CUfunction f, unsigned blocks, CUstream s) { return cuLaunchKernel(f, blocks, 1, 1, 1, 1, 1, 0, s, NULL, NULL); }

static void later(uint64_t ns) { CHECK(fakegpu_clock(ns) >= 0); }

static struct fakegpu_engine_context books(uint32_t pid, unsigned which)
{
	static struct fakegpu_engine_context list[MAX];
	int n = fakegpu_engine(0, NULL, list, MAX);
	for (int i = 0; i < n && i < MAX; i++)
		if (list[i].pid == pid && which-- == 0)
			return list[i];
	CHECK(!"a context of the process");
	return (struct fakegpu_engine_context){0};
}

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

static void *synchronizes(void *arg)
{
	cuCtxSetCurrent(arg);
	cuCtxSynchronize();
	return NULL;
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

/* A process with a context of this slice and much to do; it ends when its input does. */
static int busy(void)
{
	CUfunction f;
	start();
	f = kernel("long_one");
	for (int i = 0; i < 1000; i++)
		OK(launch(f, 1, NULL));
	if (write(1, "x", 1) != 1 || read(0, &(char){0}, 1) != 0)
		return 1;
	return checks_failed > 0;
}

/* Replaces what libcuda sets on its way, as ration does. */
__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	va_start(list, request);
	struct control_args *a = va_arg(list, void *);
	va_end(list);
	if (request == CONTROL_REQUEST && getenv("SLICE") != NULL)
		*(uint64_t *)(uintptr_t)a->params = strtoul(getenv("SLICE"), NULL, 10);
	(void)fd;
	errno = ENOTTY;
	return -1;
}

struct child {
	pid_t pid;
	int from, to;
};

static struct child spawn(const char *role, const char *slice)
{
	int out[2], in[2];
	struct child c = {-1, -1, -1};
	char byte;
	if (pipe2(out, O_CLOEXEC) != 0 || pipe2(in, O_CLOEXEC) != 0)
		return c;
	c.pid = fork();
	if (c.pid == 0) {
		dup2(out[1], 1);
		dup2(in[0], 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setenv("SLICE", slice, 1);
		execl("/proc/self/exe", "time", role, (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	close(in[0]);
	c.from = out[0];
	c.to = in[1];
	EQ(read(c.from, &byte, 1), 1);
	return c;
}

static int end(struct child c, int sig)
{
	int status = 0;
	if (sig != 0)
		kill(c.pid, sig);
	close(c.to);
	close(c.from);
	waitpid(c.pid, &status, 0);
	return status;
}

/* So many busy processes with these slices get these shares, in tenths of a percent. */
static void shares(unsigned n, const char *const *slices, const unsigned *want, uint64_t together)
{
	struct child c[8];
	uint64_t got[8], sum = 0;
	struct fakegpu_engine before, after;

	for (unsigned i = 0; i < n; i++)
		c[i] = spawn("busy", slices[i]);
	CHECK(fakegpu_engine(0, &before, NULL, 0) >= 0);
	later(1000 * MS);
	CHECK(fakegpu_engine(0, &after, NULL, 0) >= 0);
	for (unsigned i = 0; i < n; i++)
		sum += got[i] = books((uint32_t)c[i].pid, 0).got_ns;
	for (unsigned i = 0; i < n; i++) {
		unsigned share = (unsigned)(got[i] * 1000 / sum);
		if (share > want[i] + 5 || share + 5 < want[i])
			fprintf(stderr, "slice %s: %u, not %u\n", slices[i], share, want[i]);
		CHECK(share <= want[i] + 5 && share + 5 >= want[i]);
	}
	EQ(after.idle_ns, before.idle_ns);
	EQ(sum + after.switching_ns - before.switching_ns, 1000 * MS);
	CHECK(sum / MS >= together - 10 && sum / MS <= together + 10);
	for (unsigned i = 0; i < n; i++)
		EQ(end(c[i], 0), 0);
}

#define LIST(type, ...) ((const type[]){__VA_ARGS__})

/* As COMPUTE's table: what each got, and both together. */
static int sharing(void)
{
	start();
	shares(2, LIST(char *const, "2048", "2048"), LIST(unsigned, 500, 500), 919);
	shares(2, LIST(char *const, "3000", "7000"), LIST(unsigned, 300, 700), 965);
	shares(2, LIST(char *const, "1000", "9000"), LIST(unsigned, 100, 900), 965);
	shares(3, LIST(char *const, "2000", "3000", "5000"), LIST(unsigned, 200, 300, 500), 949);
	shares(8, LIST(char *const, "600", "600", "600", "600", "600", "600", "600", "600"),
	       LIST(unsigned, 125, 125, 125, 125, 125, 125, 125, 125), 769);
	return checks_failed > 0;
}

/* The same where the beginning of a slice is lost after each switch: what three busy processes with
 * short slices, and eight with longer ones, do together, as measured on an H200. */
static int short_slices(void)
{
	start();
	shares(3, LIST(char *const, "2000", "2000", "2000"), LIST(unsigned, 333, 333, 333), 899);
	shares(3, LIST(char *const, "500", "500", "500"), LIST(unsigned, 333, 333, 333), 670);
	shares(3, LIST(char *const, "200", "200", "200"), LIST(unsigned, 333, 333, 333), 420);
	shares(3, LIST(char *const, "100", "100", "100"), LIST(unsigned, 333, 333, 333), 220);
	shares(2, LIST(char *const, "1024", "1024"), LIST(unsigned, 500, 500), 820);
	shares(8, LIST(char *const, "600", "600", "600", "600", "600", "600", "600", "600"),
	       LIST(unsigned, 125, 125, 125, 125, 125, 125, 125, 125), 720);
	/* Too short for anything, beside another one; alone it does all. */
	struct child c[2] = {spawn("busy", "10"), spawn("busy", "10")};
	later(1000 * MS);
	EQ(books((uint32_t)c[0].pid, 0).got_ns + books((uint32_t)c[1].pid, 0).got_ns, 0);
	EQ(end(c[1], SIGKILL), SIGKILL);
	later(MS);
	CHECK(fakegpu_engine(0, NULL, NULL, 0) >= 0);
	uint64_t before = books((uint32_t)c[0].pid, 0).got_ns;
	later(100 * MS);
	EQ(books((uint32_t)c[0].pid, 0).got_ns - before, 100 * MS);
	EQ(end(c[0], 0), 0);
	return checks_failed > 0;
}

/* The kernel passes an engine's lock on where its owner is killed: robust futexes, of which qemu's
 * emulation of Linux has none. It refuses to be told of them. */
static bool locks_end_with_owners(void)
{
	void *head;
	size_t size;
	bool robust = syscall(SYS_get_robust_list, 0, &head, &size) == 0;
	if (!robust)
		fprintf(stderr, "time.c: not tested: processes killed with the engine's lock (no robust futexes here)\n");
	return robust;
}

/* A process has the engine's lock when it is killed, and has run the engine for 5 ms but for the last
 * store. So none of that happened: the next process finds the engine as it was before, without the dead
 * one's work. */
static void killed_with_lock(CUfunction f)
{
	uint64_t got = books((uint32_t)getpid(), 0).got_ns;
	OK(launch(f, 1, NULL));
	struct child stuck = spawn("stuck", "2048");
	CHECK(WIFSIGNALED(end(stuck, SIGKILL)));
	EQ(books((uint32_t)getpid(), 0).got_ns, got + 5 * MS);
	EQ(books((uint32_t)stuck.pid, 0).got_ns, 0);
	later(5 * MS);
	OK(cuStreamQuery(NULL));
}

/* A neighbour without work costs nothing, and one that is killed leaves the round: with
 * its work undone, in the midst of advancing the engine or not. Its books stay. */
static int neighbours(void)
{
	struct child idle, killed;
	CUfunction f;
	start();
	f = kernel("long_one");
	idle = spawn("idle", "9000");
	killed = spawn("busy", "2048");
	later(100 * MS);
	struct fakegpu_engine_context before = books((uint32_t)killed.pid, 0);
	CHECK(before.live && before.got_ns >= 99 * MS);
	CHECK(WIFSIGNALED(end(killed, SIGKILL)));
	OK(launch(f, 1, NULL));
	later(10 * MS + 180 * US);
	OK(cuStreamQuery(NULL));
	struct fakegpu_engine_context after = books((uint32_t)killed.pid, 0);
	CHECK(!after.live);
	EQ(after.got_ns, before.got_ns);
	EQ(after.submitted_ns, before.submitted_ns);
	EQ(books((uint32_t)idle.pid, 0).got_ns, 0);
	EQ(books((uint32_t)idle.pid, 0).turns, 0);

	if (locks_end_with_owners())
		killed_with_lock(f);
	CHECK(books((uint32_t)idle.pid, 0).live);
	EQ(end(idle, 0), 0);
	CHECK(!books((uint32_t)idle.pid, 0).live);
	return checks_failed > 0;
}

static int stuck(void)
{
	pthread_t t;
	CUcontext c = start();
	OK(launch(kernel("long_one"), 1, NULL));
	fakegpu_hold("engineAdvance", 1);
	later(5 * MS);
	EQ(pthread_create(&t, NULL, synchronizes, c), 0);
	EQ(fakegpu_held("engineAdvance", 1, LONG), 1);
	if (write(1, "x", 1) != 1)
		return 1;
	for (;;)
		pause();
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

/* Launches and waits in two threads until it is killed. */
static void *loads(void *arg)
{
	CUfunction f;
	cuCtxSetCurrent(arg);
	f = kernel("short_one");
	for (unsigned i = 1;; i++) {
		launch(f, 1, NULL);
		if (i % 3 == 0)
			cuCtxSynchronize();
		if (write(1, "x", 1) != 1)
			_exit(1);
	}
	return NULL;
}

static int load(void)
{
	pthread_t t;
	CUcontext c = start();
	EQ(pthread_create(&t, NULL, loads, c), 0);
	loads(c);
	return 0;
}

/* Whoever is killed, and wherever: every nanosecond of the engine is in the books once, and it goes on. */
static int killing(void)
{
	struct fakegpu_engine_context list[MAX];
	struct fakegpu_engine e;
	CUfunction f;
	start();
	f = kernel("short_one");
	const int before = fakegpu_engine(0, NULL, NULL, 0);
	for (int round = 0; round < 60; round++) {
		struct child a = spawn("load", "2048"), b = spawn("load", "500");
		char bytes[64];
		int n;
		for (int i = 0; i < round % 7; i++)
			CHECK(read(a.from, bytes, sizeof bytes) > 0);
		CHECK(WIFSIGNALED(end(a, SIGKILL)));
		OK(launch(f, 1, NULL));
		OK(cuCtxSynchronize());
		CHECK(WIFSIGNALED(end(b, SIGKILL)));
		n = fakegpu_engine(0, &e, list, MAX);
		uint64_t sum = e.idle_ns + e.switching_ns;
		for (int i = 0; i < n; i++)
			sum += list[i].got_ns;
		EQ(n, before + 2 + 2 * round);
		EQ(sum, e.now_ns);
	}
	EQ(books((uint32_t)getpid(), 0).got_ns, 60 * MS);
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

static int idle(void)
{
	start();
	if (write(1, "x", 1) != 1 || read(0, &(char){0}, 1) != 0)
		return 1;
	return checks_failed > 0;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(void);
	} roles[] = {{"alone", alone},
		     {"waiting", waiting},
		     {"sharing", sharing},
		     {"short_slices", short_slices},
		     {"neighbours", neighbours},
		     {"stuck", stuck},
		     {"idle", idle},
		     {"busy", busy},
		     {"fast", fast},
		     {"load", load},
		     {"killing", killing},
		     {"many", many},
		     {"smi", smi},
		     {"beside", beside}};

	for (size_t i = 0; argc > 1 && i < sizeof roles / sizeof *roles; i++)
		if (strcmp(argv[1], roles[i].name) == 0)
			return roles[i].run();
	setenv("FAKEGPU", "h200", 1);
	setenv("FAKEGPU_CLOCK", "0", 1);
	setenv("FAKEGPU_KERNEL", "short_one:1000,wide:10/block,*:10000", 1);
	EQ(AGAIN("alone", "FAKEGPU_QUIET", "1"), 0);
	EQ(AGAIN("beside", "FAKEGPU_COPY", "1000", "FAKEGPU_HOST_FUNCTION", "2000"), 0);
	EQ(AGAIN("waiting", "FAKEGPU_QUIET", "1"), 0);
	EQ(AGAIN("sharing", "FAKEGPU_QUIET", "1"), 0);
	EQ(AGAIN("short_slices", "FAKEGPU_QUIET", "1", "FAKEGPU_RESUME", "40"), 0);
	EQ(AGAIN("neighbours", "FAKEGPU_QUIET", "1"), 0);
	EQ(AGAIN("smi", "FAKEGPU_QUIET", "1"), 0);
	EQ(AGAIN("fast", "FAKEGPU_CLOCK", "10"), 0);
	if (locks_end_with_owners())
		EQ(AGAIN("killing", "FAKEGPU_CLOCK", "20"), 0);
	EQ(AGAIN("many", "FAKEGPU_CONTEXT", "1m"), 0); /* takes the places of all before it */
	return FINISH();
}
