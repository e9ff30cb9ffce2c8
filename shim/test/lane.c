/* Memory that the library maps itself (RATION_SLEEP_FAST): charged and freed as the driver's own, and
 * what a program sees of it. internal/cli/lane_test.go puts programs with such memory to sleep. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "child.h"
#include "held.h"
#include "../region/atomics.h"

/* The library starts its thread by the program's function, which may fail. */
static bool no_threads;

__attribute__((visibility("default"))) int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *arg)
{
	int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	if (__atomic_load_n(&no_threads, __ATOMIC_RELAXED))
		return EAGAIN;
	*(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
	return real(t, a, run, arg);
}

/* The begin of a capture waits for frees by such calls, 10 ms each: here they last as long as the test says. */
enum { WAITS_LAST, WAITS_PASS, WAITS_STAND };
static int waits_how;       /* atomic */
static unsigned waits_made; /* atomic */

/* It reads six arguments, however many there are. */
__attribute__((visibility("default"), no_sanitize("address"))) long syscall(long number, ...)
{
	static void *found; /* atomic */
	long (*real)(long, ...), a[6];
	va_list list;
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	void *f = __atomic_load_n(&found, __ATOMIC_RELAXED);
	if (!f)
		__atomic_store_n(&found, f = dlsym(RTLD_NEXT, "syscall"), __ATOMIC_RELAXED);
	*(void **)&real = f;
	const struct timespec *t = (const struct timespec *)a[3];
	int how = __atomic_load_n(&waits_how, __ATOMIC_ACQUIRE);
	if (how == WAITS_LAST || number != SYS_futex || a[1] != FUTEX_WAIT_PRIVATE || !t || t->tv_sec || t->tv_nsec != 10000000)
		return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	__atomic_fetch_add(&waits_made, 1, __ATOMIC_RELEASE);
	while (__atomic_load_n(&waits_how, __ATOMIC_ACQUIRE) == WAITS_STAND)
		sched_yield();
	errno = ETIMEDOUT;
	return -1;
}

/* range_of returns the size of the memory at an address: in whole blocks if the library mapped it. */
static uint64_t range_of(CUdeviceptr p)
{
	CUdeviceptr base = 0;
	size_t size = 0;
	OK(cuMemGetAddressRange_v2(&base, &size, p));
	EQ(base, p);
	return size;
}

static uint64_t cannot(void)
{
	struct region *r = region_here();
	for (unsigned i = 0; i < RATION_SLOTS; i++)
		if (r->m->slots[i].pid == (uint64_t)getpid())
			return r->m->slots[i].cannot;
	return UINT64_MAX;
}

static void sizes(void)
{
	static const uint64_t some[] = {1, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 33 * MIB + 7};
	enum { N = sizeof some / sizeof *some };
	CUdeviceptr p[N];
	CUipcMemHandle ipc;
	unsigned type = 0;
	for (int i = 0; i < N; i++) {
		OK(cuMemAlloc_v2(&p[i], some[i]));
		SAME();
	}
	for (int i = 2; i < N; i++) {
		EQ(range_of(p[i]), (some[i] + 2 * MIB - 1) / (2 * MIB) * (2 * MIB));
		EQ(cuIpcGetMemHandle(&ipc, p[i]), CUDA_ERROR_INVALID_VALUE);
		OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p[i]));
		EQ(type, CU_MEMORYTYPE_DEVICE);
	}
	EQ(cannot(), 0);
	EQ(range_of(p[0]), 1);
	for (int i = 0; i < N; i++) {
		OK(i % 2 ? cuMemFree_v2(p[i]) : cuMemFreeAsync(p[i], NULL));
		OK(cuCtxSynchronize());
		SAME();
	}
	EQ(held(RATION_DATA), 0);
}

static void limit(void)
{
	static CUdeviceptr p[256];
	CUresult result = CUDA_SUCCESS;
	int n = 0;
	while (n < 256 && (result = cuMemAlloc_v2(&p[n], 3 * MIB)) == CUDA_SUCCESS)
		n++;
	EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
	EQ(n, (256 - 4) / 4);
	SAME();
	while (n > 0)
		OK(cuMemFree_v2(p[--n]));
	SAME();
}

