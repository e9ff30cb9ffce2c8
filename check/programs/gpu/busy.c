/* A CUDA program that keeps the device busy with equal pieces of work, and says how many were
 * done when. What several such programs get done side by side, compared with one alone, is what
 * each had of the device's time.
 *
 * It reads commands from standard input, one a line, and ends with the input:
 *
 *   init                cuInit, the primary context of device 0, and the code
 *   calibrate US        finds how many rounds a kernel must make to take US microseconds alone.
 *                       Answers them, and the nanoseconds that a kernel took
 *   size ROUNDS NS [NODES]
 *                       kernels of ROUNDS from now on, which take NS alone; with NODES, in graphs
 *                       of so many kernels
 *   work AT MS STEP     from the nanosecond AT of CLOCK_MONOTONIC for MS milliseconds, has kernels
 *                       or graphs queued all the while. Answers the longest time without a finished
 *                       one and the time until the first, in nanoseconds, then how many kernels
 *                       were finished in each STEP milliseconds
 *   latency AT MS       in that time launches a kernel again and again, after pauses, and waits for
 *                       it. Answers the median and the 99th percentile in nanoseconds, and how many
 *   quit
 *
 * It answers each with one line: `ok` and numbers, or `error`, the driver's code and the call.
 *
 * Finished work is looked for by another thread than the one that launches: a launch may wait. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>

#include "commands.h"

/* Work is queued for about AHEAD, in at most DEPTH pieces and at least two: enough to leave no
 * gap, and not so much that a killed or ended program would hold the device for long. */
enum { DEPTH = 256, STEPS = 4096, SAMPLES = 1 << 14, NODES = 64, BLOCKS = 264, THREADS = 128 };
enum { NOT_READY = 600 };                               /* CUDA_ERROR_NOT_READY */
static const uint64_t AHEAD = 50000000, PAUSE = 100000; /* nanoseconds */

/* A chain of multiplications, each of which needs the one before: a fixed amount of work, which
 * no compiler shortens. The result is stored where it never comes up, so that it is needed. */
static const char ptx[] = ".version 6.4\n.target sm_50\n.address_size 64\n"
			  ".visible .entry spin(.param .u64 rounds, .param .u64 out)\n"
			  "{\n"
			  "	.reg .u64 %n, %i, %o;\n"
			  "	.reg .u32 %x;\n"
			  "	.reg .pred %p;\n"
			  "	ld.param.u64 %n, [rounds];\n"
			  "	ld.param.u64 %o, [out];\n"
			  "	mov.u64 %i, 0;\n"
			  "	mov.u32 %x, %tid.x;\n"
			  "again:\n"
			  "	mad.lo.u32 %x, %x, 1664525, 1013904223;\n"
			  "	mad.lo.u32 %x, %x, 22695477, 1;\n"
			  "	mad.lo.u32 %x, %x, 1103515245, 12345;\n"
			  "	mad.lo.u32 %x, %x, 134775813, 1;\n"
			  "	add.u64 %i, %i, 1;\n"
			  "	setp.lt.u64 %p, %i, %n;\n"
			  "	@%p bra again;\n"
			  "	setp.eq.u32 %p, %x, 305419896;\n"
			  "	@%p st.global.u32 [%o], %x;\n"
			  "	ret;\n"
			  "}\n";

/* As the driver has it since CUDA 10. */
typedef struct {
	CUfunction func;
	unsigned grid[3], block[3], shared;
	void **parameters, **extra;
} KERNEL_NODE;
_Static_assert(sizeof(KERNEL_NODE) == 56, "ABI");

typedef CUresult (*add_kernel_call)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const KERNEL_NODE *);

static CUfunction spin;
static CUdeviceptr out;
static CUevent events[DEPTH];
static uint64_t rounds = 1;
static uint64_t piece = 200000; /* nanoseconds that a piece takes alone, about */
static size_t nodes;            /* of the graph, or 0 */
static CUgraphExec graph;

static CUresult prepare(void)
{
	CUresult r = load_code(ptx, "spin", &spin);
	if (!r)
		r = CALL(cuMemAlloc_v2, &out, 4096);
	for (int i = 0; !r && i < DEPTH; i++)
		r = CALL(cuEventCreate, &events[i], CU_EVENT_DISABLE_TIMING);
	return r;
}

static CUresult launch_kernel(void)
{
	void *parameters[] = {&rounds, &out};
	return CALL(cuLaunchKernel, spin, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL);
}

