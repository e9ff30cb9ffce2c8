/* Calls that are slow in the middle, by FAKEGPU_SLOW and at gates, and full queues. */
#include <pthread.h>
#include <time.h>

#include "check.h"

enum { LONG = 20000 }; /* ms, for what must come */

static CUcontext context;

struct call {
	CUresult (*run)(struct call *c);
	CUdeviceptr p;
	CUcontext context;
	CUgraphExec exec;
	CUresult result;
	int returned; /* atomic */
	pthread_t thread;
};

static void *calls(void *arg)
{
	struct call *c = arg;
	cuCtxSetCurrent(context);
	c->result = c->run(c);
	__atomic_store_n(&c->returned, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void begin(struct call *c) { EQ(pthread_create(&c->thread, NULL, calls, c), 0); }
static int returned(struct call *c) { return __atomic_load_n(&c->returned, __ATOMIC_ACQUIRE); }

static CUresult allocate(struct call *c) { return cuMemAlloc_v2(&c->p, 10 * MIB); }
static CUresult allocate_async(struct call *c) { return cuMemAllocAsync(&c->p, 10 * MIB, NULL); }
static CUresult create(struct call *c) { return cuCtxCreate_v2(&c->context, 0, 0); }
static CUresult launch(struct call *c) { return cuGraphLaunch(c->exec, NULL); }

/* A call waits at its gate with what it has taken by then, and others pass. */
static void held(const char *name, CUresult (*run)(struct call *), uint64_t takes)
{
	struct call a = {.run = run}, b = {.run = run};
	uint64_t before = mine();
	fakegpu_hold(name, 1);
	begin(&a);
	EQ(fakegpu_held(name, 1, LONG), 1);
	EQ(mine() - before, takes);
	CHECK(!returned(&a));
	if (strncmp(name, "pool", 4) != 0) { /* where a lock is held */
		begin(&b);
		EQ(pthread_join(b.thread, NULL), 0);
		EQ(b.result, CUDA_SUCCESS);
		CHECK(!returned(&a));
		EQ(fakegpu_held(name, 2, 0), 1);
	}
	fakegpu_open(name);
	EQ(pthread_join(a.thread, NULL), 0);
	EQ(a.result, CUDA_SUCCESS);
	EQ(fakegpu_held(name, 1, 0), 0);
	for (int i = 0; i < 2; i++) {
		struct call *c = i == 0 ? &a : &b;
		if (c->context != NULL)
			OK(cuCtxDestroy_v2(c->context));
		if (c->p != 0)
			OK(cuMemFree_v2(c->p));
	}
	OK(cuCtxSynchronize());
	EQ(mine(), before);
}

/* A thread that is cancelled at a gate leaves nothing behind there. */
static void cancelled(void)
{
	struct call a = {.run = allocate};
	void *end;
	fakegpu_hold("cuMemAlloc:before", 1);
	begin(&a);
	EQ(fakegpu_held("cuMemAlloc:before", 1, LONG), 1);
	EQ(pthread_cancel(a.thread), 0);
	EQ(pthread_join(a.thread, &end), 0);
	CHECK(end == PTHREAD_CANCELED);
	EQ(fakegpu_held("cuMemAlloc:before", 1, 0), 0);
	fakegpu_open("cuMemAlloc:before");
}

static int gates(void)
{
	context = start();
	held("cuMemAlloc:before", allocate, 0);
	held("cuMemAlloc", allocate, 10 * MIB);
	held("cuMemAllocAsync", allocate_async, 32 * MIB);
	held("poolGrow", allocate_async, 32 * MIB);
	held("poolAlloc", allocate_async, 32 * MIB);
	held("cuCtxCreate", create, 300 * MIB);
	cancelled();
	return checks_failed > 0;
}

/* Every part of the name's microseconds passes before the call returns. */
static int slow(void)
{
	struct timespec a, b;
	CUdeviceptr p;
	start();
	clock_gettime(CLOCK_MONOTONIC, &a);
	OK(cuMemAlloc_v2(&p, 5));
	OK(cuMemAllocAsync(&p, 5, NULL));
	clock_gettime(CLOCK_MONOTONIC, &b);
	return (b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000 >= 900 ? 0 : 1;
}

/* One launch fills the queue; the next waits until a thread waits for the stream. */
static int queue(void)
{
	struct call a = {.run = launch};
	CUgraphNode n;
	CUgraph g;
	CUstream s;
	context = start();
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddEmptyNode(&n, g, NULL, 0));
	OK(cuGraphInstantiateWithFlags(&a.exec, g, 0));
	OK(cuStreamCreate(&s, 0));
	for (int i = 0; i < 2; i++) {
		OK(cuGraphLaunch(a.exec, NULL));
		EQ(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
		a.returned = 0;
		begin(&a);
		EQ(fakegpu_held("queue", 1, LONG), 1);
		CHECK(!returned(&a));
		OK(cuGraphLaunch(a.exec, s)); /* another stream has room */
		OK(cuStreamSynchronize(s));
		OK(cuStreamQuery(s));
		EQ(fakegpu_held("queue", 1, 0), 1);
		OK(i == 0 ? cuStreamSynchronize(NULL) : cuCtxSynchronize());
		EQ(pthread_join(a.thread, NULL), 0);
		EQ(a.result, CUDA_SUCCESS);
		OK(cuStreamSynchronize(NULL));
	}
	return checks_failed > 0;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return strcmp(argv[1], "gates") == 0 ? gates() : strcmp(argv[1], "slow") == 0 ? slow() : queue();
	EQ(AGAIN("gates", "FAKEGPU", "small:1g"), 0);
	EQ(AGAIN("slow", "FAKEGPU_SLOW", "cuMemAlloc:500,poolGrow:200,poolAlloc:100,cuMemAllocAsync:100:before"), 0);
	EQ(AGAIN("queue", "FAKEGPU_QUEUE", "1"), 0);
	return FINISH();
}