/* A handle would keep the memory on the device: as of other memory of cuMemAlloc, there is none. */
static void handles(void)
{
	CUmemGenericAllocationHandle h;
	CUdeviceptr p;
	OK(cuMemAlloc_v2(&p, 4 * MIB));
	EQ(cuMemRetainAllocationHandle(&h, (void *)(uintptr_t)(p + 3 * MIB)), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree_v2(p));
	SAME();
}

static void *free_it(void *p)
{
	OK(cuCtxSetCurrent(*(CUcontext *)((void **)p)[1]));
	OK(cuMemFree_v2(*(CUdeviceptr *)((void **)p)[0]));
	return NULL;
}

/* A free waits for the work of its context before the memory goes. */
static void waits(CUcontext context)
{
	CUdeviceptr p;
	void *args[2] = {&p, &context};
	pthread_t t;
	OK(cuMemAlloc_v2(&p, 4 * MIB));
	fakegpu_hold("cuCtxSynchronize", 1);
	EQ(pthread_create(&t, NULL, free_it, args), 0);
	EQ(fakegpu_held("cuCtxSynchronize", 1, 20000), 1);
	EQ(truth(FAKEGPU_DATA), 4 * MIB);
	fakegpu_open("cuCtxSynchronize");
	pthread_join(t, NULL);
	SAME();
	EQ(truth(FAKEGPU_DATA), 0);
}

static CUstream begin_capture(void)
{
	CUstream s = NULL;
	OK(cuStreamCreate(&s, 1 /* not blocking */));
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	return s;
}

static void end_capture(CUstream s)
{
	CUgraph g = NULL;
	OK(cuStreamEndCapture(s, &g));
	CHECK(g != NULL);
	OK(cuGraphDestroy(g));
}

/* A free is no error while a stream is captured, and does not end the capture. The memory goes, and
 * is returned, with the end of the last capture. */
static void captures(CUcontext context)
{
	CUdeviceptr p, other;
	CUcontext c;
	OK(cuMemAlloc_v2(&p, 4 * MIB));
	OK(cuMemAlloc_v2(&other, 6 * MIB));
	CUstream s = begin_capture(), second = begin_capture();
	OK(cuMemFree_v2(p));
	OK(cuMemFreeAsync(other, NULL));
	EQ(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	SAME();
	EQ(truth(FAKEGPU_DATA), 10 * MIB);
	OK(cuStreamDestroy_v2(second)); /* ends its capture, too */
	EQ(truth(FAKEGPU_DATA), 10 * MIB);
	end_capture(s);
	SAME();
	EQ(truth(FAKEGPU_DATA), 0);
	OK(cuStreamDestroy_v2(s));
	OK(cuMemAlloc_v2(&other, 6 * MIB));
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(cuMemAlloc_v2(&p, 4 * MIB));
	begin_capture();
	OK(cuMemFree_v2(p));
	OK(cuMemFree_v2(other));
	EQ(truth(FAKEGPU_DATA), 10 * MIB);
	OK(cuCtxDestroy_v2(c)); /* ends the capture, too */
	OK(cuCtxSetCurrent(context));
	SAME();
	EQ(truth(FAKEGPU_DATA), 0);
	EQ(cannot(), 0);
}

/* A capture on a thread's own default stream ends with its context, too. */
static void own_capture(CUcontext context)
{
	CUdeviceptr p;
	CUcontext c;
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(cuMemAlloc_v2(&p, 4 * MIB));
	OK(cuStreamBeginCapture_v2_ptsz(NULL, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuMemFree_v2(p));
	EQ(truth(FAKEGPU_DATA), 4 * MIB);
	OK(cuCtxDestroy_v2(c));
	OK(cuCtxSetCurrent(context));
	SAME();
	EQ(truth(FAKEGPU_DATA), 0);
	EQ(cannot(), 0);
}

/* A stream that has joined a capture is destroyed, and with the stand-in driver the capture has ended. It counts no
 * more, and neither does the end of its context: another one is still counted. */
static void joined(CUcontext context)
{
	CUdeviceptr p;
	CUcontext c;
	CUstream side;
	CUevent e;
	OK(cuCtxCreate_v2(&c, 0, 0));
	CUstream s = begin_capture();
	OK(cuStreamCreate(&side, 1));
	OK(cuEventCreate(&e, 0));
	OK(cuEventRecord(e, s));
	OK(cuStreamWaitEvent(side, e, 0));
	EQ(cannot(), RATION_CANNOT_CAPTURE);
	OK(cuStreamDestroy_v2(side));
	EQ(cannot(), 0);
	OK(cuCtxSetCurrent(context));
	OK(cuMemAlloc_v2(&p, 4 * MIB));
	s = begin_capture();
	OK(cuCtxDestroy_v2(c));
	EQ(cannot(), RATION_CANNOT_CAPTURE);
	OK(cuMemFree_v2(p));
	EQ(truth(FAKEGPU_DATA), 4 * MIB);
	end_capture(s);
	OK(cuStreamDestroy_v2(s));
	SAME();
	EQ(truth(FAKEGPU_DATA), 0);
	EQ(cannot(), 0);
}

static bool capture_begun;

static void *capture_it(void *context)
{
	OK(cuCtxSetCurrent(context));
	CUstream s = begin_capture();
	__atomic_store_n(&capture_begun, true, __ATOMIC_RELEASE);
	end_capture(s);
	OK(cuStreamDestroy_v2(s));
	return NULL;
}

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); }