static CUresult launch_piece(void) { return nodes ? CALL(cuGraphLaunch, graph, stream) : launch_kernel(); }

/* calibrate times some kernels in a row, until they take long enough to tell. */
static CUresult calibrate(uint64_t us, uint64_t *took)
{
	enum { KERNELS = 20 };
	CUresult r = CUDA_SUCCESS;
	rounds = 1000;
	for (int i = 0; !r && i < 4; i++) {
		uint64_t from = 0;
		for (int k = -2; !r && k < KERNELS; k++) { /* the first two are not counted */
			if (k == 0) {
				r = CALL(cuStreamSynchronize, stream);
				from = now();
			}
			if (!r)
				r = launch_kernel();
		}
		if (!r)
			r = CALL(cuStreamSynchronize, stream);
		*took = (now() - from) / KERNELS;
		if (i < 3)
			rounds = rounds * us * 1000 / (*took + 1) + 1;
	}
	return r;
}

/* resize sets the size of kernels, and makes the graph. Its kernels run one after the other. */
static CUresult resize(uint64_t new_rounds, size_t count)
{
	CUgraph made;
	CUgraphNode before = NULL;
	CUresult r = graph ? CALL(cuGraphExecDestroy, graph) : CUDA_SUCCESS;
	void *parameters[] = {&rounds, &out};
	KERNEL_NODE node = {spin, {BLOCKS, 1, 1}, {THREADS, 1, 1}, 0, parameters, NULL};
	graph = NULL;
	rounds = new_rounds;
	nodes = count;
	if (r || !count)
		return r;
	add_kernel_call add = (add_kernel_call)dlsym(RTLD_DEFAULT, "cuGraphAddKernelNode");
	last_call = "cuGraphAddKernelNode";
	if (!add)
		return CUDA_ERROR_NOT_FOUND;
	r = CALL(cuGraphCreate, &made, 0);
	for (size_t i = 0; !r && i < count; i++) {
		last_call = "cuGraphAddKernelNode";
		CUgraphNode next;
		r = add(&next, made, i ? &before : NULL, i > 0, &node);
		before = next;
	}
	if (!r)
		r = CALL(cuGraphInstantiateWithFlags, &graph, made, 0);
	return r ? r : CALL(cuGraphDestroy, made);
}

/* One run of work. submitted is written by the thread that launches, the rest by the other. */
static struct {
	uint64_t from, until, step; /* nanoseconds */
	atomic_ulong submitted, finished;
	atomic_int result;
	uint64_t gap, first, last;
	unsigned count[STEPS];
} run;

/* finish counts a piece that was seen to be finished. */
static void finish_piece(uint64_t at)
{
	uint64_t n = (at - run.from) / run.step;
	if (at >= run.until)
		return;
	if (run.last == 0)
		run.first = at - run.from;
	if (at - (run.last ? run.last : run.from) > run.gap)
		run.gap = at - (run.last ? run.last : run.from);
	run.last = at;
	if (n < STEPS)
		run.count[n] += nodes ? (unsigned)nodes : 1;
}

static void *watch(void *arg)
{
	CUresult r = CUDA_SUCCESS;
	CUcontext primary;
	(void)arg;
	if (!(r = cuDevicePrimaryCtxRetain(&primary, device)))
		r = cuCtxSetCurrent(primary);
	while (!r) {
		unsigned long done = run.finished;
		if (done < run.submitted && !(r = cuEventQuery(events[done % DEPTH]))) {
			finish_piece(now());
			run.finished = done + 1;
			continue;
		}
		if (r == NOT_READY)
			r = CUDA_SUCCESS;
		if (!r && done == run.submitted && now() >= run.until)
			break; /* nothing is launched any more, and all is done */
		if (!r)
			sleep_until(now() + PAUSE);
	}
	if (r && !run.result)
		run.result = (int)r;
	cuDevicePrimaryCtxRelease_v2(device);
	return NULL;
}

