/* Shares: the slice that a context is given when it is made, which of a job's contexts it is
 * divided among, how it follows changes, and what is said where the driver does not play
 * along. Each part is a process, or more, in a job and on a machine of its own. */
#include <dlfcn.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "compute.h"

static uint64_t shown(unsigned state, uint64_t us) { return make_slice(us, state); }

/* By the engine's books the slice is share x round, and so the region says. */
static void made(void)
{
	start_timed();
	EQ(slice_of(0), 6000);
	EQ(shown_slice(), shown(RATION_SLICE_KEPT, 6000));
	/* Further contexts have slices of their own. One without work counts for nothing. */
	CUcontext c;
	OK(cuCtxCreate_v2(&c, 0, 0));
	EQ(slice_of(1), 6000);
	OK(cuCtxDestroy_v2(c));
	EQ(slice_of(0), 6000);
	/* On another device the job has another share, and on the next none. */
	OK(cuCtxCreate_v2(&c, 0, 1));
	EQ(books_of(1, getpid(), 0).slice_us, 2048);
}

/* Work of two contexts halves the slice of both; one that has had none for a while does not
 * count any more. */
static void divided(void)
{
	CUcontext first = start_timed(), second;
	CUfunction a = kernel("one");
	OK(launch(a, NULL));
	EQ(slice_of(0), 6000);
	OK(cuCtxCreate_v2(&second, 0, 0));
	CUfunction b = kernel("one");
	later(5 * MS);
	OK(launch(b, NULL));
	EQ(slice_of(0), 3000);
	EQ(slice_of(1), 3000);
	EQ(shown_slice(), shown(RATION_SLICE_KEPT, 3000));
	EQ(work_contexts(load_acquire(&account_of(0, getpid())->work)), 2);
	/* The first goes on for longer than a lease, alone. */
	OK(cuCtxSetCurrent(first));
	for (unsigned ms = 0; ms <= RATION_WORK_LEASE_US / 1000 + 8; ms += 4) {
		later(4 * MS);
		OK(launch(a, NULL));
	}
	EQ(slice_of(0), 6000);
	EQ(shown_slice(), shown(RATION_SLICE_KEPT, 6000));
}

/* driver_sets sets the slice of this process's first context as libcuda does, whose descriptor it has to find. */
static void driver_sets(uint64_t us)
{
	struct {
		uint32_t client, object, command, flags;
		uint64_t parameter;
		uint32_t size, status;
	} call = {.command = 0xa06c0103, .parameter = (uintptr_t)&us, .size = sizeof us};
	call.client = 0xc1000000u | books_of(0, getpid(), 0).context;
	call.object = 0x5c000000u | books_of(0, getpid(), 0).context;
	for (int fd = 3; fd < 64 && slice_of(0) != us; fd++)
		ioctl(fd, _IOWR('F', 0x2a, call), &call);
	EQ(slice_of(0), us);
}

static void set_sleep(uint64_t state, uint64_t count)
{
	__atomic_store_n(&region_here()->m->header.sleep, state | count << RATION_SLEEP_COUNT_SHIFT, __ATOMIC_SEQ_CST);
}

/* A job that has slept may have the driver's slices: they are set again, and not before it is awake. */
static void woken(void)
{
	start_timed();
	CUfunction f = kernel("one");
	OK(launch(f, NULL));
	driver_sets(2048);
	set_sleep(RATION_ASLEEP, 1);
	later(4 * MS);
	OK(cuInit(0)); /* a call that does not wake the job */
	EQ(slice_of(0), 2048);
	set_sleep(RATION_AWAKE, 1);
	later(4 * MS);
	OK(launch(f, NULL));
	EQ(slice_of(0), 6000);
	EQ(shown_slice(), shown(RATION_SLICE_KEPT, 6000));
	/* Once for each sleep. */
	driver_sets(2048);
	later(4 * MS);
	OK(launch(f, NULL));
	EQ(slice_of(0), 2048);
}

/* A process of its own that puts this one aside and brings it back, whenever it is told to. */
static struct {
	pid_t pid;
	int to, from;
} tool;

