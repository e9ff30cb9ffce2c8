/* A graph that is made by capture is charged before its launch, like one made of nodes: a launch that
 * does not fit is refused. */
#include "stranger.h"

enum { AUTO_FREE_ON_LAUNCH = 1 };

static CUstream stream;

/* Captures an allocation; it is freed in the graph if p is NULL. frees is freed as well, if any. */
static CUgraphExec captured(uint64_t bytes, CUdeviceptr *p, CUdeviceptr frees, unsigned flags)
{
	CUdeviceptr own;
	CUgraphExec e;
	CUgraph g;
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	OK(cuMemAllocAsync(p ? p : &own, bytes, stream));
	if (!p)
		OK(cuMemFreeAsync(own, stream));
	if (frees)
		OK(cuMemFreeAsync(frees, stream));
	OK(cuStreamEndCapture(stream, &g));
	OK(cuGraphInstantiateWithFlags(&e, g, flags));
	OK(cuGraphDestroy(g));
	return e;
}

static void begin(uint64_t room)
{
	start();
	OK(cuStreamCreate(&stream, 1));
	OK(cuCtxSynchronize());
	set_limit(0, in_use(0) + room);
}

#define LAUNCH(exec, result)                             \
	do {                                             \
		EQ(cuGraphLaunch(exec, stream), result); \
		WITHIN_LIMIT(0);                         \
		BALANCED(0);                             \
	} while (0)

/* The first two have room, the third one does not. A graph that has its memory needs none. */
static void refused(void)
{
	CUdeviceptr p[3], rest;
	begin(480 * MIB);
	CUgraphExec e[3];
	for (int i = 0; i < 3; i++)
		e[i] = captured(192 * MIB, &p[i], 0, AUTO_FREE_ON_LAUNCH);
	LAUNCH(e[0], CUDA_SUCCESS);
	LAUNCH(e[1], CUDA_SUCCESS);
	LAUNCH(e[2], CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemAlloc_v2(&rest, 96 * MIB));
	LAUNCH(e[0], CUDA_SUCCESS);
	LAUNCH(e[1], CUDA_SUCCESS);
	OK(cuMemFreeAsync(p[0], stream));
	LAUNCH(e[2], CUDA_SUCCESS);
	LAUNCH(e[0], CUDA_ERROR_OUT_OF_MEMORY);
}

/* One that frees all that it allocates keeps its memory as well. */
static void launched_again(void)
{
	CUdeviceptr rest;
	begin(224 * MIB);
	CUgraphExec e = captured(192 * MIB, NULL, 0, 0);
	LAUNCH(e, CUDA_SUCCESS);
	OK(cuMemAlloc_v2(&rest, 32 * MIB));
	for (int i = 0; i < 3; i++)
		LAUNCH(e, CUDA_SUCCESS);
}

/* A capture that failed leaves nothing: its graph's handle may be another graph's now. */
static void failed(void)
{
	CUdeviceptr p;
	CUgraph g;
	begin(224 * MIB);
	for (int i = 0; i < 4; i++) {
		OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
		OK(cuMemAllocAsync(&p, 300 * MIB, stream));
		CHECK(cuStreamSynchronize(stream) != CUDA_SUCCESS); /* ends it */
		CHECK(cuStreamEndCapture(stream, &g) != CUDA_SUCCESS);
		CUgraphExec e = captured(160 * MIB, NULL, 0, 0);
		LAUNCH(e, CUDA_SUCCESS);
		OK(cuGraphExecDestroy(e));
		OK(cuDeviceGraphMemTrim(0));
		OK(cuCtxSynchronize());
	}
	BALANCED(0);
}

/* A captured free of another graph's memory: when that is launched again, it needs memory again. */
static void frees_of_another(void)
{
	CUdeviceptr p, third, rest;
	begin(480 * MIB);
	CUgraphExec first = captured(192 * MIB, &p, 0, AUTO_FREE_ON_LAUNCH), frees = captured(32 * MIB, NULL, p, 0),
		    last = captured(192 * MIB, &third, 0, AUTO_FREE_ON_LAUNCH);
	LAUNCH(first, CUDA_SUCCESS);
	LAUNCH(frees, CUDA_SUCCESS);
	LAUNCH(last, CUDA_SUCCESS); /* has it now */
	OK(cuMemAlloc_v2(&rest, 128 * MIB));
	LAUNCH(first, CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFreeAsync(third, stream));
	LAUNCH(first, CUDA_SUCCESS);
}

RUN_PARTS(true, {"refused", refused}, {"launched again", launched_again}, {"failed", failed}, {"frees of another", frees_of_another})
