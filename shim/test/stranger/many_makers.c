/* Many threads make at once what no call tells the size of. Not all of it fits: what was granted is
 * within the limit once the calls have returned, round after round. */
#include "stranger.h"

enum { THREADS = 16, ROUNDS = 60, EACH = 3 };

static const char forty[] = PTX(".visible .global .align 4 .b8 big[41000000];\n"); /* 40 MiB with its code */

static CUmodule modules[THREADS * EACH];
static CUcontext contexts[THREADS];
static pthread_barrier_t together;

static CUresult load(struct task *t)
{
	CUmodule *m = &modules[t->bytes * EACH];
	pthread_barrier_wait(&together);
	for (unsigned i = 0; i < EACH; i++)
		if (cuModuleLoadData(&m[i], forty) != CUDA_SUCCESS)
			m[i] = NULL;
	return CUDA_SUCCESS;
}

/* Each in a context of its own: a limit is a context's. */
static CUresult set_stack(struct task *t)
{
	CUdevResource all;
	OK(cuCtxSetCurrent(contexts[t->bytes]));
	OK(cuDeviceGetDevResource(0, &all, 1));
	pthread_barrier_wait(&together);
	CUresult r = cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024 + 250 * MIB / 2048 / all.sm.smCount);
	CHECK(r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY);
	return r;
}

static unsigned all_at_once(CUcontext c, CUresult (*run)(struct task *t))
{
	static struct task tasks[THREADS];
	unsigned granted = 0;
	EQ(pthread_barrier_init(&together, NULL, THREADS), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		tasks[i] = (struct task){.run = run, .bytes = i};
		task_begin(&tasks[i], c);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		JOIN(&tasks[i]);
		granted += tasks[i].result == CUDA_SUCCESS;
	}
	pthread_barrier_destroy(&together);
	return granted;
}

static void loads(void)
{
	CUcontext c = start();
	OK(cuCtxSynchronize());
	set_limit(0, 300 * MIB);
	for (unsigned round = 0; round < ROUNDS && checks_failed == 0; round++) {
		all_at_once(c, load);
		WITHIN_LIMIT(0);
		for (unsigned i = 0; i < THREADS * EACH; i++)
			if (modules[i])
				OK(cuModuleUnload(modules[i]));
		memset(modules, 0, sizeof modules);
		OK(cuCtxSynchronize());
	}
	BALANCED(0);
}

static void stacks(void)
{
	CUcontext c = start();
	for (unsigned i = 0; i < THREADS; i++)
		OK(cuCtxCreate_v2(&contexts[i], 0, 0));
	OK(cuCtxSynchronize());
	set_limit(0, in_use(0) + 1000 * MIB);
	for (unsigned round = 0; round < ROUNDS && checks_failed == 0; round++) {
		all_at_once(c, set_stack);
		WITHIN_LIMIT(0);
		for (unsigned i = 0; i < THREADS; i++) {
			OK(cuCtxSetCurrent(contexts[i]));
			OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
		}
		OK(cuCtxSynchronize());
	}
	BALANCED(0);
}

RUN_PARTS(true, {"loads", loads}, {"stacks", stacks})