static void start_tool(void)
{
	int to[2], from[2];
	char c;
	EQ(pipe2(to, O_CLOEXEC) | pipe2(from, O_CLOEXEC), 0);
	if (!(tool.pid = fork())) {
		close(to[1]);
		for (; read(to[0], &c, 1) == 1; c = (char)checks_failed, write(from[1], &c, 1)) {
			OK(cuInit(0));
			OK(cuCheckpointProcessLock(getppid(), NULL));
			OK(cuCheckpointProcessCheckpoint(getppid(), NULL));
			OK(cuCheckpointProcessRestore(getppid(), NULL));
			OK(cuCheckpointProcessUnlock(getppid(), NULL));
		}
		_exit(checks_failed > 0);
	}
	tool.to = to[1];
	tool.from = from[0];
	close(to[0]);
	close(from[1]);
}

static void aside_and_back(void)
{
	char c = 1;
	later(2 * MS); /* until nothing is under way */
	EQ(write(tool.to, "", 1), 1);
	EQ(read(tool.from, &c, 1), 1);
	EQ(c, 0);
}

static void end_tool(void)
{
	int status;
	close(tool.to);
	EQ(waitpid(tool.pid, &status, 0), tool.pid);
	EQ(status, 0);
}

/* The driver makes all groups anew, and sets no slice. They have theirs before the process goes on. */
static void restored(void)
{
	CUcontext first, second, other;
	start_tool();
	first = start_timed();
	CUfunction f = kernel("one");
	OK(launch(f, NULL));
	OK(cuCtxCreate_v2(&other, 0, 1));
	OK(cuCtxCreate_v2(&second, 0, 0));
	OK(cuCtxSetCurrent(first));
	for (unsigned i = 0; i < 3; i++) {
		set_sleep(i == 1 ? RATION_ASLEEP : RATION_AWAKE, i); /* by ration, too */
		aside_and_back();
		EQ(slice_of(0), 6000);
		EQ(slice_of(1), 6000);
		EQ(books_of(1, getpid(), 0).slice_us, 2048);
	}
	/* And they can be changed. */
	set_compute(0, 50, 0);
	later(4 * MS);
	OK(launch(f, NULL));
	EQ(slice_of(0), 10000);
	EQ(slice_of(1), 10000);
	EQ(shown_slice(), shown(RATION_SLICE_KEPT, 10000));
	OK(cuCtxDestroy_v2(second));
	aside_and_back();
	EQ(slice_of(0), 10000);
	end_tool();
}

/* Without a share, the process has libcuda's slice as before, and not the kernel module's. */
static void restored_plain(void)
{
	start_tool();
	start_timed();
	EQ(slice_of(0), 2048);
	EQ(shown_slice(), 0);
	aside_and_back();
	EQ(slice_of(0), 2048);
	end_tool();
}

/* ration limit, while the process runs: in force at the next call that looks. */
static void changed(void)
{
	start_timed();
	CUfunction f = kernel("one");
	OK(launch(f, NULL));
	set_compute(0, 50, 0);
	OK(launch(f, NULL)); /* too early for a look */
	EQ(slice_of(0), 6000);
	later(4 * MS);
	OK(launch(f, NULL));
	EQ(slice_of(0), 10000);
	/* Any call that comes here looks. */
	CUdeviceptr p;
	set_compute(0, 10, 0);
	later(4 * MS);
	OK(cuMemAlloc_v2(&p, MIB));
	EQ(slice_of(0), 2000);
	/* And none: the driver's own again. */
	set_compute(0, RATION_COMPUTE_NONE, 0);
	later(4 * MS);
	OK(launch(f, NULL));
	EQ(slice_of(0), 2048);
	EQ(shown_slice(), shown(RATION_SLICE_READY, 0));
}

