/* Contexts that are being made when another thread reads the driver's count, or is
 * refused: what they take is charged to them, before the driver is asked where the job
 * knows what one costs, and the limit holds at every instant. */
#include "../later.h"
#include "stranger.h"

#define COST (100 * MIB)

static CUresult create(struct task *t) { return cuCtxCreate_v2(&t->made, 0, 0); }

/* A reading meanwhile. */
static void read_figure(void)
{
	later();
	OK(cuCtxSynchronize());
}

/* One too many. */
static void refused(void)
{
	struct task t = {.run = create};
	CUcontext c = start();
	set_limit(0, 2 * COST - MIB);
	fakegpu_hold("cuCtxCreate", 1);
	task_begin(&t, c);
	task_settle(&t, "cuCtxCreate", 1);
	WITHIN_LIMIT(0);
	read_figure();
	fakegpu_open("cuCtxCreate");
	JOIN(&t);
	EQ(t.result, CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(0);
	SAME();
}

/* One that fits is counted as what it is, once. */
static void granted(void)
{
	struct task t = {.run = create};
	CUcontext c = start();
	set_limit(0, 10 * COST);
	fakegpu_hold("cuCtxCreate", 1);
	task_begin(&t, c);
	task_settle(&t, "cuCtxCreate", 1);
	read_figure();
	fakegpu_open("cuCtxCreate");
	JOIN(&t);
	OK(t.result);
	SAME();
	OK(cuCtxDestroy_v2(t.made));
	SAME();
}

/* Eight at once where there is room for four. */
static void crowd(void)
{
	enum { THREADS = 8, ROOM = 4 };
	struct task t[THREADS];
	unsigned made = 0;
	CUcontext c = start();
	set_limit(0, (1 + ROOM) * COST);
	fakegpu_hold("cuCtxCreate", THREADS);
	for (int i = 0; i < THREADS; i++) {
		t[i] = (struct task){.run = create};
		task_begin(&t[i], c);
		task_settle(&t[i], "cuCtxCreate", (unsigned)i + 1);
		WITHIN_LIMIT(0);
	}
	fakegpu_open("cuCtxCreate");
	for (int i = 0; i < THREADS; i++) {
		JOIN(&t[i]);
		CHECK(t[i].result == CUDA_SUCCESS || t[i].result == CUDA_ERROR_OUT_OF_MEMORY);
		made += t[i].result == CUDA_SUCCESS;
	}
	EQ(made, ROOM);
	WITHIN_LIMIT(0);
	SAME();
}

RUN_PARTS(true, {"refused", refused}, {"granted", granted}, {"crowd", crowd})
