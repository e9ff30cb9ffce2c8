/* Modules that are being loaded when another thread reads the driver's count, or is
 * refused: each is charged what it takes, and one too many is refused. What one takes is
 * known only when it is there, so the limit holds once the calls have returned. */
#include "../later.h"
#include "stranger.h"

#define CONTEXT (100 * MIB)
#define MODULE (100 * MIB)

static const char large[] = PTX(BIG_100M);

static CUresult load(struct task *t) { return cuModuleLoadData(&t->module, large); }

/* begin starts the first, which is held with its memory taken. */
static void begin(struct task *t, CUcontext c)
{
	*t = (struct task){.run = load};
	fakegpu_hold("cuModuleLoadData", 1);
	task_begin(t, c);
	task_settle(t, "cuModuleLoadData", 1);
}

/* another loads one meanwhile. Should it wait for the first, so be it. */
static void another(struct task *t, CUcontext c)
{
	*t = (struct task){.run = load};
	task_begin(t, c);
	task_returned(t, SOON);
}

static void end(struct task *t)
{
	fakegpu_open("cuModuleLoadData");
	JOIN(t);
}

/* A reading meanwhile: by a thread that waits for its device. */
static void looked_at(void)
{
	struct task t;
	CUcontext c = start();
	set_limit(0, CONTEXT + MODULE - MIB);
	begin(&t, c);
	later();
	OK(cuCtxSynchronize());
	end(&t);
	EQ(t.result, CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(0);
	SAME();
}

/* Another that is refused meanwhile, and reads what there is after undoing it. */
static void refused(void)
{
	struct task t, u;
	CUcontext c = start();
	OK(cuCtxSynchronize()); /* the driver's count is known from here on */
	set_limit(0, CONTEXT + MODULE - MIB);
	begin(&t, c);
	another(&u, c);
	end(&t);
	JOIN(&u);
	EQ(u.result, CUDA_ERROR_OUT_OF_MEMORY);
	EQ(t.result, CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(0);
	SAME();
}

/* Two at once where there is room for one: not both are granted, and what is charged is what
 * is there. */
static void two(void)
{
	struct task t, u;
	CUcontext c = start();
	OK(cuCtxSynchronize());
	set_limit(0, CONTEXT + MODULE + MIB);
	begin(&t, c);
	another(&u, c);
	end(&t);
	JOIN(&u);
	CHECK(u.result != CUDA_SUCCESS || t.result != CUDA_SUCCESS);
	WITHIN_LIMIT(0);
	SAME();
}

/* One that fits is a module, and no overhead. */
static void granted(void)
{
	struct task t;
	CUcontext c = start();
	set_limit(0, 1000 * MIB);
	begin(&t, c);
	later();
	OK(cuCtxSynchronize());
	end(&t);
	OK(t.result);
	SAME();
	OK(cuModuleUnload(t.module));
	SAME();
}

RUN_PARTS(true, {"looked at", looked_at}, {"refused", refused}, {"two", two}, {"granted", granted})