/* Each way to launch is a sign of work, and so is waiting and asking. */
static void signs(void)
{
	CUstream s;
	CUevent e;
	CUdeviceptr p;
	char buf[16];
	CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
	start_timed();
	CUfunction f = kernel("one");
	OK(cuStreamCreate(&s, 0));
	OK(cuEventCreate(&e, 0));
	OK(cuMemAlloc_v2(&p, sizeof buf));
	struct ration_account *a = account_of(0, getpid());
#define SIGN(call)                                                                            \
	do {                                                                                  \
		later(RATION_WORK_LEASE_US *US);                                              \
		EQ(call, CUDA_SUCCESS);                                                       \
		EQ(work_time(load_acquire(&a->work)) / 100000, machine_now(0) / US / 100000); \
		EQ(work_waiting(load_acquire(&a->work)), 0);                                  \
	} while (0)
	SIGN(launch(f, NULL));
	SIGN(cuLaunchKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	SIGN(cuLaunchKernelEx(&config, f, NULL, NULL));
	SIGN(cuLaunchKernelEx_ptsz(&config, f, NULL, NULL));
	SIGN(cuLaunchCooperativeKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL));
	SIGN(cuLaunchCooperativeKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL));
	SIGN(cuStreamSynchronize(s));
	SIGN(cuCtxSynchronize());
	SIGN(cuEventSynchronize(e));
	SIGN(cuMemcpyDtoH_v2(buf, p, sizeof buf));
	SIGN(cuMemcpyHtoD_v2(p, buf, sizeof buf));
	/* What is done is no sign, and what is not is one. */
	later(RATION_WORK_LEASE_US * US);
	OK(cuStreamQuery(s));
	CHECK(work_time(load_acquire(&a->work)) + 50000 < machine_now(0) / US);
	OK(launch(f, s));
	later(MS / 2); /* half of it */
	uint64_t before = work_time(load_acquire(&a->work));
	later(4 * MS);
	OK(launch(kernel("long_one"), s));
	later(5 * MS);
	EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	CHECK(work_time(load_acquire(&a->work)) > before);
}

/* A share that cannot be kept is said, and left at that; or, if the job wants it so, an error. */
static void not_kept(unsigned state, uint64_t has_us)
{
	start_timed();
	EQ(slice_state(shown_slice()), state);
	EQ(slice_of(0), has_us);
	CUfunction f = kernel("one");
	later(5 * MS);
	OK(launch(f, NULL));
	EQ(slice_state(shown_slice()), state);
}

static void refused(void) { not_kept(RATION_SLICE_REFUSED, 1024); }
static void ignored(void) { not_kept(RATION_SLICE_LOST, 1024); }
static void other(void) { not_kept(RATION_SLICE_UNSEEN, 2048); }

static void strict(void)
{
	CUcontext c = (CUcontext)1;
	OK(cuInit(0));
	EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(c == NULL);
	EQ(cuDevicePrimaryCtxRetain(&c, 0), CUDA_ERROR_NOT_SUPPORTED);
	EQ(everybody(), 0);
	EQ(region_used(region_here(), 0), 0);
	/* The job has no share of the other device, so nothing that could not be kept. */
	OK(cuCtxCreate_v2(&c, 0, 1));
}

/* A primary context that is current while it is not active, as CUDA's runtime has it at first, is
 * not one that was made unseen. */
static void made_while_current(CUcontext primary)
{
	size_t free, total;
	OK(cuCtxSetCurrent(primary));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	later(5 * MS);
	cuMemGetInfo_v2(&free, &total);
	later(5 * MS);
	cuCtxSynchronize();
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	EQ(shown_slice(), shown(RATION_SLICE_KEPT, 6000));
}

static void inactive(void) { made_while_current(start_timed()); }

/* Beside another context it is taken for one until it is made. */
static void inactive_beside(void)
{
	CUcontext own, primary = start_timed();
	OK(cuCtxCreate_v2(&own, 0, 0));
	made_while_current(primary);
}

/* A green context that is undone, because the job has no room for it, leaves no context behind of which the share is
 * then not kept. */
