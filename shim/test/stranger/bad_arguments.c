/* Calls with bad arguments return the driver's own error, whether the job has room for what
 * they ask or not. */
#include "stranger.h"

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);

static CUdeviceptr p;
static size_t pitch;
static CUarray array;
static CUmipmappedArray mipmap;
static CUmemGenericAllocationHandle handle;
static CUcontext context;

static const CUmemAllocationProp pinned = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemAllocationProp no_type = {.type = 77, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUDA_ARRAY_DESCRIPTOR no_width = {0, 4096, CU_AD_FORMAT_FLOAT, 4};
static const CUDA_ARRAY_DESCRIPTOR no_channels = {4096, 4096, CU_AD_FORMAT_FLOAT, 3};
static const CUDA_ARRAY3D_DESCRIPTOR flat = {4096, 4096, 0, CU_AD_FORMAT_FLOAT, 3, 0};

/* Each has something wrong with it. */
static CUresult call(int i)
{
	switch (i) {
	case 0: return cuMemAlloc_v2(NULL, 10 * MIB);
	case 1: return cuMemAlloc_v2(&p, 0);
	case 2: return cuMemAllocPitch_v2(&p, &pitch, MIB, 10, 3);
	case 3: return cuMemAllocPitch_v2(&p, NULL, MIB, 10, 4);
	case 4: return cuMemAllocManaged(&p, 10 * MIB, 0);
	case 5: return cuMemAllocManaged(NULL, 10 * MIB, CU_MEM_ATTACH_GLOBAL);
	case 6: return cuMemAllocAsync(&p, 40 * MIB, (CUstream)0x77);
	case 7: return cuMemAllocAsync(NULL, 40 * MIB, NULL);
	case 8: return cuMemAllocFromPoolAsync(&p, 40 * MIB, (CUmemoryPool)0x77, NULL);
	case 9: return cuMemCreate(&handle, 10 * MIB + 1, &pinned, 0);
	case 10: return cuMemCreate(NULL, 10 * MIB, &pinned, 0);
	case 11: return cuMemCreate(&handle, 10 * MIB, &no_type, 0);
	case 12: return cuArrayCreate_v2(&array, &no_width);
	case 13: return cuArrayCreate_v2(&array, &no_channels);
	case 14: return cuArray3DCreate_v2(&array, &flat);
	case 15: return cuMipmappedArrayCreate(&mipmap, &flat, 3);
	case 16: return cuCtxCreate_v2(NULL, 0, 0);
	case 17: return cuCtxCreate_v2(&context, 0, 99);
	case 18: return cuGraphLaunch((CUgraphExec)0x77, NULL);
	case 19: return cuMemAllocFromPoolAsync(&p, 40 * MIB, NULL, NULL);
	default: return CUDA_SUCCESS; /* the end */
	}
}

/* Makes a context that has been destroyed current: it was so twice. */
static void make_dead_current(void)
{
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuCtxPushCurrent_v2(context));
	OK(cuCtxDestroy_v2(context));
}

static void in_dead_context(void)
{
	EQ(cuMemAlloc_v2(&p, 10 * MIB), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	EQ(cuMemAllocAsync(&p, 40 * MIB, NULL), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	EQ(cuArrayCreate_v2(&array, &(CUDA_ARRAY_DESCRIPTOR){4096, 4096, CU_AD_FORMAT_FLOAT, 4}), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

/* A graph that allocates, for a stream that there is no more. */
static CUgraphExec graph_to_launch(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
		.bytesize = 64 * MIB};
	CUgraphNode node, last;
	CUgraphExec exec;
	CUgraph graph;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
	OK(cuGraphAddMemFreeNode(&last, graph, &node, 1, params.dptr));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

int main(void)
{
	CUresult with_room[64];
	int n = 0;
	start();
	CUgraphExec exec = graph_to_launch();
	CUresult no_stream = cuGraphLaunch(exec, (CUstream)0x77);
	CHECK(no_stream != CUDA_SUCCESS && no_stream != CUDA_ERROR_OUT_OF_MEMORY);
	for (; (with_room[n] = call(n)) != CUDA_SUCCESS; n++)
		CHECK(with_room[n] != CUDA_ERROR_OUT_OF_MEMORY);
	EQ(n, 20);
	SAME();
	make_dead_current();
	in_dead_context();
	set_limit(0, region_used(region_here(), 0));
	in_dead_context();
	OK(cuCtxPopCurrent_v2(&context));
	SAME();
	for (int i = 0; i < n; i++) {
		CUresult r = call(i);
		if (r != with_room[i])
			fprintf(stderr, "call %d\n", i);
		EQ(r, with_room[i]);
	}
	SAME();
	EQ(cuMemAlloc_v2(&p, 1), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(cuGraphLaunch(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(cuGraphLaunch(exec, (CUstream)0x77), no_stream);
	SAME();
	/* The driver makes no more levels than there are: 7, of 64 KiB each. */
	set_limit(0, region_used(region_here(), 0) + 4 * MIB);
	OK(cuMipmappedArrayCreate(&mipmap, &(CUDA_ARRAY3D_DESCRIPTOR){64, 64, 0, CU_AD_FORMAT_FLOAT, 4, 0}, 1000));
	SAME();
	OK(cuMipmappedArrayDestroy(mipmap));
	return FINISH();
}
