/* A dma-buf keeps its memory after it was freed: it stays charged until the last descriptor is closed. */
#include "../later.h"
#include "stranger.h"

#define SIZE (300 * MIB)
#define CONTEXT (100 * MIB)

static int dma_buf(CUdeviceptr at, size_t bytes)
{
	int fd = -1;
	OK(cuMemGetHandleForAddressRange(&fd, at, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	return fd;
}

static CUdeviceptr allocate(void)
{
	CUdeviceptr p = 0;
	OK(cuMemAlloc_v2(&p, SIZE));
	return p;
}

/* After a reading: the driver has these bytes for no process, and the job is charged for them, so that they
 * cannot be had again. */
static void kept(uint64_t bytes)
{
	CUdeviceptr p;
	struct fakegpu_shared s = {0};
	later();
	OK(cuCtxSynchronize());
	EQ(fakegpu_shared(0, &s), 0);
	EQ(s.unlisted, bytes);
	SAME();
	EQ(held(RATION_DATA), bytes);
	EQ(cuMemAlloc_v2(&p, limit_of(0) - CONTEXT - bytes + MIB), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemAlloc_v2(&p, limit_of(0) - CONTEXT - bytes));
	OK(cuMemFree_v2(p));
	SAME();
}

/* kept, and all of it is returned when the descriptor is closed. */
static void kept_until_closed(int fd)
{
	int copy = dup(fd);
	kept(SIZE);
	close(fd);
	kept(SIZE);
	close(copy);
	kept(0);
}

static void freed(void)
{
	start();
	CUdeviceptr p = allocate();
	int fd = dma_buf(p, SIZE);
	SAME();
	EQ(held(RATION_DATA), SIZE);
	OK(cuMemFree_v2(p));
	kept_until_closed(fd);
}

static void freed_async(void)
{
	start();
	CUdeviceptr p = allocate();
	int fd = dma_buf(p, SIZE);
	OK(cuMemFreeAsync(p, NULL));
	kept_until_closed(fd);
}

/* A part of the allocation, which does not begin where the allocation does. */
static void part(void)
{
	start();
	CUdeviceptr p = allocate(), other = allocate();
	int fd = dma_buf(p + 2 * MIB, 4096);
	OK(cuMemFree_v2(other));
	OK(cuMemFree_v2(p));
	kept_until_closed(fd);
}

/* Closed before the memory is freed: nothing is kept. */
static void closed_first(void)
{
	start();
	CUdeviceptr p = allocate();
	close(dma_buf(p, SIZE));
	OK(cuMemFree_v2(p));
	kept(0);
}

/* The job cannot have more than its limit by freeing what a dma-buf keeps. */
static void repeated(void)
{
	CUdeviceptr p;
	int fd[3];
	start();
	for (unsigned i = 0; i < 3; i++) {
		p = allocate();
		fd[i] = dma_buf(p, SIZE);
		OK(cuMemFree_v2(p));
	}
	EQ(cuMemAlloc_v2(&p, SIZE), CUDA_ERROR_OUT_OF_MEMORY);
	kept(3 * SIZE);
	close(fd[1]);
	kept(2 * SIZE);
	close(fd[0]);
	close(fd[2]);
	kept(0);
}

static void context_ended(void)
{
	CUcontext c;
	start();
	OK(cuCtxCreate_v2(&c, 0, 0));
	CUdeviceptr p = allocate();
	int fd = dma_buf(p, SIZE);
	OK(cuCtxDestroy_v2(c));
	EQ(held(RATION_DATA), SIZE);
	kept_until_closed(fd);
}

/* Mapped memory, that was not made to be exported. */
static void mapped(void)
{
	static const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle h;
	CUdeviceptr at;
	start();
	OK(cuMemCreate(&h, SIZE, &prop, 0));
	OK(cuMemAddressReserve(&at, SIZE, 0, 0, 0));
	OK(cuMemMap(at, SIZE, 0, h, 0));
	OK(cuMemRelease(h));
	int fd = dma_buf(at + 4 * MIB, 4 * MIB);
	OK(cuMemUnmap(at, SIZE));
	kept_until_closed(fd);
	OK(cuMemAddressFree(at, SIZE));
}

/* What the driver makes no dma-buf of, and arguments that it does not take. */
static void refused(void)
{
	CUdeviceptr p, pooled;
	int fd = -1;
	start();
	p = allocate();
	OK(cuMemAllocAsync(&pooled, SIZE, NULL));
	EQ(cuMemGetHandleForAddressRange(&fd, pooled, SIZE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0), CUDA_ERROR_NOT_SUPPORTED);
	EQ(cuMemGetHandleForAddressRange(NULL, p, SIZE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0), CUDA_ERROR_INVALID_VALUE);
	EQ(cuMemGetHandleForAddressRange(&fd, p, SIZE, 7, 0), CUDA_ERROR_INVALID_VALUE);
	EQ(cuMemGetHandleForAddressRange(&fd, p, 2 * SIZE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0), CUDA_ERROR_INVALID_VALUE);
	EQ(fd, -1);
	OK(cuMemFreeAsync(pooled, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemFree_v2(p));
	kept(0);
}

RUN_PARTS(true, {"freed", freed}, {"freed_async", freed_async}, {"part", part}, {"closed_first", closed_first}, {"repeated", repeated},
	  {"context_ended", context_ended}, {"mapped", mapped}, {"refused", refused})