static void green_undone(void)
{
	CUdevResource all;
	CUdevResourceDesc desc;
	CUgreenCtx g;
	CUcontext own;
	OK(cuInit(0));
	machine_clock = true;
	OK(cuCtxCreate_v2(&own, 0, 0));
	OK(cuDeviceGetDevResource(0, &all, 1));
	OK(cuDevResourceGenerateDesc(&desc, &all, 1));
	EQ(region_set_limit(region_here(), 0, make_limit(201 * MIB)), REGION_OK);
	EQ(cuGreenCtxCreate(&g, desc, 0, 1), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(everybody(), 100 * MIB);
	EQ(region_set_limit(region_here(), 0, make_limit(1000 * MIB)), REGION_OK);
	set_compute(0, 50, 0);
	CUfunction f = kernel("one");
	later(5 * MS);
	OK(launch(f, NULL));
	EQ(slice_of(0), 10000);
	EQ(shown_slice(), shown(RATION_SLICE_KEPT, 10000));
}

/* A program that closes all its files, and opens others by their numbers: the library makes no
 * control call on a file that is not the driver's, and says that it has lost its hold. */
static void closed(void)
{
	start_timed();
	EQ(slice_of(0), 6000);
	CUfunction f = kernel("one");
	struct stat st, null;
	EQ(stat("/dev/null", &null), 0);
	for (int fd = 3; fd < 64; fd++)
		if (fstat(fd, &st) == 0) {
			int other = open("/dev/null", O_RDWR | O_CLOEXEC);
			EQ(dup2(other, fd), fd);
			close(other);
		}
	set_compute(0, 50, 0);
	later(5 * MS);
	OK(launch(f, NULL));
	EQ(slice_of(0), 6000);
	EQ(slice_state(shown_slice()), RATION_SLICE_UNSEEN);
}

/* A child that was forked has neither the driver nor its parent's contexts. */
static void forked(void)
{
	start_timed();
	CUfunction f = kernel("one");
	OK(launch(f, NULL));
	later(5 * MS);
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		int wrong = launch(f, NULL) == CUDA_SUCCESS;
		char name[8];
		/* Its own calls of ioctl go where they went before. */
		wrong |= ioctl(-1, TIOCGWINSZ, name) != -1 || errno != EBADF;
		_exit(wrong);
	}
	waitpid(pid, &status, 0);
	EQ(status, 0);
	OK(launch(f, NULL));
	EQ(slice_of(0), 6000);
	EQ(shown_slice(), shown(RATION_SLICE_KEPT, 6000));
}

/* A context that is not current: no thread has room for so many. */
static CUcontext make_context(CUdevice device)
{
	CUcontext c = NULL, popped;
	OK(cuCtxCreate_v2(&c, 0, device));
	OK(cuCtxPopCurrent_v2(&popped));
	return c;
}

/* More contexts than there are places, on two devices: those beyond keep the slice that they were made with, and are said not to be followed, until
 * there is a place again. A thread of theirs looks as any other. */
static void crowded(void)
{
	enum { ON_FIRST = 200, ON_SECOND = 256 - ON_FIRST };
	static CUcontext c[ON_FIRST + ON_SECOND + 1];
	OK(cuInit(0));
	machine_clock = true;
	for (unsigned i = 0; i < ON_FIRST; i++)
		c[i] = make_context(0);
	for (unsigned i = ON_FIRST; i < ON_FIRST + ON_SECOND; i++)
		c[i] = make_context(1);
	OK(cuCtxSetCurrent(c[0]));
	later(5 * MS);
	CUfunction f = kernel("one");
	OK(launch(f, NULL));
	EQ(shown_slice(), shown(RATION_SLICE_KEPT, 6000));
	OK(cuCtxCreate_v2(&c[ON_FIRST + ON_SECOND], 0, 0));
	EQ(slice_state(shown_slice()), RATION_SLICE_CROWDED);
	uint64_t made_with = slice_of(ON_FIRST);
	CHECK(made_with != 2048);
	/* The limit changes, and its thread is the only one that works: the others follow. */
	CUfunction g = kernel("one");
	later(RATION_WORK_LEASE_US * US);
	set_compute(0, 60, 0);
	OK(launch(g, NULL));
	EQ(slice_of(0), 12000);
	EQ(slice_of(ON_FIRST), made_with);
	EQ(slice_state(shown_slice()), RATION_SLICE_CROWDED);
	/* One ends that was on the other device, and then the one that was beyond. */
	OK(cuCtxDestroy_v2(c[ON_FIRST]));
	OK(cuCtxDestroy_v2(c[ON_FIRST + ON_SECOND]));
	OK(cuCtxSetCurrent(c[0]));
	later(5 * MS);
	OK(launch(f, NULL));
	EQ(shown_slice(), shown(RATION_SLICE_KEPT, 12000));
}

static void crowded_strict(void)
{
	CUcontext c = (CUcontext)1;
	OK(cuInit(0));
	machine_clock = true;
	for (unsigned i = 0; i < 255; i++)
		make_context(i % 2);
	make_context(0);
	EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(c == NULL);
	make_context(1); /* of which it has no share */
}

/* Calls of ioctl that are not the driver's pass through as they are. */
static void passed_on(void)
{
	int pipe_fds[2], n = -1;
	start_timed();
	EQ(pipe(pipe_fds), 0);
	EQ(write(pipe_fds[1], "abc", 3), 3);
	EQ(ioctl(pipe_fds[0], FIONREAD, &n), 0);
	EQ(n, 3);
	errno = 0;
	EQ(ioctl(-1, FIONREAD, &n), -1);
	EQ(errno, EBADF);
	/* Nor is the argument read of one that only looks like it. */
	EQ(ioctl(-1, _IOWR('F', 0x2a, char[32]), (void *)8), -1);
	EQ(errno, EBADF);
	EQ(ioctl(pipe_fds[0], _IOWR('F', 0x2a, char[32]), (void *)8), -1);
	EQ(errno, ENOTTY);
}

