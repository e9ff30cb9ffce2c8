/* A process that forks around its use of the driver:
 *
 *   forker BYTES
 *
 * Before it initialises the driver, it forks a child that will use CUDA itself. When it
 * holds BYTES, it forks others that only end, half of them by exit() and half by _exit().
 * What runs at their end must not change the parent's account. The steps (see steps.h),
 * where own is the parent's part of data:
 *
 *   forked data=BYTES own=BYTES             the children that only end have ended
 *   more data=2*BYTES own=2*BYTES           the parent has allocated again
 *   two data=3*BYTES own=2*BYTES child=PID  the first child has a context, and BYTES
 *   one data=2*BYTES own=2*BYTES            the first child has freed them, and ended
 *   freed data=0 own=0
 *
 *   forker BYTES outlived
 *
 * holds BYTES, and has a fork child that only lives, without input and output, until it is
 * killed:
 *
 *   holding data=BYTES own=BYTES child=PID */
#define _GNU_SOURCE
#include <signal.h>

#include "driver.h"
#include "partner.h"

enum { CHILDREN = 8, EXIT_WITHIN = 30 /* seconds */ };

static CUdeviceptr take(uint64_t bytes)
{
	CUdeviceptr at;
	MUST(cuMemAlloc_v2, &at, bytes);
	driver_use(at, bytes);
	return at;
}

/* first_child is the child that was forked before the driver was initialised. */
static int first_child(uint64_t bytes)
{
	CUdeviceptr at;
	CUdevice device;
	step("ready data=0");
	device = driver_start();
	at = take(bytes);
	step("holding data=%llu", (unsigned long long)bytes);
	MUST(cuMemFree_v2, at);
	MUST(cuDevicePrimaryCtxRelease_v2, device);
	return 0;
}

/* fork_and_end forks all children at once, and checks how each ends. One that hangs at its
 * end is killed by its alarm. */
static void fork_and_end(void)
{
	pid_t pids[CHILDREN];
	int status;
	for (int i = 0; i < CHILDREN; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			fail("fork: %s", strerror(errno));
		if (pids[i] > 0)
			continue;
		alarm(EXIT_WITHIN);
		if (i % 2)
			_exit(i);
		exit(i);
	}
	for (int i = 0; i < CHILDREN; i++) {
		while (waitpid(pids[i], &status, 0) < 0)
			if (errno != EINTR)
				fail("waitpid: %s", strerror(errno));
		if (!WIFEXITED(status) || WEXITSTATUS(status) != i)
			fail("%s(%d) of a forked child: wait status 0x%x", i % 2 ? "_exit" : "exit", i, (unsigned)status);
	}
}

/* have_child forks a child that lives until it is killed. */
static pid_t have_child(void)
{
	pid_t pid = fork();
	if (pid < 0)
		fail("fork: %s", strerror(errno));
	if (pid > 0)
		return pid;
	close(STDIN_FILENO);
	close(STDOUT_FILENO);
	close(STDERR_FILENO);
	for (;;)
		pause();
}

static int outlived(uint64_t bytes)
{
	CUdevice device = driver_start();
	CUdeviceptr at = take(bytes);
	pid_t child = have_child();
	step("holding data=%llu own=%llu child=%d", (unsigned long long)bytes, (unsigned long long)bytes, (int)child);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	MUST(cuMemFree_v2, at);
	MUST(cuDevicePrimaryCtxRelease_v2, device);
	return 0;
}

static void say(const char *name, unsigned long long own) { step("%s data=%llu own=%llu", name, own, own); }

int main(int count, char **arguments)
{
	struct partner first;
	CUdeviceptr one, more;
	CUdevice device;
	uint64_t bytes = count == 2 || count == 3 ? steps_size(arguments[1]) : 0;
	if (!bytes || (count == 3 && strcmp(arguments[2], "outlived") != 0)) {
		fprintf(stderr, "usage: forker BYTES [outlived]\n");
		return STEPS_USAGE;
	}
	if (count == 3)
		return outlived(bytes);
	if (partner_fork(&first))
		return first_child(bytes);
	partner_at(&first, "ready");
	device = driver_start();
	one = take(bytes);
	fork_and_end();
	say("forked", bytes);
	more = take(bytes);
	say("more", 2 * bytes);
	partner_next(&first);
	partner_at(&first, "holding");
	step("two data=%llu own=%llu child=%d", (unsigned long long)(3 * bytes), (unsigned long long)(2 * bytes), (int)first.pid);
	partner_end(&first);
	say("one", 2 * bytes);
	MUST(cuMemFree_v2, more);
	MUST(cuMemFree_v2, one);
	say("freed", 0);
	MUST(cuDevicePrimaryCtxRelease_v2, device);
	return 0;
}
