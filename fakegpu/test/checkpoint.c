/* Checkpoints: which step may follow which, what a process holds meanwhile, and which calls wait. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <time.h>

#include "check.h"
#include "child.h"

static CUfunction kernel(void)
{
	CUmodule m = NULL;
	CUfunction f = NULL;
	OK(cuModuleLoadData(&m, ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n"));
	OK(cuModuleGetFunction(&f, m, "k"));
	return f;
}

static void export_memory(void)
{
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	int fd;
	OK(cuMemCreate(&h, 64 * MIB, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static CUresult in_fork(void)
{
	CUdeviceptr p;
	int status;
	pid_t pid = fork();
	if (pid == 0)
		_exit((int)cuMemAlloc_v2(&p, MIB));
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	return (CUresult)WEXITSTATUS(status);
}

/* A byte of its input is a command: a allocates 100 MiB, f frees the last of them, k launches a
 * kernel, F allocates in the child of a fork. Each is answered by a byte: 0 is success. */
static int sleeper(const char *role)
{
	CUdeviceptr p = 0, q;
	CUfunction f;
	char c = 'a', r = 0;

	start();
	f = kernel();
	if (strcmp(role, "managed") == 0)
		OK(cuMemAllocManaged(&q, MIB, CU_MEM_ATTACH_GLOBAL));
	if (strcmp(role, "exports") == 0)
		export_memory();
	do {
		switch (c) {
		case 'a': r = (char)cuMemAlloc_v2(&p, 100 * MIB); break;
		case 'f': r = (char)cuMemFree_v2(p); break;
		case 'F': r = (char)in_fork(); break;
		case 'k': r = (char)cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); break;
		}
	} while (write(1, &r, 1) == 1 && read(0, &c, 1) == 1);
	return checks_failed > 0;
}

/* Waits for the answer to a command; -1 if none comes in that time. */
static int answer(struct child c, int ms)
{
	char r;
	if (poll(&(struct pollfd){c.from, POLLIN, 0}, 1, ms) <= 0 || read(c.from, &r, 1) != 1)
		return -1;
	return r;
}

static void command(struct child c, char what) { CHECK(write(c.to, &what, 1) == 1); }

static struct child new_sleeper(const char *role)
{
	struct child c = spawn(role);
	EQ(answer(c, -1), 0);
	return c;
}

static int state(struct child c)
{
	CUprocessState s = 99;
	OK(cuCheckpointProcessGetState(c.pid, &s));
	return (int)s;
}

static CUresult lock_for(struct child c, unsigned ms) { return cuCheckpointProcessLock(c.pid, &(CUcheckpointLockArgs){.timeoutMs = ms}); }

static void put_to_sleep(struct child c)
{
	OK(lock_for(c, 0));
	OK(cuCheckpointProcessCheckpoint(c.pid, NULL));
	EQ(state(c), CU_PROCESS_STATE_CHECKPOINTED);
}

static unsigned listed(void)
{
	nvmlDevice_t d;
	unsigned n = 0;
	CHECK(nvmlInit_v2() == 0 && nvmlDeviceGetHandleByIndex_v2(0, &d) == 0);
	nvmlDeviceGetComputeRunningProcesses_v3(d, &n, NULL);
	return n;
}

