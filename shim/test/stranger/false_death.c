/* A process that is stopped in the middle of a charge, taken for dead, and goes on: what it
 * writes then disturbs no other process, whether its slot is free by that time or another
 * process's. Requests are granted or refused as there is room, and no account that makes no
 * sense is an error for processes that only need what it holds. */
#include "park.h"

/* Until one of the calls is stopped: RATION_FAULT says at which charge that is. */
static CUresult charges(struct task *t)
{
	CUresult r = CUDA_SUCCESS;
	while (!is_parked() && r == CUDA_SUCCESS) {
		r = cuMemAlloc_v2(&t->p, t->bytes);
		if (r == CUDA_SUCCESS && !is_parked())
			r = cuMemFree_v2(t->p);
	}
	return r;
}

/* A neighbour in the slot that was taken away. Killed where it is to be reaped. */
static pid_t neighbour(unsigned slot, int *in, int *out)
{
	int to[2], from[2];
	char byte;
	EQ(pipe(to) | pipe(from), 0);
	store_release(&region_here()->m->header.ticket, slot); /* where the search for a free one begins */
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		char a[12], b[12];
		snprintf(a, sizeof a, "%d", to[0]);
		snprintf(b, sizeof b, "%d", from[1]);
		unsetenv("RATION_FAULT");
		execl("/proc/self/exe", "false_death", "neighbour", a, b, (char *)NULL);
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	*in = from[0];
	*out = to[1];
	EQ(read(from[0], &byte, 1), 1);
	return pid;
}

static int is_neighbour(int from, int to)
{
	CUdeviceptr p;
	char byte;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	start();
	OK(cuMemAlloc_v2(&p, 200 * MIB));
	if (write(to, "", 1) != 1 || checks_failed > 0)
		return 1;
	/* A little more when the other has gone on: then it is told to end. */
	if (read(from, &byte, 1) != 1)
		return 1;
	OK(cuMemAlloc_v2(&p, 10 * MIB));
	if (write(to, "", 1) != 1 || checks_failed > 0)
		return 1;
	pause();
	return 0;
}

static void going_on(bool claimed_before)
{
	struct task t = {.run = charges, .bytes = 50 * MIB};
	CUdeviceptr p;
	CUcontext c = start(); /* 100 MiB of 1000 */
	int in = -1, out = -1, status;
	char byte;
	pid_t pid = 0;
	task_begin(&t, c);
	wait_parked();
	unsigned slot = own_slot();
	be_evicted();
	if (claimed_before)
		pid = neighbour(slot, &in, &out);
	unpark();
	JOIN(&t);
	OK(t.result);
	if (!claimed_before)
		pid = neighbour(slot, &in, &out);
	/* 300 are the neighbour's, and then 310. */
	EQ(write(out, "", 1), 1);
	EQ(read(in, &byte, 1), 1);
	EQ(cuMemAlloc_v2(&p, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(0);
	OK(kill(pid, SIGKILL));
	EQ(waitpid(pid, &status, 0), pid);
	OK(cuMemAlloc_v2(&p, 600 * MIB)); /* all it held is there */
	WITHIN_LIMIT(0);
	SAME();
}

static void into_free(void) { going_on(false); }
static void into_claimed(void) { going_on(true); }

int main(int argc, char **argv)
{
	static const struct part parts[] = {{"into free", into_free}, {"into claimed", into_claimed}, {NULL, NULL}};
	if (argc == 4)
		return is_neighbour(atoi(argv[2]), atoi(argv[3]));
	return run_parts(argc, argv, parts, true, __FILE__);
}
