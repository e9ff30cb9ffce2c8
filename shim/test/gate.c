/* The gate: which calls wake a job that sleeps, what keeps a process awake, and when it last used its
 * device. This program plays the process that puts a job to sleep; the library is in the sleepers. */
#include <dlfcn.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "child.h"
#include "held.h"
#include "../region/atomics.h"

/* The library's clock in a sleeper: it may be ahead, and stop a thread where it is read. */
static int ahead_s;
static int stop_at; /* the thread stops at this reading from now; 0: never */

static void say(char c) { CHECK(write(1, &c, 1) == 1); }

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *t)
{
	char c;
	int result = (int)syscall(SYS_clock_gettime, id, t);
	if (id != CLOCK_MONOTONIC_COARSE)
		return result;
	t->tv_sec += __atomic_load_n(&ahead_s, __ATOMIC_RELAXED);
	if (stop_at && --stop_at == 0) {
		say('w');
		CHECK(read(0, &c, 1) == 1);
	}
	return result;
}

/* The sleeper's side */

static CUdeviceptr mem, managed;
static CUstream stream, captured;
static CUevent event;
static CUgraphExec graph;
static CUfunction kernel;
static CUcontext context;
static CUmemGenericAllocationHandle exported;

static void prepare(void)
{
	CUmodule m = NULL;
	CUgraph g;
	CUgraphNode n;
	context = start();
	OK(cuModuleLoadData(&m, ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n"));
	OK(cuModuleGetFunction(&kernel, m, "k"));
	OK(cuMemAlloc_v2(&mem, 100 * MIB));
	OK(cuStreamCreate(&stream, 0));
	OK(cuStreamCreate(&captured, 0));
	OK(cuEventCreate(&event, 0));
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddEmptyNode(&n, g, NULL, 0));
	OK(cuGraphInstantiateWithFlags(&graph, g, 0));
}

/* A launch as the CUDA runtime makes it: by a function that it has looked up. */
static CUresult launch(void)
{
	CUresult (*call)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **) =
		NULL;
	if (cuGetProcAddress_v2("cuLaunchKernel", (void **)&call, 12000, 0, NULL) != CUDA_SUCCESS)
		return CUDA_ERROR_NOT_FOUND;
	return call(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static CUresult create_exportable(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	int fd;
	CUresult r = cuMemCreate(&exported, 2 * MIB, &prop, 0);
	if (r == CUDA_SUCCESS &&
	    (r = cuMemExportToShareableHandle(&fd, exported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)) == CUDA_SUCCESS)
		close(fd);
	return r;
}

static CUresult wait_twice(void)
{
	CUresult r = cuCtxSynchronize();
	return r != CUDA_SUCCESS ? r : cuCtxSynchronize();
}

/* obey does a command. */
static CUresult obey(char command)
{
	char data[64] = {0};
	CUdeviceptr p;
	CUstream s;
	CUevent e;
	CUgraph g;
	size_t left, total;
	void *host;
	CUipcMemHandle ipc;
	switch (command) {
	case 'k': return launch();
	case 'l': return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
	case 'm': return cuMemsetD8Async(mem, 1, 64, stream);
	case 'h': return cuMemcpyHtoD_v2(mem, data, sizeof data);
	case 'c': return cuMemcpyHtoDAsync_v2(mem, data, sizeof data, stream);
	case 'd': return cuMemcpyDtoD_v2(mem, mem + MIB, 64);
	case 's': return cuCtxSynchronize();
	case 'y': return cuStreamSynchronize(stream);
	case 'a': return cuMemAlloc_v2(&p, MIB);
	case 'f': return cuMemFree_v2(mem);
	case 'e': return cuEventRecord(event, stream);
	case 'v': return cuEventCreate(&e, 0);
	case 'q': return cuStreamQuery(stream);
	case 'g': return cuGraphLaunch(graph, stream);
	case 'i': return cuMemGetInfo_v2(&left, &total);
	case 'o': return cuMemHostAlloc(&host, 4096, 0);
	case 't': return cuStreamCreate(&s, 0);
	case 'M': return cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL);
	case 'N': return cuMemFree_v2(managed);
	case 'I': return cuIpcGetMemHandle(&ipc, mem + MIB);
	case 'X': return create_exportable();
	case 'Y': return cuMemRelease(exported);
	case 'C': return cuStreamBeginCapture_v2(captured, 0);
	case 'D': return cuStreamEndCapture(captured, &g);
	case 'E': return cuStreamDestroy_v2(captured);
	case 'Z': return cuMemAllocManaged(&managed, 0, CU_MEM_ATTACH_GLOBAL); /* an error */
	case 'x': return cuDevicePrimaryCtxReset_v2(0);
	case 'r': /* stops between the driver's wait and the reading of its count */
		ahead_s += 100;
		stop_at = 2;
		return cuCtxSynchronize();
	case 'w': return wait_twice();
	case 'S': /* as the process does that wakes the job */
		((void (*)(void))dlsym(RTLD_DEFAULT, "ration_show_machine"))();
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

static int sleeper(void)
{
	char c;
	prepare();
	c = (char)(checks_failed > 0);
	while (write(1, &c, 1) == 1 && read(0, &c, 1) == 1)
		c = (char)obey(c);
	return checks_failed > 0;
}

/* The other side */

static char log_path[4096];

static uint64_t *word(void) { return &region_here()->m->header.sleep; }

static void set_state(unsigned state, bool manual)
{
	uint64_t count = sleep_count(load_acquire(word())) + (state == RATION_FALLING);
	__atomic_store_n(word(), state | (uint64_t)manual << RATION_SLEEP_MANUAL_BIT | count << RATION_SLEEP_COUNT_SHIFT, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, word(), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static int answer(struct child c, int ms)
{
	char r;
	if (poll(&(struct pollfd){c.from, POLLIN, 0}, 1, ms < 0 ? 20000 : ms) <= 0 || read(c.from, &r, 1) != 1)
		return -1;
	return r;
}

static void command(struct child c, char what) { CHECK(write(c.to, &what, 1) == 1); }

static int ask(struct child c, char what)
{
	command(c, what);
	return answer(c, -1);
}

static struct child new_sleeper(void)
{
	struct child c = spawn("sleeper");
	EQ(answer(c, -1), 0);
	return c;
}

static const struct ration_slot *slot_of(struct child c)
{
	struct region *r = region_here();
	for (unsigned i = 0; i < RATION_SLOTS; i++)
		if (status_state(load_acquire(&r->m->status[i])) == RATION_SLOT_ACTIVE &&
		    load_acquire(&r->m->slots[i].pid) == (uint64_t)c.pid)
			return &r->m->slots[i];
	fprintf(stderr, "%d has no slot\n", (int)c.pid);
	exit(1);
}

static uint64_t cannot(struct child c) { return load_acquire(&slot_of(c)->cannot); }

static void put_to_sleep(struct child c, bool manual)
{
	set_state(RATION_FALLING, manual);
	OK(cuCheckpointProcessLock(c.pid, NULL));
	OK(cuCheckpointProcessCheckpoint(c.pid, NULL));
	set_state(RATION_ASLEEP, manual);
}

static void wake(struct child c)
{
	set_state(RATION_WAKING, false);
	OK(cuCheckpointProcessRestore(c.pid, NULL));
	OK(cuCheckpointProcessUnlock(c.pid, NULL));
	set_state(RATION_AWAKE, false);
}

static uint64_t wanted(void) { return load_acquire(&region_here()->m->header.wanted); }

/* wanted_after waits until a call has asked for the job to be woken, as the process does that wakes
 * it: on the futex. */
static bool wanted_after(uint64_t before)
{
	static int most = 1000; /* times 10 ms; after a failure the next ones need not take as long */
	uint64_t *w = &region_here()->m->header.wanted;
	for (int i = 0; i < most && load_acquire(w) == before; i++)
		syscall(SYS_futex, w, FUTEX_WAIT, (uint32_t)before, &(struct timespec){0, 10000000}, NULL, 0);
	if (load_acquire(w) != before)
		return true;
	most = 1;
	return false;
}

/* lines returns how many lines of the log have a text, and empties the log. */
static unsigned lines(const char *text)
{
	char line[1024];
	unsigned n = 0;
	FILE *f = fopen(log_path, "r+");
	while (f && fgets(line, sizeof line, f))
		n += strstr(line, text) != NULL;
	if (f) {
		CHECK(ftruncate(fileno(f), 0) == 0);
		fclose(f);
	}
	return n;
}

/* Each of these calls wakes the job, waits until it is awake, and says so once. */
static void wakes(void)
{
	struct child c = new_sleeper();
	lines("");
	for (const char *call = "klmhcdsyaevqgiotf"; *call; call++) {
		put_to_sleep(c, false);
		uint64_t before = wanted();
		command(c, *call);
		bool asked = wanted_after(before);
		if (!asked)
			fprintf(stderr, "call %c asks for nothing\n", *call);
		CHECK(asked);
		/* The stand-in answers some of them meanwhile. */
		int early = answer(c, 5);
		CHECK(early == -1 || (early == 0 && strchr("evqt", *call)));
		wake(c);
		EQ(early == -1 ? answer(c, -1) : early, 0);
		EQ(lines("the job sleeps"), 1);
	}
	EQ(end(c, 0), 0);
}

/* An awake job is not told anything, and asks for nothing. */
static void quiet(void)
{
	struct child c = new_sleeper();
	uint64_t before = wanted();
	for (const char *call = "klmhcdsyaevqgiotf"; *call; call++)
		EQ(ask(c, *call), 0);
	EQ(wanted(), before);
	EQ(lines("sleep"), 0);
	EQ(end(c, 0), 0);
}

/* One line for each sleep, whatever the states in between, and the way out if nobody wakes it. */
static void told(void)
{
	struct child c = new_sleeper();
	put_to_sleep(c, true);
	uint64_t before = wanted();
	command(c, 'w'); /* two calls */
	CHECK(wanted_after(before));
	set_state(RATION_WAKING, true);
	set_state(RATION_ASLEEP, true);
	before = wanted();
	CHECK(wanted_after(before)); /* it asks again */
	wake(c);
	EQ(answer(c, -1), 0);
	EQ(lines("ration wake"), 1);
	/* Nor a line for each call that is served before the state says so. */
	set_state(RATION_FALLING, false);
	set_state(RATION_RESTORING, false);
	for (int i = 0; i < 3; i++)
		EQ(ask(c, 'k'), 0);
	set_state(RATION_AWAKE, false);
	EQ(lines("the job sleeps"), 1);
	EQ(end(c, 0), 0);
}

/* A call that came before the driver was locked goes on into the driver, and a charge waits. */
static void falling(void)
{
	struct child c = new_sleeper();
	set_state(RATION_FALLING, false);
	for (int i = 0; i < 3; i++)
		EQ(ask(c, 'k'), 0);
	EQ(lines("the job sleeps"), 1);
	command(c, 'a');
	EQ(answer(c, 20), -1);
	set_state(RATION_AWAKE, false);
	EQ(answer(c, -1), 0);
	/* The process that wakes the job passes, or it would wait for itself. */
	EQ(ask(c, 'S'), 0);
	set_state(RATION_FALLING, false);
	EQ(ask(c, 's'), 0);
	set_state(RATION_AWAKE, false);
	EQ(end(c, 0), 0);
	lines("");
}

/* A killed sleeper leaves nothing that keeps others asleep or waiting; and one that ends by itself
 * asks to be woken, as the driver's calls at exit wait. */
static void ends(void)
{
	struct child c = new_sleeper();
	put_to_sleep(c, false);
	uint64_t before = wanted();
	close(c.to); /* it ends */
	CHECK(wanted_after(before));
	waitpid(c.pid, NULL, 0); /* the stand-in does not make it wait */
	close(c.from);
	set_state(RATION_AWAKE, false);
	c = new_sleeper();
	put_to_sleep(c, false);
	command(c, 'k');
	end(c, SIGKILL);
	set_state(RATION_AWAKE, false);
	c = new_sleeper();
	EQ(ask(c, 'k'), 0);
	EQ(end(c, 0), 0);
	lines("");
}

/* What keeps a process awake is shown before the driver is asked, and until it is undone. */
static void keeps_awake(void)
{
	struct child c = new_sleeper();
	EQ(cannot(c), 0);
	EQ(ask(c, 'M'), 0);
	EQ(cannot(c), RATION_CANNOT_MANAGED);
	EQ(ask(c, 'C'), 0);
	EQ(cannot(c), RATION_CANNOT_MANAGED | RATION_CANNOT_CAPTURE);
	EQ(ask(c, 'N'), 0);
	EQ(cannot(c), RATION_CANNOT_CAPTURE);
	EQ(ask(c, 'D'), 0);
	EQ(cannot(c), 0);
	CHECK(ask(c, 'Z') != 0);
	EQ(cannot(c), 0);
	EQ(ask(c, 'C'), 0);
	EQ(ask(c, 'E'), 0); /* a stream that is destroyed is not captured any more */
	EQ(cannot(c), 0);
	EQ(ask(c, 'I'), 0);
	EQ(ask(c, 'I'), 0);
	EQ(cannot(c), RATION_CANNOT_EXPORTED);
	EQ(ask(c, 'f'), 0);
	EQ(cannot(c), 0);
	EQ(ask(c, 'X'), 0);
	EQ(cannot(c), RATION_CANNOT_EXPORTED);
	EQ(ask(c, 'Y'), 0);
	EQ(cannot(c), 0);
	EQ(ask(c, 'M'), 0);
	EQ(ask(c, 'x'), 0); /* with its context */
	EQ(cannot(c), 0);
	EQ(end(c, 0), 0);
}

/* A process that comes too late shows its reason, and waits until the job is awake again. */
static void too_late(void)
{
	struct child c = new_sleeper();
	uint64_t before = everybody();
	set_state(RATION_FALLING, false);
	command(c, 'M');
	EQ(answer(c, 50), -1);
	EQ(everybody(), before);
	set_state(RATION_AWAKE, false);
	EQ(answer(c, -1), 0);
	EQ(cannot(c), RATION_CANNOT_MANAGED);
	EQ(end(c, 0), 0);
	lines("");
}

static void mps(void)
{
	char folder[4200], control[4300];
	snprintf(folder, sizeof folder, "%s/mps", getenv("FAKEGPU_STATE"));
	snprintf(control, sizeof control, "%s/control", folder);
	CHECK(mkdir(folder, 0700) == 0 && mkfifo(control, 0600) == 0);
	setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1);
	struct child c = new_sleeper();
	EQ(cannot(c), RATION_CANNOT_MPS);
	EQ(end(c, 0), 0);
	unlink(control);
	c = new_sleeper();
	EQ(cannot(c), 0);
	EQ(end(c, 0), 0);
	unsetenv("CUDA_MPS_PIPE_DIRECTORY");
}

/* While a process sleeps, the driver's list does not have it: a reading then says nothing about what
 * the process holds. */
static void reading(void)
{
	struct child first = new_sleeper(), c = new_sleeper();
	uint64_t used = region_used(region_here(), 0);
	CHECK(used > 0 && used == everybody());
	EQ(ask(c, 'r'), 'w');
	put_to_sleep(c, false);
	uint64_t before = wanted();
	command(c, 'g');
	CHECK(wanted_after(before));
	wake(c);
	EQ(answer(c, -1), 0);
	EQ(region_used(region_here(), 0), used);
	EQ(end(c, 0), 0);
	EQ(end(first, 0), 0);
	lines("");
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1)
		return sleeper();
	snprintf(log_path, sizeof log_path, "%s/log", getenv("FAKEGPU_STATE"));
	setenv("RATION_LOG_FILE", log_path, 1);
	OK(cuInit(0));
	wakes();
	quiet();
	told();
	falling();
	ends();
	keeps_awake();
	too_late();
	mps();
	reading();
	return FINISH();
}
