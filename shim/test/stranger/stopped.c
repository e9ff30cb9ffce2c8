/* A process that was stopped for long, with one thread in the middle of a charge and another
 * that waits for it: however much later it is when they go on, both get what they asked for.
 * The one that waited has a line in the log. The clock jumps here, as it does for a process
 * that is stopped. */
#include "park.h"

static int64_t ahead;

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *t)
{
	long a[6] = {id, (long)t};
	long result = raw_syscall(SYS_clock_gettime, a);
	if (id == CLOCK_MONOTONIC)
		t->tv_sec += __atomic_load_n(&ahead, __ATOMIC_RELAXED);
	return (int)result;
}

/* Until one of the calls is stopped: RATION_FAULT says at which charge that is. */
static CUresult holds_turn(struct task *t)
{
	CUresult r = CUDA_SUCCESS;
	while (!is_parked() && r == CUDA_SUCCESS) {
		r = cuMemAlloc_v2(&t->p, MIB);
		if (r == CUDA_SUCCESS)
			r = cuMemFree_v2(t->p);
	}
	return r;
}

static CUresult allocate(struct task *t) { return cuMemAlloc_v2(&t->p, MIB); }

int main(void)
{
	struct task a = {.run = holds_turn}, b = {.run = allocate};
	CUcontext c = start();
	task_begin(&a, c);
	wait_parked();
	task_begin(&b, c);
	for (int i = 0; i < 50 && !task_returned(&b, 5); i++)
		__atomic_fetch_add(&ahead, 11, __ATOMIC_RELAXED);
	CHECK(!task_returned(&b, 0)); /* the other has the account's turn */
	unpark();
	JOIN(&a);
	JOIN(&b);
	OK(a.result);
	OK(b.result);
	SAME();
	EQ(held(RATION_DATA), MIB);
	LOGGED(" ms for another thread's charge of the same device\n", 1);
	return FINISH();
}
