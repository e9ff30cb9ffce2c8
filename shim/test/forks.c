/* Families of processes, made by fork, vfork, exec and the bare system call, before
 * and after the driver was started, whose members end or are killed in any order. A process
 * that does not use CUDA leaves no trace and keeps nothing alive; one that does has a slot of
 * its own; and when all are gone, so is all they held.
 *
 * RATION_TEST_SEED repeats a run. */
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "held.h"

enum { FAMILIES = 80, DEPTH = 3, SHARED_FD = 90 };

/* What members found wrong, and how many there were. */
static struct shared {
	unsigned wrong, members, users;
} *shared;

enum driver { COLD, STARTED, INHERITED };

static unsigned below(uint64_t *random, unsigned n)
{
	*random ^= *random << 13;
	*random ^= *random >> 7;
	*random ^= *random << 17;
	return (unsigned)((*random * 0x2545f4914f6cdd1dull >> 33) % n);
}

static void expect(bool so, const char *what)
{
	if (so)
		return;
	fprintf(stderr, "pid %d: not so: %s\n", (int)getpid(), what);
	__atomic_fetch_add(&shared->wrong, 1, __ATOMIC_RELAXED);
}

#define EXPECT(condition) expect(condition, #condition)

static void use(void)
{
	CUcontext c;
	CUdeviceptr p;
	EXPECT(cuInit(0) == CUDA_SUCCESS);
	EXPECT(cuDevicePrimaryCtxRetain(&c, 0) == CUDA_SUCCESS);
	EXPECT(cuCtxSetCurrent(c) == CUDA_SUCCESS);
	EXPECT(cuMemAlloc_v2(&p, MIB) == CUDA_SUCCESS);
	__atomic_fetch_add(&shared->users, 1, __ATOMIC_RELAXED);
}

/* The driver does not survive a fork, and what the parent holds stays the parent's. */
static void denied(void)
{
	CUdeviceptr p;
	EXPECT(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED);
	EXPECT(cuMemAlloc_v2(&p, MIB) == CUDA_ERROR_NOT_INITIALIZED);
	EXPECT(usage_of(0).total == 0);
}

static void member(int depth, uint64_t random, enum driver driver);

static void become(int depth, uint64_t random)
{
	char d[16], r[32];
	snprintf(d, sizeof d, "%d", depth);
	snprintf(r, sizeof r, "%llu", (unsigned long long)random);
	execl("/proc/self/exe", "forks", d, r, (char *)NULL);
	_exit(127);
}

/* In functions of their own, as the child shares its parent's stack. */
static __attribute__((noinline)) pid_t vfork_exec(int depth, uint64_t random)
{
	pid_t pid = vfork();
	if (pid == 0)
		become(depth, random);
	return pid;
}

static __attribute__((noinline)) pid_t vfork_exit(void)
{
	pid_t pid = vfork();
	if (pid == 0)
		_exit(0);
	return pid;
}

static pid_t child(int depth, uint64_t *random, enum driver driver)
{
	uint64_t its = (*random * 6364136223846793005ull + 1442695040888963407ull) | 1;
	unsigned how = below(random, 5);
	pid_t pid;
	switch (how) {
	case 0: /* and exec */
	case 1:
		pid = fork();
		if (pid == 0 && how == 0)
			become(depth + 1, its);
		if (pid == 0)
			member(depth + 1, its, driver == COLD ? COLD : INHERITED);
		return pid;
	case 2: return vfork_exec(depth + 1, its);
	case 3: return vfork_exit();
	default:
		pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		if (pid == 0 && driver == COLD)
			member(depth + 1, its, COLD);
		if (pid == 0)
			exit(0); /* through our destructor */
		return pid;
	}
}