static CUresult work(uint64_t at, uint64_t ms, uint64_t step_ms)
{
	pthread_t watcher;
	CUresult r = CUDA_SUCCESS;
	uint64_t depth = AHEAD / (piece * (nodes ? nodes : 1));
	depth = depth < 2 ? 2 : depth > DEPTH ? DEPTH : depth;
	memset(&run, 0, sizeof run);
	run.from = at;
	run.until = at + ms * 1000000;
	run.step = step_ms * 1000000;
	sleep_until(at);
	last_call = "pthread_create";
	if (pthread_create(&watcher, NULL, watch, NULL))
		return CUDA_ERROR_OUT_OF_MEMORY;
	while (!r && !run.result && now() < run.until) {
		unsigned long next = run.submitted;
		if (next - run.finished >= depth) {
			sleep_until(now() + PAUSE);
			continue;
		}
		if (!(r = launch_piece()))
			r = CALL(cuEventRecord, events[next % DEPTH], stream);
		if (!r)
			run.submitted = next + 1;
	}
	if (r)
		run.until = 0; /* the watcher ends when it has seen what there is */
	pthread_join(watcher, NULL);
	if (!r && run.result)
		last_call = "cuEventQuery";
	return r ? r : (CUresult)run.result;
}

static int ascending(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

/* latency pauses for a random 3 to 10 ms, so as not to match the device's regular turns. */
static CUresult latency(uint64_t at, uint64_t ms, uint64_t *median, uint64_t *high, size_t *count)
{
	static uint64_t took[SAMPLES];
	uint64_t until = at + ms * 1000000, pause = 88172645463325252u;
	CUresult r = CUDA_SUCCESS;
	size_t n = 0;
	sleep_until(at);
	while (!r && n < SAMPLES && now() < until) {
		pause ^= pause << 13;
		pause ^= pause >> 7;
		pause ^= pause << 17;
		sleep_until(now() + 3000000 + pause % 7000000);
		uint64_t from = now();
		if (!(r = launch_kernel()))
			r = CALL(cuStreamSynchronize, stream);
		took[n++] = now() - from;
	}
	if (!r && !n)
		last_call = "latency";
	if (!n)
		return r ? r : CUDA_ERROR_NOT_FOUND;
	qsort(took, n, sizeof *took, ascending);
	*median = took[n / 2];
	*high = took[n * 99 / 100];
	*count = n;
	return r;
}

static CUresult stop(void)
{
	CUresult r = resize(rounds, 0);
	for (int i = 0; !r && context && i < DEPTH; i++)
		r = CALL(cuEventDestroy_v2, events[i]);
	if (!r && context)
		r = CALL(cuStreamDestroy_v2, stream);
	if (!r && context)
		r = CALL(cuMemFree_v2, out);
	if (!r && context)
		r = CALL(cuModuleUnload, code);
	if (!r && context)
		r = CALL(cuDevicePrimaryCtxRelease_v2, device);
	return r;
}

static void say_work(CUresult r, uint64_t steps)
{
	static char text[STEPS * 11 + 64];
	int at = snprintf(text, sizeof text, " %" PRIu64 " %" PRIu64, run.gap, run.first);
	for (uint64_t i = 0; i < steps; i++)
		at += snprintf(text + at, sizeof text - (size_t)at, " %u", run.count[i]);
	say(r, "%s", text);
}

/* carry_out carries out a command. It returns false if there is no such command. */
static bool carry_out(const char *line)
{
	uint64_t at, ms, step_ms, us, median = 0, high = 0, took = 0;
	size_t n = 0;
	CUresult r;
	if (!strcmp(line, "init")) {
		say(start_driver(prepare), "%s", "");
	} else if (sscanf(line, "calibrate %" SCNu64, &us) == 1 && us > 0) {
		r = calibrate(us, &took);
		say(r, " %" PRIu64 " %" PRIu64, rounds, took);
	} else if (sscanf(line, "size %" SCNu64 " %" SCNu64 " %zu", &us, &took, &n) >= 2 && us > 0 && took > 0 && n <= NODES) {
		piece = took;
		say(resize(us, n), "%s", "");
	} else if (sscanf(line, "work %" SCNu64 " %" SCNu64 " %" SCNu64, &at, &ms, &step_ms) == 3 && step_ms > 0 && ms / step_ms < STEPS) {
		r = work(at, ms, step_ms);
		say_work(r, ms / step_ms);
	} else if (sscanf(line, "latency %" SCNu64 " %" SCNu64, &at, &ms) == 2) {
		r = latency(at, ms, &median, &high, &n);
		say(r, " %" PRIu64 " %" PRIu64 " %zu", median, high, n);
	} else if (!strcmp(line, "quit")) {
		say(stop(), "%s", "");
	} else {
		return false;
	}
	return true;
}

int main(void) { return follow_commands(carry_out); }