/* A capture does not begin while a free waits for the context: that wait would fail. */
static void capture_waits(CUcontext context)
{
	CUdeviceptr p;
	void *args[2] = {&p, &context};
	pthread_t frees, captures;
	OK(cuMemAlloc_v2(&p, 4 * MIB));
	fakegpu_hold("cuCtxSynchronize:before", 1);
	EQ(pthread_create(&frees, NULL, free_it, args), 0);
	unsigned waiting = fakegpu_held("cuCtxSynchronize:before", 1, 20000);
	EQ(waiting, 1);
	__atomic_store_n(&waits_how, WAITS_STAND, __ATOMIC_RELEASE);
	EQ(pthread_create(&captures, NULL, capture_it, context), 0);
	while (!__atomic_load_n(&waits_made, __ATOMIC_ACQUIRE) && !__atomic_load_n(&capture_begun, __ATOMIC_ACQUIRE))
		nap();
	EQ(cannot(), RATION_CANNOT_CAPTURE);
	CHECK(!__atomic_load_n(&capture_begun, __ATOMIC_ACQUIRE));
	fakegpu_open("cuCtxSynchronize:before");
	pthread_join(frees, NULL);
	__atomic_store_n(&waits_how, WAITS_LAST, __ATOMIC_RELEASE);
	pthread_join(captures, NULL);
	EQ(__atomic_load_n(&waits_made, __ATOMIC_ACQUIRE), 1);
	SAME();
	EQ(truth(FAKEGPU_DATA), 0);
}

/* But not for longer than a second: what the free waits for may need the thread that captures. */
static void capture_goes_on(CUcontext context)
{
	CUdeviceptr p;
	void *args[2] = {&p, &context};
	pthread_t frees;
	OK(cuMemAlloc_v2(&p, 4 * MIB));
	fakegpu_hold("cuCtxSynchronize", 1); /* it has begun to wait */
	EQ(pthread_create(&frees, NULL, free_it, args), 0);
	EQ(fakegpu_held("cuCtxSynchronize", 1, 20000), 1);
	__atomic_store_n(&waits_made, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&waits_how, WAITS_PASS, __ATOMIC_RELEASE);
	CUstream s = begin_capture();
	EQ(__atomic_load_n(&waits_made, __ATOMIC_ACQUIRE), 100);
	__atomic_store_n(&waits_how, WAITS_LAST, __ATOMIC_RELEASE);
	fakegpu_open("cuCtxSynchronize");
	pthread_join(frees, NULL);
	end_capture(s);
	OK(cuStreamDestroy_v2(s));
	SAME();
	EQ(truth(FAKEGPU_DATA), 0);
}

static CUdeviceptr freed_late;
static bool destroyed;

static void *free_late(void *context)
{
	OK(cuCtxSetCurrent(context));
	CUstream s = begin_capture();
	OK(cuMemFree_v2(freed_late));
	end_capture(s);
	OK(cuStreamDestroy_v2(s));
	return NULL;
}

static void *destroy_it(void *context)
{
	OK(cuCtxDestroy_v2(context));
	__atomic_store_n(&destroyed, true, __ATOMIC_RELEASE);
	return NULL;
}

