/* Stream-ordered memory, with the numbers of an H200. */
#include "check.h"

static CUmemoryPool pool;

static uint64_t attribute(CUmemPool_attribute a)
{
	uint64_t n = ~0ull;
	OK(cuMemPoolGetAttribute(pool, a, &n));
	return n;
}

#define RESERVED attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
#define USED attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)

static void growing(void)
{
	static const struct {
		size_t size, used, reserved;
	} steps[] = {
		{1, 1, 32}, {512, 513, 32}, {MIB, 1049089, 32}, {20 * MIB, 22020609, 32}, {40 * MIB, 63963649, 64},
	};
	enum { STEPS = sizeof steps / sizeof *steps };
	CUdeviceptr p[STEPS];
	uint64_t before = mine();
	for (int i = 0; i < STEPS; i++) {
		OK(cuMemAllocAsync(&p[i], steps[i].size, NULL));
		EQ(USED, steps[i].used);
		EQ(RESERVED, steps[i].reserved * MIB);
		EQ(mine() - before, steps[i].reserved * MIB);
	}
	for (int i = 0; i < STEPS; i++)
		OK(cuMemFreeAsync(p[i], NULL));
	EQ(USED, 0);
	EQ(RESERVED, 64 * MIB); /* until a synchronisation */
	OK(cuStreamSynchronize(NULL));
	EQ(RESERVED, 0);
	EQ(mine(), before);
	EQ(attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 63963649);
	EQ(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 64 * MIB);
}

static void keeping(void)
{
	uint64_t threshold = 1ull << 40, before = mine();
	CUdeviceptr p;
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	OK(cuMemAllocAsync_ptsz(&p, 5 * MIB, NULL));
	OK(cuMemFree_v2(p)); /* cuMemFree takes pool memory too */
	OK(cuCtxSynchronize());
	EQ(RESERVED, 32 * MIB);
	OK(cuMemPoolTrimTo(pool, 0));
	EQ(RESERVED, 0);
	EQ(mine(), before);
	threshold = 0;
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
}

static void mistakes(void)
{
	CUdeviceptr p, q;
	unsigned errors = fakegpu_errors();
	EQ(cuMemFreeAsync(5, NULL), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFreeAsync(0, NULL));
	OK(cuMemAllocAsync(&p, 0, NULL));
	EQ(p, 0);
	EQ(cuMemAllocAsync(&p, 1ull << 40, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(cuMemAllocAsync(&p, 5, (CUstream)0x77), CUDA_ERROR_INVALID_HANDLE);
	EQ(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE); /* the device's own */
	OK(cuMemAlloc_v2(&q, 5));
	OK(cuMemFreeAsync(q, NULL)); /* the driver takes these too */
	EQ(cuMemFree_v2(q), CUDA_ERROR_INVALID_VALUE);
	EQ(fakegpu_errors() - errors, 3);
}

/* Pool memory outlives the context it was allocated in. */
static void outliving(void)
{
	uint64_t before = mine();
	CUdeviceptr p;
	CUcontext c;
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(cuMemAllocAsync(&p, MIB, NULL));
	OK(cuCtxDestroy_v2(c));
	EQ(mine() - before, 32 * MIB);
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	EQ(mine(), before);
}

static void maximum(void)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .maxSize = 10 * MIB};
	uint64_t before = mine();
	CUmemoryPool small;
	CUdeviceptr p, q;
	OK(cuMemPoolCreate(&small, &props));
	OK(cuMemAllocFromPoolAsync(&p, 8 * MIB, small, NULL));
	EQ(mine() - before, 32 * MIB); /* the maximum is rounded to chunks too */
	OK(cuMemAllocFromPoolAsync(&q, 8 * MIB, small, NULL));
	OK(cuMemFreeAsync(q, NULL));
	EQ(cuMemAllocFromPoolAsync(&q, 40 * MIB, small, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFreeAsync(p, NULL));
	OK(cuMemPoolDestroy(small));
	OK(cuCtxSynchronize());
	EQ(mine(), before);
}

static void own(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool was = pool, now;
	CUmemPoolPtrExportData data;
	uint64_t before = mine();
	CUdeviceptr p, imported;
	int access, fd;

	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemPoolGetAccess(&access, pool, &props.location));
	EQ(access, CU_MEM_ACCESS_READWRITE);
	OK(cuMemAllocFromPoolAsync(&p, MIB, pool, NULL));
	EQ(mine() - before, 32 * MIB);
	OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemPoolImportFromShareableHandle(&now, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemPoolExportPointer(&data, p));
	OK(cuMemPoolImportPointer(&imported, now, &data));
	EQ(mine() - before, 32 * MIB); /* imports are the exporter's */
	OK(cuMemFreeAsync(imported, NULL));
	OK(cuMemPoolDestroy(now));
	close(fd);
	OK(cuDeviceSetMemPool(0, pool));
	OK(cuDeviceGetMemPool(&now, 0));
	CHECK(now == pool);
	OK(cuMemPoolDestroy(pool)); /* lives on until its last allocation */
	EQ(mine() - before, 32 * MIB);
	EQ(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &before), CUDA_ERROR_INVALID_VALUE);
	before = mine() - 32 * MIB;
	OK(cuMemFreeAsync(p, NULL));
	EQ(mine() - before, 32 * MIB);
	OK(cuStreamSynchronize(NULL));
	EQ(mine(), before);
	pool = was;
	OK(cuDeviceGetMemPool(&now, 0));
	CHECK(now == pool);
	OK(cuMemGetDefaultMemPool(&now, &props.location, CU_MEM_ALLOCATION_TYPE_PINNED));
	CHECK(now == pool);
}

