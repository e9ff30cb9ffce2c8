/* Linear, managed and host memory; what the driver refuses and what it reports. */
#include "check.h"

static void sizes(void)
{
	CUdeviceptr p, q;
	uint64_t before = mine();
	EQ(cuMemAlloc_v2(&p, 0), CUDA_ERROR_INVALID_VALUE);
	EQ(cuMemAlloc_v2(NULL, 5), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAlloc_v2(&p, 1));
	EQ(mine() - before, 512);
	OK(cuMemAlloc_v2(&q, 513));
	EQ(mine() - before, 1536);
	CHECK(p != q && p % 512 == 0 && q % 512 == 0);
	OK(cuMemFree_v2(p));
	OK(cuMemFree_v2(q));
	EQ(mine(), before);
}

static void pitches(void)
{
	static const struct {
		size_t width, height, pitch;
	} cases[] = {{1, 10, 512}, {1000, 3, 1024}, {513, 1, 1024}};
	uint64_t before = mine();
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		CUdeviceptr p;
		size_t pitch;
		OK(cuMemAllocPitch_v2(&p, &pitch, cases[i].width, cases[i].height, 4));
		EQ(pitch, cases[i].pitch);
		EQ(mine() - before, cases[i].pitch * cases[i].height);
		OK(cuMemFree_v2(p));
	}
	CUdeviceptr p;
	size_t pitch;
	EQ(cuMemAllocPitch_v2(&p, &pitch, 5, 5, 3), CUDA_ERROR_INVALID_VALUE);
}

static void limits(void)
{
	CUdeviceptr p = 7, all;
	size_t left, total;
	OK(cuMemGetInfo_v2(&left, &total));
	EQ(total, 1024 * MIB);
	EQ(total - left, mine());
	EQ(cuMemAlloc_v2(&p, left + 1), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(p, 0);
	OK(cuMemAlloc_v2(&all, left));
	EQ(cuMemAlloc_v2(&p, 1), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemGetInfo_v2(&left, &total));
	EQ(left, 0);
	OK(cuMemFree_v2(all));
	EQ(cuMemAlloc_v2(&p, ~(size_t)0), CUDA_ERROR_OUT_OF_MEMORY);
}

static void mistakes(void)
{
	unsigned errors = fakegpu_errors();
	CUdeviceptr p, base;
	size_t size;
	OK(cuMemAlloc_v2(&p, 3 * MIB));
	OK(cuMemGetAddressRange_v2(&base, &size, p + 5));
	CHECK(base == p);
	EQ(size, 3 * MIB);
	EQ(cuMemGetAddressRange_v2(&base, &size, p + 3 * MIB), CUDA_ERROR_NOT_FOUND);
	EQ(cuMemFree_v2(p + 512), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree_v2(p));
	EQ(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	EQ(cuMemFree_v2(0x1234), CUDA_ERROR_INVALID_VALUE);
	EQ(fakegpu_errors() - errors, 3);
}

/* The un-suffixed calls of CUDA 2: 32 bits for sizes and pointers. */
static void legacy(void)
{
	CUdeviceptr_v1 p[2] = {0, 0xabad1dea};
	unsigned left, total;
	OK(cuMemAlloc(&p[0], 4096));
	EQ(p[1], 0xabad1dea); /* no more than 32 bits were written */
	CHECK(p[0] != 0);
	OK(cuMemGetInfo(&left, &total));
	EQ(total, 1024 * MIB);
	OK(cuMemFree(p[0]));
}

static void addresses(void)
{
	CUdeviceptr p, q;
	OK(cuMemAlloc_v2(&p, MIB));
	OK(cuMemFree_v2(p));
	OK(cuMemAlloc_v2(&q, MIB));
	CHECK(p == q); /* reused at once */
	OK(cuMemFree_v2(q));
}

static uint64_t other(void)
{
	uint64_t n = 0;
	EQ(fakegpu_truth(1, &n, NULL), 0);
	return n;
}

static uint64_t sms(void)
{
	CUdevResource all;
	OK(cuDeviceGetDevResource(0, &all, 1));
	return all.sm.smCount;
}

static void managed(void)
{
	CUdeviceptr p;
	uint64_t before = mine();
	unsigned flag;
	char *c;
	EQ(cuMemAllocManaged(&p, MIB, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAllocManaged(&p, MIB, CU_MEM_ATTACH_GLOBAL));
	EQ(mine(), before);
	c = (char *)(uintptr_t)p;
	c[0] = c[MIB - 1] = 'x';
	OK(cuMemsetD8_v2(p, 'y', MIB));
	CHECK(c[0] == 'y' && c[MIB - 1] == 'y');
	OK(cuPointerGetAttribute(&flag, CU_POINTER_ATTRIBUTE_IS_MANAGED, p + 9));
	EQ(flag, 1);
	OK(cuMemPrefetchAsync(p, MIB, 0, NULL));
	EQ(mine() - before, MIB);
	OK(cuMemPrefetchAsync(p, MIB, CU_DEVICE_CPU, NULL));
	EQ(mine(), before);
	OK(cuMemPrefetchAsync(p, MIB, 0, NULL));
	OK(cuMemPrefetchAsync(p, MIB, 1, NULL)); /* from one device to another */
	EQ(mine(), before);
	EQ(other(), MIB);
	OK(cuMemFree_v2(p));
	EQ(mine(), before);
	EQ(other(), 0);
}

/* Limits that take memory, with the numbers of an H200. */
static void context_limits(void)
{
	uint64_t before = mine();
	CUcontext c;
	OK(cuCtxCreate_v2(&c, 0, 0));
	uint64_t made = mine();
	OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 64 * MIB));
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB)); /* until a kernel needs it: module.c */
	EQ(mine(), made);
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
	EQ(mine(), made);
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
	EQ(mine() - made, 3072 * 2048 * sms());
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
	EQ(mine() - made, 1024 * 2048 * sms());
	EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 64 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(mine() - made, 1024 * 2048 * sms());
	OK(cuCtxDestroy_v2(c));
	EQ(mine(), before);
}

