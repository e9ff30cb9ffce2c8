/* A process whose slot was taken away takes another, and brings along what it holds. What
 * its other threads free at that very moment is given back all the same. */
#include "park.h"

static CUresult allocate(struct task *t) { return cuMemAlloc_v2(&t->p, t->bytes); }
static CUresult release(struct task *t) { return cuMemFree_v2(t->p); }

int main(void)
{
	struct task a = {.run = allocate, .bytes = MIB}, f = {.run = release};
	CUcontext c = start(); /* 100 MiB */
	OK(cuMemAlloc_v2(&f.p, 300 * MIB));
	be_evicted();
	EQ(region_used(region_here(), 0), 0);
	task_begin(&a, c); /* RATION_FAULT: stops where it has the new slot, and has brought nothing yet */
	wait_parked();
	task_begin(&f, c);
	task_returned(&f, SOON); /* should it wait for the other, so be it */
	unpark();
	JOIN(&a);
	JOIN(&f);
	OK(a.result);
	OK(f.result);
	LOGGED("returning more than is held", 0);
	SAME();
	EQ(usage_of(0).total, 101 * MIB);
	return FINISH();
}