/* wait_in makes a context, and a thread that waits for its work in the driver because it frees late. */
static CUcontext wait_in(CUcontext context, pthread_t *waits)
{
	CUdeviceptr p;
	CUcontext c;
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(cuMemAlloc_v2(&p, 4 * MIB));
	OK(cuCtxSetCurrent(context));
	OK(cuMemAlloc_v2(&freed_late, 4 * MIB));
	fakegpu_hold("cuCtxSynchronize", 1);
	EQ(pthread_create(waits, NULL, free_late, context), 0);
	EQ(fakegpu_held("cuCtxSynchronize", 1, 20000), 1); /* it has waited for the first context */
	fakegpu_hold("cuCtxSynchronize:before", 1);
	fakegpu_open("cuCtxSynchronize");
	EQ(fakegpu_held("cuCtxSynchronize:before", 1, 20000), 1);
	__atomic_store_n(&waits_made, 0, __ATOMIC_RELEASE);
	return c;
}

/* A context does not end while another thread waits for its work, to free what was freed during a capture. */
static void context_ends_late(CUcontext context)
{
	pthread_t waits, destroys;
	CUcontext c = wait_in(context, &waits);
	__atomic_store_n(&waits_how, WAITS_STAND, __ATOMIC_RELEASE);
	EQ(pthread_create(&destroys, NULL, destroy_it, c), 0);
	while (!__atomic_load_n(&waits_made, __ATOMIC_ACQUIRE) && !__atomic_load_n(&destroyed, __ATOMIC_ACQUIRE))
		nap();
	CHECK(!__atomic_load_n(&destroyed, __ATOMIC_ACQUIRE));
	fakegpu_open("cuCtxSynchronize:before");
	pthread_join(waits, NULL);
	__atomic_store_n(&waits_how, WAITS_LAST, __ATOMIC_RELEASE);
	pthread_join(destroys, NULL);
	EQ(__atomic_load_n(&waits_made, __ATOMIC_ACQUIRE), 1);
	/* But for no longer than a second. */
	c = wait_in(context, &waits);
	__atomic_store_n(&waits_how, WAITS_PASS, __ATOMIC_RELEASE);
	OK(cuCtxDestroy_v2(c));
	EQ(__atomic_load_n(&waits_made, __ATOMIC_ACQUIRE), 100);
	__atomic_store_n(&waits_how, WAITS_LAST, __ATOMIC_RELEASE);
	fakegpu_open("cuCtxSynchronize:before");
	pthread_join(waits, NULL);
	SAME();
	EQ(truth(FAKEGPU_DATA), 0);
}