/* What is left of a destroyed pool goes with a free that waits, or is waited for. */
static void destroyed(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	uint64_t before = mine();
	CUmemoryPool own;
	CUdeviceptr p;
	for (int waits = 0; waits < 2; waits++) {
		OK(cuMemPoolCreate(&own, &props));
		OK(cuMemAllocFromPoolAsync(&p, MIB, own, NULL));
		OK(cuMemPoolDestroy(own));
		EQ(mine() - before, 32 * MIB);
		OK(waits ? cuMemFree_v2(p) : cuMemFreeAsync(p, NULL));
		EQ(mine() - before, waits ? 0 : 32 * MIB);
		OK(cuStreamSynchronize(NULL));
		EQ(mine(), before);
	}
}

/* CUDA 13: of managed memory, with a device of its own or with none. */
static void managed(void)
{
	uint64_t before = mine();
	for (int placed = 0; placed < 2; placed++) {
		CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = {placed, 0}};
		CUmemoryPool was = pool;
		CUdeviceptr p, q;
		OK(cuMemPoolCreate(&pool, &props));
		OK(cuMemAllocFromPoolAsync(&p, 3 * MIB, pool, NULL));
		OK(cuMemAllocFromPoolAsync(&q, MIB, pool, NULL));
		EQ(RESERVED, 32 * MIB);
		EQ(mine() - before, placed ? 4 * MIB : 0);
		((char *)(uintptr_t)p)[0] = 'x'; /* it is really there */
		OK(cuMemPrefetchAsync(p, 3 * MIB, 0, NULL));
		EQ(mine() - before, placed ? 4 * MIB : 3 * MIB);
		OK(cuMemFreeAsync(p, NULL));
		OK(cuMemFree_v2(q));
		EQ(mine(), before);
		EQ(USED, 0);
		OK(cuMemPoolDestroy(pool));
		pool = was;
	}
}

int main(void)
{
	start();
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	EQ(RESERVED, 0);
	growing();
	keeping();
	mistakes();
	own();
	outliving();
	maximum();
	destroyed();
	managed();
	return FINISH();
}
