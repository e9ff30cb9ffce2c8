/* A pool that grows although it seemed to have room, which was freed and cannot be used yet. The
 * growth does not fit. Where the device has come to it meanwhile, it goes back to the driver
 * before the call returns; and it is not this process's any more: not when that brings what it
 * holds to another slot either. The library's clock stands still: a reading that is due would shrink
 * the pool, too. */
#include "../../elf.h"
#include "../later.h"
#include "park.h"

static CUresult grow(struct task *t) { return cuMemAllocAsync(&t->p, t->bytes, NULL); }

static uint64_t reserved(CUmemoryPool pool)
{
	uint64_t n = 0;
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &n));
	return n;
}

int main(void)
{
	struct task a = {.run = grow, .bytes = 48 * MIB};
	struct elf_object driver;
	CUmemoryPool pool;
	CUdeviceptr small, q, rest;
	uint64_t threshold = 1ull << 40;
	CUcontext c = start(); /* 100 MiB of 1 GiB */
	CHECK(elf_named("libcuda.so.1", &driver));
	CUresult (*synchronize)(void) = (CUresult(*)(void))elf_symbol(&driver, "cuCtxSynchronize");
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	OK(cuMemAllocAsync(&q, 40 * MIB, NULL));
	OK(cuMemAllocAsync(&small, MIB, NULL));
	OK(cuMemFreeAsync(q, NULL));
	OK(cuMemAlloc_v2(&rest, limit_of(0) - region_used(region_here(), 0) - 8 * MIB));
	SAME();
	uint64_t before = reserved(pool);
	/* Stopped after what was refused has been freed, and before the pool shrinks. */
	fakegpu_hold("cuStreamQuery", 1);
	task_begin(&a, c);
	task_settle(&a, "cuStreamQuery", 1);
	EQ(fakegpu_held("cuStreamQuery", 1, 0), 1);
	CHECK(reserved(pool) > before);
	OK(synchronize()); /* the driver's own: the library does not know of it */
	fakegpu_open("cuStreamQuery");
	JOIN(&a);
	EQ(a.result, CUDA_ERROR_OUT_OF_MEMORY);
	EQ(reserved(pool), before);
	SAME();
	WITHIN_LIMIT(0);
	OK(cuMemFree_v2(rest));
	SAME();
	be_evicted();
	EQ(region_used(region_here(), 0), 0);
	OK(cuMemAlloc_v2(&q, MIB));
	SAME();
	return FINISH();
}
