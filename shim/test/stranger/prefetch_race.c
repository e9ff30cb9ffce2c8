/* Two threads send one managed range to a device, and the driver refuses one of them: what the other
 * one has moved stays counted. Where it refuses both, nothing does. */
#include "stranger.h"

static CUdeviceptr range;

static CUresult send_too_much(struct task *t)
{
	(void)t;
	return cuMemPrefetchAsync(range, 1ull << 40, 1, NULL);
}

static CUresult send(struct task *t)
{
	(void)t;
	return cuMemPrefetchAsync(range, 300 * MIB, 1, NULL);
}

/* Makes one call while the other one, which began before it, has not come to the driver yet. */
static void send_twice(CUcontext c, CUresult (*first)(struct task *), CUresult (*second)(struct task *))
{
	struct task t = {.run = first};
	fakegpu_hold("cuMemPrefetchAsync:before", 1);
	task_begin(&t, c);
	EQ(fakegpu_held("cuMemPrefetchAsync:before", 1, LONG), 1);
	EQ(second(NULL), second == send ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
	CHECK(region_used(region_here(), 1) >= 400 * MIB);
	fakegpu_open("cuMemPrefetchAsync:before");
	JOIN(&t);
	EQ(t.result, first == send ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
	BALANCED(1);
}

int main(void)
{
	CUcontext c = start(), second;
	CUdeviceptr p;
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	for (int first = 0; first < 2; first++) {
		OK(cuMemAllocManaged(&range, 300 * MIB, CU_MEM_ATTACH_GLOBAL));
		send_twice(c, send_too_much, send_too_much);
		send_twice(c, first ? send : send_too_much, first ? send_too_much : send);
		send_twice(c, send_too_much, send_too_much); /* it is there already */
		OK(cuMemFree_v2(range));
		BALANCED(1);
	}
	OK(cuMemAllocManaged(&range, 300 * MIB, CU_MEM_ATTACH_GLOBAL));
	OK(send(NULL));
	OK(cuCtxSetCurrent(second));
	EQ(cuMemAlloc_v2(&p, 900 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree_v2(range));
	BALANCED(1);
	OK(cuMemAlloc_v2(&p, 900 * MIB));
	WITHIN_LIMIT(1);
	return FINISH();
}