static const struct test {
	const char *name;
	void (*run)(void);
	const char *slice, *mode; /* FAKEGPU_SLICE and RATION_COMPUTE */
	const char *says;         /* in one line of the log */
	const char *context;      /* FAKEGPU_CONTEXT, where that is another one */
	const char *share;        /* the same for CUDA_DEVICE_SM_LIMIT_0 */
} tests[] = {
	{"made", made, "", "", NULL, NULL, NULL},
	{"divided", divided, "", "", NULL, NULL, NULL},
	{"woken", woken, "", "", NULL, NULL, NULL},
	{"restored", restored, "", "", NULL, NULL, NULL},
	{"restored_plain", restored_plain, "", "", NULL, NULL, "none"},
	{"changed", changed, "", "", NULL, NULL, NULL},
	{"signs", signs, "", "", NULL, NULL, NULL},
	{"refused", refused, "refuse", "", "not enforced in this process: the driver refused", NULL, NULL},
	{"ignored", ignored, "ignore", "", "not enforced in this process: the driver took a time slice and has another", NULL, NULL},
	{"other", other, "other", "", "not enforced in this process: a context was made without", NULL, NULL},
	{"strict", strict, "ignore", "strict", "RATION_COMPUTE=strict: the driver took a time slice and has another", NULL, NULL},
	{"inactive", inactive, "", "", NULL, NULL, NULL},
	{"inactive_beside", inactive_beside, "", "", "not enforced in this process: a context was made without", NULL, NULL},
	{"green_undone", green_undone, "", "", "out of memory", NULL, NULL},
	{"closed", closed, "", "", "not enforced in this process: a context was made without", NULL, NULL},
	{"forked", forked, "", "", NULL, NULL, NULL},
	{"crowded", crowded, "", "", "not enforced in this process: it has more than 256 contexts", "1m", NULL},
	{"crowded_strict", crowded_strict, "", "strict", "RATION_COMPUTE=strict: it has more than 256 contexts", "1m", NULL},
	{"passed_on", passed_on, "", "strict", NULL, NULL, NULL},
};

static unsigned lines_with(const char *path, const char *text, unsigned *all)
{
	char buf[4096];
	unsigned n = 0;
	FILE *f = fopen(path, "r");
	for (*all = 0; f && fgets(buf, sizeof buf, f); ++*all) {
		n += text && strstr(buf, text) != NULL;
		if (!text || !strstr(buf, text))
			fputs(buf, stderr);
	}
	if (f)
		fclose(f);
	return n;
}

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		const struct test *t = &tests[i];
		char folder[4096], region[4200], log[4200];
		if (argc > 1 && strcmp(argv[1], t->name) == 0) {
			t->run();
			return checks_failed > 0;
		}
		if (argc > 1)
			continue;
		snprintf(folder, sizeof folder, "%s/%s", getenv("FAKEGPU_STATE"), t->name);
		snprintf(region, sizeof region, "%s/region", folder);
		snprintf(log, sizeof log, "%s/log", folder);
		EQ(mkdir(folder, 0700), 0);
		int status =
			AGAIN(t->name, "FAKEGPU_STATE", folder, "RATION_REGION", region, "RATION_LOG_FILE", log, "FAKEGPU_SLICE", t->slice,
			      "RATION_COMPUTE", t->mode, "FAKEGPU_CONTEXT", t->context ? t->context : getenv("FAKEGPU_CONTEXT"),
			      "CUDA_DEVICE_SM_LIMIT_0", t->share ? t->share : getenv("CUDA_DEVICE_SM_LIMIT_0"));
		if (status)
			fprintf(stderr, "%s: status %#x\n", t->name, (unsigned)status);
		EQ(status, 0);
		unsigned all, said = lines_with(log, t->says, &all);
		if (strcmp(t->name, "strict"))
			EQ(said, t->says != NULL);
		else
			EQ(said, 2); /* once for each context */
		EQ(all, said);
	}
	return FINISH();
}
