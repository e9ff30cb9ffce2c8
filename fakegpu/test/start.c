/* Starting, devices, contexts. */
#include "check.h"

static void before_init(void)
{
	CUdeviceptr p;
	CUcontext c;
	int n = 0;
	EQ(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
	EQ(cuMemAlloc_v2(&p, 5), CUDA_ERROR_NOT_INITIALIZED);
	EQ(cuCtxGetCurrent(&c), CUDA_ERROR_NOT_INITIALIZED);
	OK(cuDriverGetVersion(&n));
	EQ(n, 13000);
	EQ(fakegpu_truth(0, NULL, NULL), -1);
	EQ(cuInit(5), CUDA_ERROR_INVALID_VALUE);
	OK(cuInit(0));
	OK(cuInit(0));
}

static void without_context(void)
{
	CUdeviceptr p;
	CUcontext c = (CUcontext)1;
	CUstream s;
	CUdevice d;
	size_t a, b;
	EQ(cuMemAlloc_v2(&p, 5), CUDA_ERROR_INVALID_CONTEXT);
	EQ(cuCtxPopCurrent_v2(&c), CUDA_ERROR_INVALID_CONTEXT);
	EQ(cuCtxGetDevice(&d), CUDA_ERROR_INVALID_CONTEXT);
	EQ(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
	EQ(cuMemGetInfo_v2(&a, &b), CUDA_ERROR_INVALID_CONTEXT);
	EQ(cuStreamCreate(&s, 0), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuCtxSetCurrent(NULL));
	OK(cuCtxGetCurrent(&c));
	CHECK(c == NULL);
	OK(cuMemFree_v2(0));
	EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
	EQ(cuCtxDestroy_v2(NULL), CUDA_ERROR_INVALID_VALUE);
	EQ(cuModuleUnload(NULL), CUDA_ERROR_INVALID_HANDLE);
	EQ(cuArrayDestroy(NULL), CUDA_ERROR_INVALID_HANDLE);
}

static void devices(void)
{
	CUuuid uuid, other;
	char text[64];
	unsigned small;
	size_t total;
	int n;
	OK(cuDeviceGetCount(&n));
	EQ(n, 2);
	EQ(cuDeviceGet(&n, 2), CUDA_ERROR_INVALID_DEVICE);
	EQ(cuDeviceGet(&n, -1), CUDA_ERROR_INVALID_DEVICE);
	OK(cuDeviceGetName(text, sizeof text, 1));
	CHECK(strcmp(text, "NVIDIA H200") == 0);
	OK(cuDeviceTotalMem_v2(&total, 0));
	EQ(total, 143771 * MIB - 629824 * KIB);
	OK(cuDeviceTotalMem(&small, 0));
	EQ(small, UINT32_MAX);
	OK(cuDeviceGetUuid_v2(&uuid, 0));
	OK(cuDeviceGetUuid_v2(&other, 1));
	CHECK(memcmp(&uuid, &other, sizeof uuid) != 0);
	OK(cuDeviceGetAttribute(&n, 75, 0));
	EQ(n, 9);
	EQ(cuDeviceGetAttribute(&n, 0, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuDeviceGetPCIBusId(text, sizeof text, 1));
	OK(cuDeviceGetByPCIBusId(&n, text));
	EQ(n, 1);
}

static void contexts(void)
{
	const uint64_t cost = 518 * MIB;
	uint64_t before;
	CUcontext primary, same, a, b, c;
	CUdeviceptr p;
	unsigned flags, version, pushed;
	size_t limit;
	int active;

	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	EQ(active, 0);
	EQ(mine(), 0);
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	OK(cuDevicePrimaryCtxRetain(&same, 0));
	CHECK(primary == same);
	EQ(mine(), cost);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	EQ(mine(), cost);

	OK(cuCtxCreate_v2(&a, 0, 0));
	OK(cuCtxCreate_v4(&b, NULL, 0, 0));
	EQ(mine(), 3 * cost);
	OK(cuCtxGetCurrent(&c));
	CHECK(c == b);
	OK(cuCtxGetApiVersion(b, &version));
	EQ(version, 3020);
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
	OK(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
	EQ(limit, 4096);
	EQ(cuCtxGetLimit(&limit, (CUlimit)3), CUDA_ERROR_UNSUPPORTED_LIMIT);
	for (pushed = 0; cuCtxPushCurrent_v2(b) == CUDA_SUCCESS;)
		pushed++;
	before = mine();
	EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_INVALID_CONTEXT); /* the stack is full, and no context is made */
	EQ(mine(), before);
	while (pushed-- > 0)
		OK(cuCtxPopCurrent_v2(&c));
	OK(cuMemAlloc_v2(&p, MIB));
	OK(cuCtxDestroy_v2(b)); /* takes its memory along, and the top of the stack */
	EQ(fakegpu_leaks(), 1);
	EQ(mine(), 2 * cost);
	OK(cuCtxGetCurrent(&c));
	CHECK(c == a);
	EQ(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	EQ(fakegpu_errors(), 1);
	EQ(cuCtxDestroy_v2(b), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	EQ(fakegpu_errors(), 2);

	OK(cuCtxPushCurrent_v2(a));
	OK(cuCtxDestroy_v2(a));
	EQ(cuMemAlloc_v2(&p, 5), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	OK(cuCtxPopCurrent_v2(&c));
	CHECK(c == a);
	EQ(cuCtxPopCurrent_v2(&c), CUDA_ERROR_INVALID_CONTEXT);

	OK(cuCtxSetCurrent(primary));
	OK(cuCtxAttach(&c, 0));
	OK(cuCtxDetach(c));
	OK(cuDevicePrimaryCtxReset_v2(0));
	EQ(mine(), 0);
	EQ(cuMemAlloc_v2(&p, 5), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	OK(cuDevicePrimaryCtxRelease_v2(0)); /* what was retained is still to be released */
	EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuDevicePrimaryCtxRetain(&same, 0));
	CHECK(primary == same);
	OK(cuMemAlloc_v2(&p, 5));
	OK(cuMemFree_v2(p));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	EQ(mine(), 0);
}

/* As a driver 580 on an H200 does it, step by step. */
static void green(void)
{
	CUdevResource all;
	CUdevResourceDesc desc;
	CUgreenCtx g;
	CUcontext c, primary;
	CUdeviceptr p;
	OK(cuDeviceGetDevResource(0, &all, 1));
	EQ(all.sm.smCount, 132);
	OK(cuDevResourceGenerateDesc(&desc, &all, 1));
	OK(cuGreenCtxCreate(&g, desc, 0, 1));
	EQ(mine(), 522 * MIB);
	OK(cuCtxFromGreenCtx(&c, g));
	OK(cuCtxSetCurrent(c));
	OK(cuMemAlloc_v2(&p, MIB));
	OK(cuMemFree_v2(p));
	EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT); /* it is not ours */
	OK(cuMemAlloc_v2(&p, MIB));
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	CHECK(primary != c);
	EQ(cuCtxDestroy_v2(c), CUDA_ERROR_INVALID_CONTEXT);
	EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_ERROR_NOT_PERMITTED);
	OK(cuGreenCtxDestroy(g));
	EQ(mine(), 519 * MIB); /* its memory stays, as the primary context's */
	EQ(cuMemAlloc_v2(&p, MIB), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	OK(cuDevicePrimaryCtxReset_v2(0));
	EQ(mine(), 0);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	OK(cuGreenCtxCreate(&g, desc, 0, 1));
	OK(cuCtxFromGreenCtx(&c, g));
	OK(cuCtxSetCurrent(c));
	OK(cuMemAlloc_v2(&p, MIB));
	OK(cuGreenCtxDestroy(g)); /* with its last holder it goes */
	EQ(mine(), 0);
}

/* Run again under various CUDA_VISIBLE_DEVICES. */
static int visible(void)
{
	int n = 0;
	CUresult r = cuInit(0);
	if (r == CUDA_SUCCESS)
		r = cuDeviceGetCount(&n);
	return r == CUDA_SUCCESS ? n : (int)r % 256;
}

static void visibility(void)
{
	static const struct {
		const char *list;
		int count;
	} cases[] = {
		{"0", 1},     {"1,0", 2}, {" 0", 1},   {"0,7,1", 1},      {"7,0", 100},
		{"0,0", 101}, {"", 100},  {"-1", 100}, {"nonsense", 100}, {"GPU-", 100},
	};
	unsigned char *uuid;
	CUuuid second;
	char text[16];

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		EQ(WEXITSTATUS(AGAIN("visible", "CUDA_VISIBLE_DEVICES", cases[i].list)), cases[i].count);
	OK(cuDeviceGetUuid_v2(&second, 1));
	uuid = second.bytes;
	snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x", uuid[0], uuid[1], uuid[2], uuid[3]);
	EQ(WEXITSTATUS(AGAIN("visible", "CUDA_VISIBLE_DEVICES", text)), 1);
	EQ(WEXITSTATUS(AGAIN("visible", "FAKEGPU", "nosuch")), 802 % 256);
	EQ(WEXITSTATUS(AGAIN("visible", "FAKEGPU", "a100x4")), 802 % 256); /* in use as another machine */
	EQ(WEXITSTATUS(AGAIN("visible", "FAKEGPU", "")), 2);               /* asks for none: takes what there is */
}

static void errors(void)
{
	const char *text = NULL;
	const void *table;
	CUuuid id = {{0}};
	OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
	CHECK(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
	OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
	CHECK(strcmp(text, "out of memory") == 0);
	EQ(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
	EQ(cuGetExportTable(&table, &id), CUDA_ERROR_INVALID_VALUE);
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1)
		return visible();
	setenv("FAKEGPU", "h200x2", 1);
	before_init();
	without_context();
	devices();
	contexts();
	green();
	visibility();
	errors();
	return FINISH();
}