static void set_state(unsigned state)
{
	uint64_t *word = &region_here()->m->header.sleep;
	__atomic_store_n(word, state, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static uint64_t *lane_word(void)
{
	struct region *r = region_here();
	for (unsigned i = 0; i < RATION_SLOTS; i++)
		if (r->m->slots[i].pid == (uint64_t)getpid())
			return &r->m->slots[i].lane;
	exit(1);
}

/* ask_lane asks for a state, as the process does that puts the job to sleep, and waits for another. */
static bool ask_lane(unsigned state, unsigned becomes)
{
	uint64_t *lane = lane_word(), now = load_acquire(lane);
	CHECK(region_lane_change(lane, now, lane_with(now, RATION_LANE_DONE, state)));
	for (int i = 0; i < 20000 && lane_state(load_acquire(lane)) != becomes; i++)
		nap();
	return lane_state(load_acquire(lane)) == becomes;
}

struct maker {
	pthread_t thread;
	pid_t id;
	CUcontext made;
	bool done;
};

static void *make_context(void *arg)
{
	struct maker *m = arg;
	__atomic_store_n(&m->id, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
	OK(cuCtxCreate_v2(&m->made, 0, 0));
	return NULL;
}

static void *retain_context(void *arg)
{
	struct maker *m = arg;
	__atomic_store_n(&m->id, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
	OK(cuDevicePrimaryCtxRetain(&m->made, 0));
	__atomic_store_n(&m->done, true, __ATOMIC_RELEASE);
	return NULL;
}

/* sleeping returns whether a thread waits for something. */
static bool sleeping(const struct maker *m)
{
	char path[64], state = 0;
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)__atomic_load_n(&m->id, __ATOMIC_ACQUIRE));
	FILE *f = fopen(path, "r");
	bool read = f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1;
	if (f)
		fclose(f);
	return read && state == 'S';
}

/* fall_beside lets the job fall asleep while a thread is in a call of the driver, with a lock that another thread
 * waits for. */
static void fall_beside(const char *call, void *(*run)(void *), struct maker *first, struct maker *second)
{
	fakegpu_hold(call, 1);
	EQ(pthread_create(&first->thread, NULL, run, first), 0);
	EQ(fakegpu_held(call, 1, 60000), 1);
	EQ(pthread_create(&second->thread, NULL, run, second), 0);
	for (int i = 0; i < 60000 && !sleeping(second); i++)
		nap();
	set_state(RATION_FALLING);
	fakegpu_open(call);
}

/* A thread that makes a context while the job falls asleep waits for the job to wake up, with a lock
 * held. The lane waits for no thread that waits for this lock. */
static void makers(void)
{
	struct maker first = {.id = 0}, second = {.id = 0};
	CUdeviceptr p;
	OK(cuMemAlloc_v2(&p, 96 * MIB)); /* more than one thread moves it */
	fall_beside("cuCtxCreate", make_context, &first, &second);
	bool out = ask_lane(RATION_LANE_DRAINING, RATION_LANE_OUT);
	CHECK(out);
	EQ(truth(FAKEGPU_DATA), out ? 0 : 96 * MIB);
	CHECK(ask_lane(out ? RATION_LANE_COMING : RATION_LANE_IN, RATION_LANE_IN));
	set_state(RATION_AWAKE);
	pthread_join(first.thread, NULL);
	pthread_join(second.thread, NULL);
	OK(cuCtxDestroy_v2(first.made));
	OK(cuCtxDestroy_v2(second.made));
	OK(cuMemFree_v2(p));
	SAME();
}

/* A thread that gets such a lock after the job has begun to fall asleep makes no call before the job is
 * awake. */
static void retainers(void)
{
	struct maker first = {.id = 0}, second = {.id = 0};
	fall_beside("cuDevicePrimaryCtxRetain", retain_context, &first, &second);
	pthread_join(first.thread, NULL);
	for (int i = 0; i < 50; i++) {
		CHECK(!__atomic_load_n(&second.done, __ATOMIC_ACQUIRE));
		nap();
	}
	set_state(RATION_AWAKE);
	pthread_join(second.thread, NULL);
	for (int i = 0; i < 2; i++)
		OK(cuDevicePrimaryCtxRelease_v2(0));
	SAME();
}

/* What was allocated in a context ends with it. */
static void ends(CUcontext before)
{
	CUcontext c;
	CUdeviceptr p, kept;
	OK(cuMemAlloc_v2(&kept, 6 * MIB));
	OK(cuCtxCreate_v2(&c, 0, 0));
	for (int i = 0; i < 3; i++)
		OK(cuMemAlloc_v2(&p, 4 * MIB));
	EQ(truth(FAKEGPU_DATA), 18 * MIB);
	OK(cuCtxDestroy_v2(c));
	OK(cuCtxSetCurrent(before));
	EQ(truth(FAKEGPU_DATA), 6 * MIB);
	EQ(held(RATION_DATA), 6 * MIB);
	OK(cuMemFree_v2(kept));
	SAME();
}

/* The C library's own signals reach the lane's thread: otherwise this would never return. */
static void signals(void)
{
	alarm(60);
	EQ(setuid(getuid()), 0);
	alarm(0);
}

/* Without a thread, memory is the driver's own. */
static int without(void)
{
	CUdeviceptr p;
	no_threads = true;
	start();
	OK(cuMemAlloc_v2(&p, 3 * MIB));
	SAME();
	EQ(range_of(p), 3 * MIB);
	OK(cuMemFree_v2(p));
	return checks_failed > 0;
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1)
		return without();
	CUcontext context = start();
	sizes();
	limit();
	handles();
	waits(context);
	makers();
	retainers();
	ends(context);
	captures(context);
	own_capture(context);
	joined(context);
	capture_waits(context);
	capture_goes_on(context);
	context_ends_late(context);
	signals();
	OK(cuDevicePrimaryCtxRelease_v2(0));
	EQ(end(spawn("without"), 0), 0);
	return FINISH();
}
