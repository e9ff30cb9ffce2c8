/* A device's current pool is destroyed while another thread allocates without naming a pool: that
 * gets its memory, and the handle that goes away is not taken for another pool's. */
#include "stranger.h"

static CUmemoryPool current, third;

static CUresult destroy(struct task *t)
{
	(void)t;
	return cuMemPoolDestroy(current);
}

static CUresult replace(struct task *t)
{
	(void)t;
	return cuDeviceSetMemPool(0, third);
}

static CUresult allocate(struct task *t) { return cuMemAllocAsync(&t->p, 100 * MIB, NULL); }

/* Allocates while the driver is asked to destroy the current pool; late: in a thread that has found the
 * pool to be the current one before that. */
static CUdeviceptr allocate_beside_destroy(CUcontext c, bool late)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	struct task a = {.run = allocate}, d = {.run = destroy};
	OK(cuMemPoolCreate(&current, &props));
	OK(cuDeviceSetMemPool(0, current));
	if (late) {
		fakegpu_hold("cuDeviceGetMemPool", 1);
		task_begin(&a, c);
		EQ(fakegpu_held("cuDeviceGetMemPool", 1, LONG), 1);
	}
	fakegpu_hold("cuMemPoolDestroy:before", 1);
	task_begin(&d, c);
	EQ(fakegpu_held("cuMemPoolDestroy:before", 1, LONG), 1);
	if (late)
		fakegpu_open("cuDeviceGetMemPool");
	else
		task_begin(&a, c);
	JOIN(&a);
	OK(a.result);
	fakegpu_open("cuMemPoolDestroy:before");
	JOIN(&d);
	OK(d.result);
	BALANCED(0);
	return a.p;
}

/* The handle is given to another pool, of device 1, as the allocator of the stand-in would have it: that
 * counts there. */
static void use_again(CUcontext second)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
	CUmemoryPool made = NULL;
	CUdeviceptr p;
	OK(cuCtxSetCurrent(second));
	for (unsigned i = 0; i < 200 && made != current; i++)
		OK(cuMemPoolCreate(&made, &props));
	OK(cuMemAllocFromPoolAsync(&p, 300 * MIB, made, NULL));
	BALANCED(0);
	BALANCED(1);
	OK(cuCtxSynchronize());
	BALANCED(0);
	BALANCED(1);
}

/* Destroying a current pool makes the device's own the current one. Another thread that sets a third
 * one meanwhile has its way, whichever comes first. */
static void set_meanwhile(CUcontext c)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	struct task t = {.run = replace};
	CUmemoryPool now;
	OK(cuCtxSetCurrent(c));
	OK(cuMemPoolCreate(&current, &props));
	OK(cuMemPoolCreate(&third, &props));
	OK(cuDeviceSetMemPool(0, current));
	struct task d = {.run = destroy};
	fakegpu_hold("cuDeviceSetMemPool:before", 1);
	task_begin(&d, c);
	EQ(fakegpu_held("cuDeviceSetMemPool:before", 1, LONG), 1);
	task_begin(&t, c);
	task_settle(&t, "cuDeviceSetMemPool:before", 2);
	fakegpu_open("cuDeviceSetMemPool:before");
	JOIN(&d);
	JOIN(&t);
	OK(d.result);
	OK(t.result);
	OK(cuDeviceGetMemPool(&now, 0));
	EQ(now == third, true);
}

/* Where the driver does not destroy a pool (FAKEGPU_FAIL), the current one stays what it was. */
static void not_destroyed(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool pool, current_one[2], now;
	CUdeviceptr p;
	OK(cuMemPoolCreate(&pool, &props));
	current_one[0] = pool;
	OK(cuDeviceGetDefaultMemPool(&current_one[1], 0));
	for (int i = 0; i < 2; i++) {
		OK(cuDeviceSetMemPool(0, current_one[i]));
		EQ(cuMemPoolDestroy(pool), CUDA_ERROR_UNKNOWN);
		OK(cuDeviceGetMemPool(&now, 0));
		EQ(now == current_one[i], true);
		OK(cuMemAllocFromPoolAsync(&p, 10 * MIB, pool, NULL));
		BALANCED(0);
		OK(cuMemFreeAsync(p, NULL));
	}
}

int main(void)
{
	CUcontext c = start(), second;
	CUdeviceptr p[2], q;
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	for (int late = 1; late >= 0; late--)
		p[late] = allocate_beside_destroy(c, late);
	OK(cuMemFreeAsync(p[0], NULL));
	OK(cuMemFreeAsync(p[1], NULL));
	OK(cuCtxSynchronize());
	BALANCED(0);
	OK(cuMemAlloc_v2(&q, 900 * MIB));
	OK(cuMemFree_v2(q));
	use_again(second);
	set_meanwhile(c);
	not_destroyed();
	EQ(fakegpu_errors(), 0);
	return FINISH();
}
