/* A thread that is cancelled while it is inside a hooked call leaves nothing held, and
 * nothing uncounted: it goes on to the call's end, and ends there. */
#include "stranger.h"

static CUresult linear(struct task *t) { return cuMemAlloc_v2(&t->p, 10 * MIB); }
static CUresult pooled(struct task *t) { return cuMemAllocAsync(&t->p, 10 * MIB, NULL); }
static CUresult load(struct task *t) { return cuModuleLoadData(&t->module, PTX(BIG_100M)); }
static CUresult create(struct task *t) { return cuCtxCreate_v2(&t->made, 0, 0); }
static CUresult retain(struct task *t) { return cuDevicePrimaryCtxRetain(&t->made, 1); }
static CUresult launch(struct task *t) { return cuGraphLaunch(t->exec, NULL); }
static CUresult release(struct task *t) { return cuMemFree_v2(t->p); }
static CUresult destroy(struct task *t) { return cuCtxDestroy_v2(t->made); }

/* The call that is cancelled, and the same again afterwards, by another thread. Only what
 * the driver did counts: whether the caller came to know of it is its own affair. */
static void cancel(const char *call, struct task first, struct task second, CUcontext c)
{
	void *end = NULL;
	fakegpu_hold(call, 1);
	task_begin(&first, c);
	EQ(fakegpu_held(call, 1, LONG), 1);
	EQ(pthread_cancel(first.thread), 0);
	for (unsigned ms = 0; ms < SOON && fakegpu_held(call, 1, 0) > 0; ms++)
		pause_ms(1); /* where it would be cancelled there, it is by now */
	fakegpu_open(call);
	EQ(pthread_join(first.thread, &end), 0);
	task_begin(&second, c);
	JOIN(&second);
	OK(second.result);
	BALANCED(0);
	BALANCED(1);
}

static CUgraphExec graph(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
		.bytesize = 40 * MIB,
	};
	CUgraphNode a, f;
	CUgraphExec e;
	CUgraph g;
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &params));
	OK(cuGraphAddMemFreeNode(&f, g, &a, 1, params.dptr));
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	return e;
}

static struct task freeing(void)
{
	struct task t = {.run = release};
	OK(cuMemAlloc_v2(&t.p, 20 * MIB));
	return t;
}

static struct task destroying(void)
{
	struct task t = {.run = destroy};
	CUcontext popped;
	OK(cuCtxCreate_v2(&t.made, 0, 0));
	OK(cuCtxPopCurrent_v2(&popped));
	return t;
}

#define CANCELLED(name, call, first, second)    \
	static void name(void)                  \
	{                                       \
		CUcontext c = start();          \
		cancel(call, first, second, c); \
	}

#define PLAIN(f) ((struct task){.run = f})

CANCELLED(in_linear, "cuMemAlloc", PLAIN(linear), PLAIN(linear))
CANCELLED(in_pool, "cuMemAllocFromPoolAsync", PLAIN(pooled), PLAIN(pooled))
CANCELLED(in_module, "cuModuleLoadData", PLAIN(load), PLAIN(load))
CANCELLED(in_create, "cuCtxCreate", PLAIN(create), PLAIN(create))
CANCELLED(in_retain, "cuDevicePrimaryCtxRetain", PLAIN(retain), PLAIN(retain))
CANCELLED(in_free, "cuMemFree", freeing(), freeing())
CANCELLED(in_destroy, "cuCtxDestroy", destroying(), destroying())
CANCELLED(in_launch, "cuGraphLaunch", ((struct task){.run = launch, .exec = graph()}), ((struct task){.run = launch, .exec = graph()}))

/* What the program has set for a thread counts after the call as it does without us. The
 * thread is cancelled inside it, at a gate. */
struct setting {
	int state, type;
	uint32_t came; /* how far the thread came */
	CUcontext context;
	uint32_t wrong; /* settings that were not as they had been; the thread counts, and nobody reads before its end */
	pid_t tid;      /* atomic */
};

enum { INSIDE, RETURNED, TESTED };