static void host(void)
{
	static char buffer[4096];
	CUdeviceptr d;
	void *p;
	OK(cuMemHostAlloc(&p, 100, 0));
	memset(p, 1, 100);
	OK(cuMemHostGetDevicePointer_v2(&d, p, 0));
	EQ(cuMemFree_v2(d), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFreeHost(p));
	EQ(cuMemFreeHost(p), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemHostRegister_v2(buffer, sizeof buffer, 0));
	EQ(cuMemHostRegister_v2(buffer, 10, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	OK(cuMemHostUnregister(buffer));
	EQ(cuMemHostUnregister(buffer), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

static void copies(void)
{
	char text[64] = "something";
	CUdeviceptr p;
	int type;
	OK(cuMemAlloc_v2(&p, 64));
	OK(cuMemcpyHtoD_v2(p, text, 64));
	OK(cuMemcpyDtoH_v2(text, p, 64));
	EQ(cuMemcpyDtoH_v2(text, p, 65), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemsetD32_v2(p, 1, 16));
	EQ(cuMemsetD32_v2(p, 1, 17), CUDA_ERROR_INVALID_VALUE);
	EQ(cuMemsetD8_v2(0x99, 0, 4), CUDA_ERROR_INVALID_VALUE);
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
	EQ(type, CU_MEMORYTYPE_DEVICE);
	EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)text), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree_v2(p));
}

int main(void)
{
	setenv("FAKEGPU", "smallx2", 1);
	start();
	sizes();
	pitches();
	limits();
	mistakes();
	legacy();
	addresses();
	managed();
	context_limits();
	host();
	copies();
	EQ(mine(), 300 * MIB);
	return FINISH();
}