static void member(int depth, uint64_t random, enum driver driver)
{
	pid_t pids[4];
	unsigned n = depth < DEPTH ? below(&random, 4) : 0;
	int status;
	__atomic_fetch_add(&shared->members, 1, __ATOMIC_RELAXED);
	if (driver == INHERITED)
		denied();
	if (driver == COLD && below(&random, 2)) {
		use();
		driver = STARTED;
	}
	for (unsigned i = 0; i < n; i++) {
		pids[i] = child(depth, &random, driver);
		EXPECT(pids[i] > 0);
	}
	/* Some parents are gone before their children. */
	for (unsigned i = 0; i < n && below(&random, 3); i++)
		waitpid(pids[i], &status, 0);
	if (driver == COLD && below(&random, 2)) {
		use();
		driver = STARTED;
	}
	if (driver == STARTED) {
		uint64_t there = 0, ours = usage_of(0).total;
		EXPECT(fakegpu_truth(0, &there, NULL) == 0 && there > 0);
		EXPECT(ours == there);
	}
	switch (below(&random, 4)) {
	case 0: kill(getpid(), SIGKILL); break;
	case 1: _exit(0);
	case 2:
		if (driver != INHERITED && depth < DEPTH)
			become(DEPTH, random | 1);
	}
	exit(0);
}

/* A parent that is killed while its children live and do nothing: they have the driver's files
 * that it had open, and keep what it held until the last of them has ended. */
static void survived(bool bare)
{
	int gate[2], status;
	unsigned reaped;
	struct region_holding h[8];
	char byte;
	CHECK(pipe(gate) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		use();
		for (int i = 0; i < 3; i++)
			if ((bare ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork()) == 0) {
				close(gate[1]);
				_exit(read(gate[0], &byte, 1) == 0 ? 0 : 1);
			}
		kill(getpid(), SIGKILL);
	}
	close(gate[0]);
	EQ(waitpid(pid, &status, 0), pid);
	EQ(status, SIGKILL);
	EQ(region_reap(region_here(), &reaped), REGION_OK);
	EQ(reaped, 0);
	CHECK(region_used(region_here(), 0) > 0);
	EQ(region_holdings(region_here(), 0, h, 8), 1);
	close(gate[1]);
	for (int i = 0; i < 3; i++) {
		CHECK(wait(&status) > 0);
		EQ(status, 0);
	}
	EQ(region_reap(region_here(), &reaped), REGION_OK);
	EQ(reaped, 1);
	EQ(region_used(region_here(), 0), 0);
	EQ(region_holdings(region_here(), 0, h, 8), 0);
}

int main(int argc, char **argv)
{
	const char *text = getenv("RATION_TEST_SEED");
	uint64_t seed = (text ? strtoull(text, NULL, 10) : 1) * 2 + 1;
	struct region_holding h[8];
	unsigned reaped;
	if (argc > 2) {
		shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, SHARED_FD, 0);
		member(atoi(argv[1]), strtoull(argv[2], NULL, 10), COLD);
	}
	int fd = memfd_create("forks", 0);
	CHECK(ftruncate(fd, sizeof *shared) == 0 && dup2(fd, SHARED_FD) == SHARED_FD);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, SHARED_FD, 0);
	/* A process that loses its parent is ours to wait for. */
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	printf("forks.c: RATION_TEST_SEED=%llu\n", (unsigned long long)seed / 2);
	fflush(stdout);
	survived(false);
	survived(true);
	for (uint64_t i = 0; i < FAMILIES; i++) {
		fflush(NULL);
		pid_t pid = fork();
		if (pid == 0)
			member(0, (seed + i * 0x9e3779b97f4a7c15ull) | 1, COLD);
		CHECK(pid > 0);
		if (i % 4 == 3) { /* four families at a time */
			while (wait(NULL) > 0 || errno == EINTR)
				;
			EQ(region_reap(region_here(), &reaped), REGION_OK);
			EQ(region_holdings(region_here(), 0, h, 8), 0);
			EQ(region_used(region_here(), 0), 0);
		}
	}
	EQ(shared->wrong, 0);
	CHECK(shared->members > FAMILIES && shared->users > FAMILIES / 2);
	EQ(region_here()->m->header.counters.claims, shared->users);
	OK(cuInit(0));
	EQ(everybody(), 0);
	return FINISH();
}