/* Every step in every state. */
static void order(void)
{
	struct child c = new_sleeper("plain");
	EQ(cuCheckpointProcessUnlock(c.pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
	EQ(cuCheckpointProcessCheckpoint(c.pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
	EQ(cuCheckpointProcessRestore(c.pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
	EQ(state(c), CU_PROCESS_STATE_RUNNING);
	OK(lock_for(c, 0));
	EQ(state(c), CU_PROCESS_STATE_LOCKED);
	EQ(lock_for(c, 10), CUDA_ERROR_ILLEGAL_STATE);
	EQ(cuCheckpointProcessRestore(c.pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
	OK(cuCheckpointProcessCheckpoint(c.pid, NULL));
	EQ(cuCheckpointProcessCheckpoint(c.pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
	EQ(cuCheckpointProcessUnlock(c.pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
	EQ(lock_for(c, 10), CUDA_ERROR_ILLEGAL_STATE);
	OK(cuCheckpointProcessRestore(c.pid, NULL));
	EQ(state(c), CU_PROCESS_STATE_LOCKED);
	OK(cuCheckpointProcessUnlock(c.pid, NULL));
	EQ(state(c), CU_PROCESS_STATE_RUNNING);
	end(c, SIGKILL);
	EQ(cuCheckpointProcessGetState(c.pid, &(CUprocessState){0}), CUDA_ERROR_OPERATING_SYSTEM);
	EQ(lock_for(c, 10), CUDA_ERROR_OPERATING_SYSTEM);
	EQ(cuCheckpointProcessGetState(getppid(), &(CUprocessState){0}), CUDA_ERROR_NOT_INITIALIZED); /* no CUDA program */
}

/* A sleeping process holds nothing, its calls wait, and it gets all back. */
static void asleep(void)
{
	uint64_t before = everybody(), awake;
	unsigned others = listed();
	struct child c = new_sleeper("plain");

	awake = everybody();
	CHECK(awake >= before + 100 * MIB);
	EQ(listed(), others + 1);
	put_to_sleep(c);
	EQ(everybody(), before);
	EQ(listed(), others);
	command(c, 'F'); /* the child of a fork has no driver, and is not asleep */
	EQ(answer(c, 20000), CUDA_ERROR_NOT_INITIALIZED);
	command(c, 'a');
	EQ(answer(c, 100), -1);
	EQ(everybody(), before);
	OK(cuCheckpointProcessRestore(c.pid, NULL));
	EQ(everybody(), awake);
	EQ(listed(), others + 1);
	EQ(answer(c, 100), -1);
	OK(cuCheckpointProcessUnlock(c.pid, NULL));
	EQ(answer(c, -1), 0);
	EQ(everybody(), awake + 100 * MIB);
	command(c, 'f');
	EQ(answer(c, -1), 0);
	EQ(end(c, 0), 0);
	EQ(everybody(), before);
}

/* A process that is killed in its sleep leaves nothing. One that is restored into a device without
 * space is lost, with what it has got. */
static void lost(void)
{
	uint64_t before = everybody(), all = 0, room = 0;
	CUdeviceptr p;
	struct child c = new_sleeper("plain");

	put_to_sleep(c);
	end(c, SIGKILL);
	EQ(everybody(), before);
	c = new_sleeper("plain");
	put_to_sleep(c);
	OK(cuMemGetInfo_v2((size_t *)&room, (size_t *)&all));
	OK(cuMemAlloc_v2(&p, room - 320 * MIB)); /* its context fits, and not its memory */
	EQ(cuCheckpointProcessRestore(c.pid, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(state(c), CU_PROCESS_STATE_FAILED);
	OK(cuMemFree_v2(p));
	EQ(cuCheckpointProcessRestore(c.pid, NULL), CUDA_ERROR_OPERATING_SYSTEM);
	CHECK(everybody() > before);
	end(c, SIGKILL);
	EQ(everybody(), before);
}

static void cannot(void)
{
	uint64_t before = everybody();
	struct child c = new_sleeper("managed");

	OK(lock_for(c, 0));
	EQ(cuCheckpointProcessCheckpoint(c.pid, NULL), CUDA_ERROR_NOT_SUPPORTED);
	EQ(state(c), CU_PROCESS_STATE_LOCKED);
	OK(cuCheckpointProcessUnlock(c.pid, NULL));
	command(c, 'f');
	EQ(answer(c, -1), 0);
	end(c, 0);
	c = new_sleeper("exports");
	put_to_sleep(c);
	EQ(everybody(), before + 64 * MIB); /* exported memory stays */
	end(c, SIGKILL);
}

static void *lock_stopped(void *child) { return (void *)(intptr_t)lock_for(*(struct child *)child, 10); }

/* A request to lock waits for kernels, no longer than it says; a stopped process answers none. */
static void busy(void)
{
	struct child c = new_sleeper("plain");
	pthread_t asks;
	void *result;

	command(c, 'k');
	EQ(answer(c, -1), 0);
	EQ(lock_for(c, 30), CUDA_ERROR_NOT_READY);
	EQ(state(c), CU_PROCESS_STATE_RUNNING);
	command(c, 'a');
	EQ(answer(c, -1), 0); /* and it goes on */
	CHECK(fakegpu_clock(10 * 1000000ull) >= 0);
	OK(lock_for(c, 0));
	OK(cuCheckpointProcessUnlock(c.pid, NULL));

	kill(c.pid, SIGSTOP);
	EQ(waitpid(c.pid, NULL, WUNTRACED), c.pid); /* until it has stopped: the signal takes its time on a busy machine */
	pthread_create(&asks, NULL, lock_stopped, &c);
	nanosleep(&(struct timespec){0, 50 * 1000000}, NULL); /* longer than it asks for */
	EQ(pthread_tryjoin_np(asks, &result), EBUSY);
	end(c, SIGKILL);
	pthread_join(asks, &result);
	EQ((intptr_t)result, CUDA_ERROR_OPERATING_SYSTEM);
}

static int old_driver(void)
{
	start();
	return cuCheckpointProcessLock(getpid(), NULL) == CUDA_ERROR_NOT_SUPPORTED ? 0 : 1;
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "old") == 0)
		return old_driver();
	setenv("FAKEGPU", "a100", 1);
	setenv("FAKEGPU_CHECKPOINT", "0", 1);
	setenv("FAKEGPU_KERNEL", "*:1000", 1);
	setenv("FAKEGPU_CLOCK", "0", 1);
	if (argc > 1)
		return sleeper(argv[1]);
	start();
	order();
	asleep();
	lost();
	cannot();
	busy();
	EQ(AGAIN("old", "FAKEGPU_CHECKPOINT", ""), 0);
	return FINISH();
}
