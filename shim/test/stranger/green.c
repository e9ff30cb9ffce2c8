/* Green contexts, which keep the primary context alive and use its memory: what was
 * allocated in one is given back when the primary context ends, whichever of its holders
 * is the last, and no context's cost stays. */
#include "stranger.h"

#define COST (100 * MIB)

static CUdevResourceDesc desc;

static CUgreenCtx green(CUcontext *c)
{
	CUdevResource all;
	CUgreenCtx g;
	if (desc == NULL) {
		OK(cuDeviceGetDevResource(0, &all, 1));
		OK(cuDevResourceGenerateDesc(&desc, &all, 1));
	}
	OK(cuGreenCtxCreate(&g, desc, 0, 1));
	OK(cuCtxFromGreenCtx(c, g));
	return g;
}

static void last_holder(void)
{
	CUcontext c;
	CUdeviceptr p;
	CUmodule m;
	OK(cuInit(0));
	CUgreenCtx g = green(&c);
	OK(cuCtxSetCurrent(c));
	OK(cuMemAlloc_v2(&p, 200 * MIB));
	OK(cuModuleLoadData(&m, PTX("")));
	BALANCED(0);
	OK(cuGreenCtxDestroy(g));
	EQ(in_use(0), 0);
	EQ(usage_of(0).total, 0);
	BALANCED(0);
}

/* It is the job's first, of unknown cost, and the primary context outlives it. */
static void first(void)
{
	CUcontext c, primary;
	OK(cuInit(0));
	CUgreenCtx g = green(&c);
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	OK(cuCtxSetCurrent(primary));
	BALANCED(0);
	OK(cuGreenCtxDestroy(g));
	EQ(in_use(0), COST);
	BALANCED(0);
	EQ(held(RATION_CONTEXT), COST);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	EQ(in_use(0), 0);
	BALANCED(0);
}

/* From here on the job knows what a context costs. */
static void primary_alone(void)
{
	start();
	EQ(remembered_cost(), COST);
}

/* The primary context was there before, and is the last to go. */
static void outlived(void)
{
	CUcontext c, primary = start();
	CUdeviceptr p;
	CUgreenCtx g = green(&c);
	OK(cuCtxSetCurrent(c));
	OK(cuMemAlloc_v2(&p, 200 * MIB));
	BALANCED(0);
	OK(cuCtxSetCurrent(primary));
	EQ(held(RATION_CONTEXT), COST + 4 * MIB);
	OK(cuGreenCtxDestroy(g));
	SAME(); /* its memory is the primary context's, as an H200 has it */
	EQ(held(RATION_DATA), 200 * MIB);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	EQ(in_use(0), 0);
	BALANCED(0);
}

/* Its stacks are the primary context's, too. */
static void stack(void)
{
	CUcontext c, primary = start();
	CUgreenCtx g = green(&c);
	OK(cuCtxSetCurrent(c));
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
	SAME();
	CHECK(held(RATION_CONTEXT) > 2 * COST);
	OK(cuCtxSetCurrent(primary));
	OK(cuGreenCtxDestroy(g));
	SAME();
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
	SAME();
	EQ(held(RATION_CONTEXT), COST);
}

/* One that makes the primary context active beside another context, where there is no room
 * for both: refused before it is made. */
static void refused(void)
{
	CUdevResource all;
	CUcontext own;
	CUgreenCtx g;
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&own, 0, 0));
	OK(cuDeviceGetDevResource(0, &all, 1));
	OK(cuDevResourceGenerateDesc(&desc, &all, 1));
	set_limit(0, 2 * COST - MIB);
	fakegpu_hold("cuGreenCtxCreate", 1);
	EQ(cuGreenCtxCreate(&g, desc, 0, 1), CUDA_ERROR_OUT_OF_MEMORY);
	fakegpu_open("cuGreenCtxCreate");
	set_limit(0, 2 * COST + MIB); /* and undone where the rest of it has none */
	EQ(cuGreenCtxCreate(&g, desc, 0, 1), CUDA_ERROR_OUT_OF_MEMORY);
	SAME();
	set_limit(0, 2 * COST + 4 * MIB);
	OK(cuGreenCtxCreate(&g, desc, 0, 1));
	SAME();
	OK(cuGreenCtxDestroy(g));
	SAME();
	set_limit(0, 1000 * MIB);
}

/* Every order of five steps. All is given back at the end of each. */
enum step { RETAIN, RELEASE, RESET, GREEN, GREEN_END, ALLOCATE, STEPS };

static void walk(unsigned path)
{
	CUgreenCtx greens[8];
	CUcontext c, of_green;
	CUdeviceptr p;
	unsigned retained = 0, n = 0;
	OK(cuInit(0));
	for (unsigned left = path, i = 0; i < 5; i++, left /= STEPS) {
		switch ((enum step)(left % STEPS)) {
		case RETAIN:
			OK(cuDevicePrimaryCtxRetain(&c, 0));
			retained++;
			break;
		case RELEASE:
			if (retained > 0) {
				OK(cuDevicePrimaryCtxRelease_v2(0));
				retained--;
			}
			break;
		case RESET: EQ(cuDevicePrimaryCtxReset_v2(0), n > 0 ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS); break;
		case GREEN: greens[n++] = green(&of_green); break;
		case GREEN_END:
			if (n > 0)
				OK(cuGreenCtxDestroy(greens[--n]));
			break;
		default:
			if (n > 0) {
				OK(cuCtxFromGreenCtx(&of_green, greens[n - 1]));
				OK(cuCtxSetCurrent(of_green));
				OK(cuMemAlloc_v2(&p, 10 * MIB));
			}
		}
		BALANCED(0);
	}
	while (n > 0)
		OK(cuGreenCtxDestroy(greens[--n]));
	for (; retained > 0; retained--)
		OK(cuDevicePrimaryCtxRelease_v2(0));
	EQ(in_use(0), 0);
	BALANCED(0);
}

static void orders(void)
{
	unsigned path = 0;
	while (path < STEPS * STEPS * STEPS * STEPS * STEPS && checks_failed == 0)
		walk(path++);
	if (checks_failed > 0)
		fprintf(stderr, "by path %u\n", path - 1);
}

RUN_PARTS(false, {"first", first}, {"cost is known", primary_alone}, {"last holder", last_holder}, {"outlived", outlived}, {"stack", stack},
	  {"refused", refused}, {"orders", orders})
