/* The first contexts of a job's first process, made by threads at once: what one costs is
 * remembered, and not what two or three of them did. */
#include "stranger.h"

#define COST (100 * MIB)

static CUresult create(struct task *t) { return cuCtxCreate_v2(&t->made, 0, 0); }
static CUresult retain(struct task *t) { return cuDevicePrimaryCtxRetain(&t->made, 0); }

/* Two, both inside the driver before either has taken its memory, and until both have.
 * Should one wait for the other, so be it. */
static void at_once(CUresult (*first)(struct task *), CUresult (*second)(struct task *))
{
	static const char *const calls[] = {"cuCtxCreate", "cuDevicePrimaryCtxRetain"};
	static const char *const before[] = {"cuCtxCreate:before", "cuDevicePrimaryCtxRetain:before"};
	struct task a = {.run = first}, b = {.run = second};
	OK(cuInit(0));
	EQ(remembered_cost(), 0);
	for (int i = 0; i < 2; i++) {
		fakegpu_hold(calls[i], 2);
		fakegpu_hold(before[i], 2);
	}
	task_begin(&a, NULL);
	task_begin(&b, NULL);
	for (unsigned ms = 0; ms < SOON && fakegpu_held(before[0], 2, 0) + fakegpu_held(before[1], 2, 0) < 2; ms++)
		pause_ms(1);
	fakegpu_open(before[0]);
	fakegpu_open(before[1]);
	for (unsigned ms = 0; ms < SOON && fakegpu_held(calls[0], 2, 0) + fakegpu_held(calls[1], 2, 0) < 2; ms++)
		pause_ms(1);
	fakegpu_open(calls[0]);
	fakegpu_open(calls[1]);
	JOIN(&a);
	JOIN(&b);
	OK(a.result);
	OK(b.result);
	CHECK(remembered_cost() == COST || remembered_cost() == 0); /* where none was measured alone */
	SAME();
	EQ(held(RATION_CONTEXT), 2 * COST);
}

static void created(void) { at_once(create, create); }
static void retained(void) { at_once(retain, create); }

/* A process after them has what is left, and not less. */
static void next(void)
{
	CUdeviceptr p;
	CUcontext c;
	set_limit(0, 290 * MIB);
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&c, 0));
	OK(cuCtxSetCurrent(c));
	OK(cuMemAlloc_v2(&p, 190 * MIB));
	SAME();
}

/* Each of the first two in a job that knows nothing yet. */
static void forget(void) { store_release(&region_here()->m->devices[0].context_cost, 0); }

RUN_PARTS(false, {"created", created}, {"next", next}, {"forget", forget}, {"retained", retained}, {"next", next})