static void *settings_thread(void *arg)
{
	struct setting *s = arg;
	CUdeviceptr p;
	size_t size;
	int state, type;
	__atomic_store_n(&s->tid, gettid(), __ATOMIC_RELEASE);
	s->wrong += cuCtxSetCurrent(s->context) != CUDA_SUCCESS;
	pthread_setcancelstate(s->state, NULL);
	pthread_setcanceltype(s->type, NULL);
	s->wrong += cuMemGetInfo_v2(&size, &size) != CUDA_SUCCESS;
	pthread_setcanceltype(s->type, &type);
	s->wrong += type != s->type;
	(void)!cuMemAlloc_v2(&p, 10 * MIB);
	__atomic_store_n(&s->came, RETURNED, __ATOMIC_RELEASE);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
	s->wrong += (state != s->state) + (type != s->type);
	pthread_setcancelstate(state, NULL);
	pthread_testcancel();
	__atomic_store_n(&s->came, TESTED, __ATOMIC_RELEASE);
	return NULL;
}

static void with_setting(int state, int type, uint32_t comes)
{
	struct setting s = {state, type, INSIDE, start(), 0, 0};
	pthread_t thread;
	void *end = NULL;
	fakegpu_hold("cuMemAlloc", 1);
	EQ(pthread_create(&thread, NULL, settings_thread, &s), 0);
	EQ(fakegpu_held("cuMemAlloc", 1, LONG), 1);
	EQ(pthread_cancel(thread), 0);
	fakegpu_open("cuMemAlloc");
	EQ(pthread_join(thread, &end), 0);
	CHECK((end == PTHREAD_CANCELED) == (comes != TESTED));
	EQ(s.came, comes);
	EQ(s.wrong, 0);
	BALANCED(0);
}

static void deferred(void) { with_setting(PTHREAD_CANCEL_ENABLE, PTHREAD_CANCEL_DEFERRED, RETURNED); }
static void asynchronous(void) { with_setting(PTHREAD_CANCEL_ENABLE, PTHREAD_CANCEL_ASYNCHRONOUS, INSIDE); }
static void disabled(void) { with_setting(PTHREAD_CANCEL_DISABLE, PTHREAD_CANCEL_ASYNCHRONOUS, TESTED); }

/* The signal by which a thread is cancelled anywhere comes late, while the driver sleeps:
 * it was sent before the call began. */
enum { CANCEL_SIGNAL = 32 };

static void *cancelled_at_once(void *arg)
{
	pause();
	return arg;
}

static void late_signal(void)
{
	struct setting s = {PTHREAD_CANCEL_ENABLE, PTHREAD_CANCEL_ASYNCHRONOUS, INSIDE, start(), 0, 0};
	pthread_t thread;
	void *end = NULL;
	/* The C library takes the signal from a program's first cancellation on. */
	EQ(pthread_create(&thread, NULL, cancelled_at_once, NULL), 0);
	EQ(pthread_cancel(thread), 0);
	EQ(pthread_join(thread, NULL), 0);
	fakegpu_hold("cuMemAlloc:before", 1);
	EQ(pthread_create(&thread, NULL, settings_thread, &s), 0);
	EQ(fakegpu_held("cuMemAlloc:before", 1, LONG), 1);
	/* Again and again, as it must hold whatever the thread does at that moment. */
	unsigned sent = 0;
	while (sent < 100 && syscall(SYS_tgkill, getpid(), __atomic_load_n(&s.tid, __ATOMIC_ACQUIRE), CANCEL_SIGNAL) == 0) {
		sent++;
		pause_ms(1);
	}
	EQ(sent, 100); /* it lives */
	fakegpu_open("cuMemAlloc:before");
	EQ(pthread_join(thread, &end), 0);
	CHECK(end == PTHREAD_CANCELED);
	EQ(s.came, INSIDE);
	BALANCED(0);
}

RUN_PARTS(true, {"linear", in_linear}, {"pool", in_pool}, {"module", in_module}, {"create", in_create}, {"retain", in_retain},
	  {"free", in_free}, {"destroy", in_destroy}, {"launch", in_launch}, {"deferred", deferred}, {"asynchronous", asynchronous},
	  {"disabled", disabled}, {"late", late_signal})
