/* Processes that take turns on an engine: their shares, and what a killed one leaves. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "child.h"
#include "control.h"
#include "kernels.h"

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

/* Starts a process whose contexts have a slice, and waits until it is ready. */
static struct child spawn_with(const char *role, const char *slice)
{
	setenv("SLICE", slice, 1);
	struct child c = spawn(role);
	unsetenv("SLICE");
	EQ(read(c.from, &(char){0}, 1), 1);
	return c;
}

/* So many busy processes with these slices get these shares, in tenths of a percent. */
static void shares(unsigned n, const char *const *slices, const unsigned *want, uint64_t together)
{
	struct child c[8];
	uint64_t got[8], sum = 0;
	struct fakegpu_engine before, after;

	for (unsigned i = 0; i < n; i++)
		c[i] = spawn_with("busy", slices[i]);
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
	struct child c[2] = {spawn_with("busy", "10"), spawn_with("busy", "10")};
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

enum { SLACK = 70 }; /* microseconds */

static int later_first(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* How long a small kernel every 20 ms takes beside a busy process with this slice, in the median
 * and at worst, as measured on an H200; in microseconds. */
static void small_kernel(const char *slice, uint64_t median, uint64_t worst)
{
	enum { REQUESTS = 101 };
	uint64_t took[REQUESTS];
	struct child c = spawn_with("busy", slice);
	CUfunction f = kernel("wide");
	for (unsigned i = 0; i < REQUESTS; i++) {
		later(10 * MS + i * 37 * US);
		struct fakegpu_engine_context before = books((uint32_t)getpid(), 0);
		OK(launch(f, 1, NULL));
		later(10 * MS);
		OK(cuStreamQuery(NULL));
		struct fakegpu_engine_context after = books((uint32_t)getpid(), 0);
		took[i] = (after.waited_ns + after.got_ns - before.waited_ns - before.got_ns) / US;
	}
	qsort(took, REQUESTS, sizeof *took, later_first);
	if (took[REQUESTS / 2] > median + SLACK || took[REQUESTS / 2] + SLACK < median || took[REQUESTS - 1] > worst)
		fprintf(stderr, "slice %s: median %lu, worst %lu\n", slice, (unsigned long)took[REQUESTS / 2],
			(unsigned long)took[REQUESTS - 1]);
	CHECK(took[REQUESTS / 2] <= median + SLACK && took[REQUESTS / 2] + SLACK >= median);
	CHECK(took[REQUESTS - 1] <= worst);
	/* Alone, even the shortest slice costs nothing: the neighbour does all work but the switches. */
	CHECK(books((uint32_t)c.pid, 0).got_ns >= 2000 * MS);
	EQ(end(c, 0), 0);
}

/* The time between the events around a kernel is its own if it fits into a slice, as on an H200: the
 * first event waits for the turn. A longer kernel has the neighbour's turns in it. */
static void around_kernel(CUfunction f, double least_ms, double most_ms)
{
	CUevent from, to;
	float ms = 0;
	struct child c = spawn_with("busy", "2048");
	OK(cuEventCreate(&from, 0));
	OK(cuEventCreate(&to, 0));
	for (unsigned i = 0; i < 7; i++) {
		later(10 * MS + i * 370 * US);
		OK(cuEventRecord(from, NULL));
		EQ(cuEventQuery(from), CUDA_ERROR_NOT_READY);
		OK(launch(f, 1, NULL));
		OK(cuEventRecord(to, NULL));
		later(200 * MS);
		OK(cuEventElapsedTime(&ms, from, to));
		CHECK(ms >= least_ms && ms <= most_ms);
	}
	EQ(end(c, 0), 0);
}

static int small_kernels(void)
{
	start();
	around_kernel(kernel("short_one"), 0.999, 1.001);
	around_kernel(kernel("long_one"), 19, 21);
	small_kernel("2000", 1190, 2250);
	small_kernel("1000", 710, 1250);
	small_kernel("200", 380, 450);
	small_kernel("100", 270, 350);
	small_kernel("50", 260, 310);
	small_kernel("10", 240, 280);
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
		fprintf(stderr, "turns.c: not tested: processes killed with the engine's lock (no robust futexes here)\n");
	return robust;
}

/* A process has the engine's lock when it is killed, and has run the engine for 5 ms but for the last
 * store. So none of that happened: the next process finds the engine as it was before, without the dead
 * one's work. */
static void killed_with_lock(CUfunction f)
{
	uint64_t got = books((uint32_t)getpid(), 0).got_ns;
	OK(launch(f, 1, NULL));
	struct child stuck = spawn_with("stuck", "2048");
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
	idle = spawn_with("idle", "9000");
	killed = spawn_with("busy", "2048");
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

/* Processes are killed at any point: each nanosecond of the engine is counted once, and the engine goes on. */
static int killing(void)
{
	struct fakegpu_engine_context list[MAX];
	struct fakegpu_engine e;
	CUfunction f;
	start();
	f = kernel("short_one");
	const int before = fakegpu_engine(0, NULL, NULL, 0);
	for (int round = 0; round < 60; round++) {
		struct child a = spawn_with("load", "2048"), b = spawn_with("load", "500");
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

static int idle(void)
{
	start();
	if (write(1, "x", 1) != 1 || read(0, &(char){0}, 1) != 0)
		return 1;
	return checks_failed > 0;
}

int main(int argc, char **argv)
{
	static const struct role roles[] = {{"sharing", sharing},
					    {"short_slices", short_slices},
					    {"small_kernels", small_kernels},
					    {"neighbours", neighbours},
					    {"stuck", stuck},
					    {"idle", idle},
					    {"busy", busy},
					    {"load", load},
					    {"killing", killing}};
	int status = RUN_ROLE(roles, argc, argv);
	if (status >= 0)
		return status;
	EQ(AGAIN("sharing", "FAKEGPU_QUIET", "1"), 0);
	EQ(AGAIN("short_slices", "FAKEGPU_QUIET", "1", "FAKEGPU_RESUME", "40"), 0);
	EQ(AGAIN("small_kernels", "FAKEGPU_QUIET", "1", "FAKEGPU_RESUME", "40"), 0);
	EQ(AGAIN("neighbours", "FAKEGPU_QUIET", "1"), 0);
	if (locks_end_with_owners())
		EQ(AGAIN("killing", "FAKEGPU_CLOCK", "20"), 0);
	return FINISH();
}
