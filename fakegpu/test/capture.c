/* Stream capture: what it makes, and what ends it. */
#include <pthread.h>

#include "check.h"

#define US 1000ull /* in ns */
#define MS (1000 * US)

static CUcontext context;
static CUfunction function;
static CUstream s, t, independent;
static CUmemoryPool pool;

static CUresult launch(CUstream to) { return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, to, NULL, NULL); }
static CUresult begin(CUstream in) { return cuStreamBeginCapture_v2(in, CU_STREAM_CAPTURE_MODE_GLOBAL); }

static int status(CUstream of)
{
	int n = -1;
	OK(cuStreamIsCapturing(of, &n));
	return n;
}

static uint64_t submitted(void)
{
	struct fakegpu_engine_context c = {0};
	EQ(fakegpu_engine(0, NULL, &c, 1), 1);
	return c.submitted_ns;
}

/* Launches a graph once: what it takes on the engine. */
static uint64_t takes(CUgraph g)
{
	uint64_t before = submitted();
	CUgraphExec e;
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	OK(cuGraphLaunch(e, s));
	EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	CHECK(fakegpu_clock(100 * MS) > 0);
	OK(cuStreamSynchronize(s));
	OK(cuGraphExecDestroy(e));
	return submitted() - before;
}

static void makes_a_graph(void)
{
	uint64_t before = submitted(), number = 0;
	const CUgraphNode *after = NULL;
	const void *edges = &before;
	CUgraph g = NULL, now = NULL;
	CUdeviceptr p;
	size_t count = 9;
	int n = -1;
	char bytes[16] = "x";

	EQ(status(s), 0);
	OK(begin(s));
	EQ(begin(s), CUDA_ERROR_ILLEGAL_STATE);
	EQ(status(s), 1);
	OK(cuStreamGetCaptureInfo_v3(s, &n, &number, &now, &after, &edges, &count));
	CHECK(n == 1 && number > 0 && now != NULL && after == NULL && count == 0 && edges == NULL);
	OK(launch(s));
	OK(launch(s));
	OK(cuStreamGetCaptureInfo_v3(s, &n, &number, NULL, &after, NULL, &count));
	CHECK(after != NULL && count == 1);
	EQ(submitted(), before); /* nothing runs */
	OK(launch(independent)); /* another stream is not in it */
	EQ(submitted(), before + 1 * MS);
	OK(cuStreamEndCapture(s, &g));
	CHECK(g != NULL && g == now);
	EQ(status(s), 0);
	EQ(takes(g), 2 * MS);
	EQ(takes(g), 2 * MS);

	/* More of it, into the same graph; and copies take no time of the engine. */
	OK(cuMemAlloc_v2(&p, sizeof bytes));
	OK(cuStreamBeginCaptureToGraph(s, g, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuMemcpyHtoDAsync_v2(p, bytes, sizeof bytes, s));
	OK(cuMemsetD8Async(p, 0, sizeof bytes, s));
	OK(launch(s));
	OK(cuStreamEndCapture(s, &now));
	CHECK(now == g);
	EQ(takes(g), 3 * MS);
	OK(cuMemFree_v2(p));
	OK(cuGraphDestroy(g));
	EQ(cuStreamEndCapture(s, &g), CUDA_ERROR_ILLEGAL_STATE);

	/* The thread's own stream. */
	OK(cuStreamBeginCapture_v2_ptsz(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(launch(CU_STREAM_PER_THREAD));
	OK(cuStreamEndCapture_ptsz(NULL, &g));
	EQ(takes(g), 1 * MS);
	OK(cuGraphDestroy(g));
	EQ(begin(NULL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

/* Kernel nodes without capture, by either layout of their parameters. */
static void kernel_nodes(void)
{
	CUDA_KERNEL_NODE_PARAMS_v2 p = {.v1 = {function, 2, 2, 1, 32, 1, 1, 0, NULL, NULL}};
	CUgraphNode n;
	CUgraph g;
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddKernelNode(&n, g, NULL, 0, &p.v1));
	OK(cuGraphAddKernelNode_v2(&n, g, NULL, 0, &p));
	p.v1.func = NULL;
	p.kern = function;
	OK(cuGraphAddKernelNode_v2(&n, g, NULL, 0, &p));
	p.kern = NULL;
	EQ(cuGraphAddKernelNode_v2(&n, g, NULL, 0, &p), CUDA_ERROR_INVALID_VALUE);
	EQ(takes(g), 3 * MS);
	OK(cuGraphDestroy(g));
}

/* What is allocated in a capture is the graph's, and takes its bytes when that is launched. */
static void memory(void)
{
	uint64_t before = mine();
	CUdeviceptr p = 0, q = 0;
	CUgraphExec e;
	CUgraph g;
	OK(begin(s));
	OK(cuMemAllocAsync(&p, 40 * MIB, s));
	OK(cuMemAllocFromPoolAsync(&q, 4 * MIB, pool, s));
	CHECK(p != 0 && q != 0);
	OK(cuMemFreeAsync(q, s));
	OK(cuStreamEndCapture(s, &g));
	EQ(mine(), before);
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	EQ(mine(), before);
	OK(cuGraphLaunch(e, s));
	CHECK(mine() >= before + 40 * MIB);
	OK(cuMemFreeAsync(p, s)); /* outside of the capture: at once */
	OK(cuGraphExecDestroy(e));
	OK(cuGraphDestroy(g));
	OK(cuDeviceGraphMemTrim(0));
	EQ(mine(), before);
}

static void fork_and_join(void)
{
	CUevent a, b;
	CUgraph g;
	float ms;
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	OK(begin(s));
	OK(launch(s));
	unsigned long events = fakegpu_events();
	OK(cuEventRecord(a, s));
	OK(cuStreamWaitEvent(t, a, 0));
	EQ(status(t), 1);
	OK(launch(t));
	OK(cuEventRecord(b, t));
	OK(cuStreamWaitEvent(s, b, 0));
	OK(cuStreamEndCapture(s, &g));
	EQ(status(t), 0);
	EQ(takes(g), 2 * MS);
	OK(cuGraphDestroy(g));
	EQ(cuEventQuery(a), CUDA_ERROR_CAPTURED_EVENT);
	EQ(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_CAPTURED_EVENT);
	EQ(fakegpu_events(), events); /* what is captured is not recorded */
	OK(cuEventRecord(a, s));      /* and is as any other again */
	EQ(fakegpu_events(), events + 1);
	OK(cuEventQuery(a));

	/* Not joined again. */
	OK(begin(s));
	OK(cuEventRecord(a, s));
	OK(cuStreamWaitEvent(t, a, 0));
	OK(launch(t));
	EQ(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	CHECK(g == NULL && status(t) == 0);

	/* Ended in the wrong one. */
	OK(begin(s));
	OK(cuEventRecord(a, s));
	OK(cuStreamWaitEvent(t, a, 0));
	EQ(cuStreamEndCapture(t, &g), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	EQ(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

	/* Waiting for what is in no capture, or in another. */
	OK(cuEventRecord(b, t));
	OK(begin(s));
	EQ(cuStreamWaitEvent(s, b, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	EQ(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	OK(begin(s));
	OK(begin(t));
	OK(cuEventRecord(a, s));
	EQ(cuStreamWaitEvent(t, a, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
	EQ(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	EQ(cuStreamEndCapture(t, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	OK(cuEventDestroy_v2(a));
	OK(cuEventDestroy_v2(b));
}

static CUevent event;

/* Calls that end a capture in s, of the same thread. */
static CUresult query_stream(void) { return cuStreamQuery(s); }
static CUresult synchronize_stream(void) { return cuStreamSynchronize(s); }
static CUresult synchronize_context(void) { return cuCtxSynchronize(); }
static CUresult query_other_stream(void) { return cuStreamQuery(independent); }
static CUresult query_event(void) { return cuEventQuery(event); }
static CUresult pool_attribute(void)
{
	uint64_t n;
	return cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &n);
}
static CUresult pool_trim(void) { return cuMemPoolTrimTo(pool, 0); }
static CUresult allocate(void)
{
	CUdeviceptr p;
	CUresult r = cuMemAlloc_v2(&p, 512);
	if (r == CUDA_SUCCESS)
		OK(cuMemFree_v2(p));
	return r;
}
static CUresult legacy_launch(void) { return launch(NULL); }
static CUresult legacy_synchronize(void) { return cuStreamSynchronize(NULL); }

static const struct call {
	CUresult (*run)(void);
	CUresult error;
	bool unsafe; /* allowed to a relaxed thread */
} calls[] = {
	{query_stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, false},
	{synchronize_stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, false},
	{synchronize_context, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, false},
	{legacy_launch, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, false},
	{legacy_synchronize, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, false},
	{query_other_stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
	{query_event, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
	{pool_attribute, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
	{pool_trim, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
	{allocate, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
};

static CUresult run_as(CUresult (*run)(void), CUstreamCaptureMode mode)
{
	CUresult r;
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	r = run();
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	return r;
}

struct elsewhere {
	const struct call *call;
	CUstreamCaptureMode mode;
	CUresult result;
};

static void *in_a_thread(void *arg)
{
	struct elsewhere *e = arg;
	cuCtxSetCurrent(context);
	e->result = run_as(e->call->run, e->mode);
	return NULL;
}

static CUresult elsewhere(const struct call *c, CUstreamCaptureMode mode)
{
	struct elsewhere e = {c, mode, 0};
	pthread_t thread;
	EQ(pthread_create(&thread, NULL, in_a_thread, &e), 0);
	EQ(pthread_join(thread, NULL), 0);
	return e.result;
}

static void ended(bool want)
{
	CUgraph g;
	EQ(status(s), want ? 2 : 1);
	if (want)
		EQ(launch(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	EQ(cuStreamEndCapture(s, &g), want ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
	EQ(g != NULL, !want);
	EQ(status(s), 0);
	if (g != NULL)
		OK(cuGraphDestroy(g));
}

static void what_ends_it(void)
{
	const CUstreamCaptureMode GLOBAL = CU_STREAM_CAPTURE_MODE_GLOBAL, LOCAL = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
				  RELAXED = CU_STREAM_CAPTURE_MODE_RELAXED;
	OK(cuEventCreate(&event, 0));
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		const struct call *c = &calls[i];
		OK(begin(s));
		EQ(c->run(), c->error);
		ended(true);
		OK(begin(s));
		EQ(run_as(c->run, RELAXED), c->unsafe ? CUDA_SUCCESS : c->error);
		ended(!c->unsafe);
		if (!c->unsafe)
			continue;
		/* By another thread: only where both mind. */
		OK(begin(s));
		EQ(elsewhere(c, GLOBAL), c->error);
		ended(true);
		OK(begin(s));
		OK(elsewhere(c, LOCAL));
		OK(elsewhere(c, RELAXED));
		ended(false);
		OK(cuStreamBeginCapture_v2(s, LOCAL));
		OK(elsewhere(c, GLOBAL));
		EQ(run_as(c->run, LOCAL), c->error);
		ended(true);
		OK(cuStreamBeginCapture_v2(s, RELAXED));
		OK(c->run());
		OK(elsewhere(c, GLOBAL));
		ended(false);
	}
	/* The legacy stream may be used beside one that does not wait for it, and asking ends nothing. */
	int n;
	CUgraph g;
	OK(begin(s));
	EQ(cuStreamIsCapturing(NULL, &n), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	ended(false);
	OK(begin(independent));
	OK(launch(NULL));
	CHECK(fakegpu_clock(100 * MS) > 0);
	OK(cuStreamEndCapture(independent, &g));
	OK(cuGraphDestroy(g));
}

static CUresult end_capture(void)
{
	CUgraph g;
	return cuStreamEndCapture(s, &g);
}

static void ends_elsewhere(void)
{
	static const struct call c = {.run = end_capture};
	CUcontext other;
	CUstream its;
	OK(begin(s));
	EQ(elsewhere(&c, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	ended(false);
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(elsewhere(&c, CU_STREAM_CAPTURE_MODE_GLOBAL));
	EQ(status(s), 0);

	/* A stream, or a context, that goes takes its capture with it. */
	OK(cuStreamCreate(&its, 0));
	OK(begin(its));
	OK(cuStreamDestroy_v2(its));
	OK(allocate());
	OK(cuCtxCreate_v2(&other, 0, 0));
	OK(cuStreamCreate(&its, 0));
	OK(begin(its));
	OK(cuCtxDestroy_v2(other));
	OK(cuCtxSetCurrent(context));
	OK(allocate());
	OK(cuStreamCreate(&its, 0));
	EQ(status(its), 0);
}

static int all(void)
{
	static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry one() { ret; }\n";
	CUmodule m;
	context = start();
	OK(cuModuleLoadData(&m, ptx));
	OK(cuModuleGetFunction(&function, m, "one"));
	OK(cuStreamCreate(&s, 0));
	OK(cuStreamCreate(&t, 0));
	OK(cuStreamCreate(&independent, 1));
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	makes_a_graph();
	kernel_nodes();
	memory();
	CHECK(fakegpu_clock(100 * MS) > 0);
	fork_and_join();
	what_ends_it();
	ends_elsewhere();
	return checks_failed > 0;
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1)
		return all();
	EQ(AGAIN("all", "FAKEGPU_CLOCK", "0", "FAKEGPU_KERNEL", "one:1000"), 0);
	return FINISH();
}
