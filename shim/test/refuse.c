/* Refusals: exact, leaving nothing behind, and explained. 1 GiB for the job. */
#include "held.h"

#define GIB (1024 * MIB)

static uint64_t room(void) { return GIB - region_used(region_here(), 0); }

static uint64_t refused(void) { return region_here()->m->devices[0].refused; }

/* explained checks the latest entry of the ring: this process asked for bytes, rounded up, and is the job's
 * largest holder. */
static void explained(uint64_t bytes)
{
	const struct ration_region *m = region_here()->m;
	const struct ration_refusal *e = &m->refusals[(m->header.refusal_next - 1) % RATION_REFUSALS];
	EQ(e->asked, (bytes + RATION_UNIT - 1) / RATION_UNIT * RATION_UNIT);
	EQ(e->held, GIB - room());
	EQ(e->own, e->held);
	EQ(e->limit, GIB);
	EQ(e->pid, (uint64_t)getpid());
	EQ(e->device, 0);
	EQ(e->top[0].pid, e->pid);
	EQ(e->top[0].bytes, e->own);
}

static void linear(void)
{
	CUdeviceptr p, q;
	uint64_t r = room(), before = refused();
	EQ(cuMemAlloc_v2(&p, r + 1), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(refused(), before + 1);
	explained(r + 1);
	SAME();
	OK(cuMemAlloc_v2(&p, r));
	EQ(room(), 0);
	EQ(cuMemAlloc_v2(&q, 1), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(cuMemAllocManaged(&q, 1, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
	SAME();
	OK(cuMemFree_v2(p));
	OK(cuMemAlloc_v2(&p, r));
	OK(cuMemFree_v2(p));
	SAME();
}

static void others(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUDA_ARRAY3D_DESCRIPTOR desc = {1024, 1024, 1024, CU_AD_FORMAT_FLOAT, 4, 0};
	CUmemGenericAllocationHandle h;
	CUmipmappedArray m;
	CUdeviceptr p;
	CUarray a;
	size_t pitch;
	EQ(cuMemAllocPitch_v2(&p, &pitch, MIB, 1024, 4), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(cuMemCreate(&h, GIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(cuArray3DCreate_v2(&a, &desc), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(cuMipmappedArrayCreate(&m, &desc, 3), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(cuMemAllocAsync(&p, GIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	SAME();
}

/* What a pool keeps for later is not in the way of what is needed now. */
static void slack(void)
{
	CUmemoryPool pool;
	uint64_t threshold = 1ull << 40, before = refused(), r = room();
	CUdeviceptr p;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	OK(cuMemAllocAsync(&p, 300 * MIB, NULL));
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	CHECK(room() < r);
	OK(cuMemAlloc_v2(&p, r));
	EQ(refused(), before);
	SAME();
	OK(cuMemFree_v2(p));
}

/* A context that does not fit is as if it had not been. */
static void context(void)
{
	uint64_t before = usage_of(0).total;
	CUcontext c = (CUcontext)1, was;
	CUdeviceptr p;
	OK(cuCtxGetCurrent(&was));
	OK(cuMemAlloc_v2(&p, 500 * MIB));
	EQ(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(c == NULL);
	SAME();
	OK(cuCtxGetCurrent(&c));
	CHECK(c == was);
	OK(cuMemFree_v2(p));
	EQ(usage_of(0).total, before);
}

static void graph(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
		.bytesize = 2 * GIB,
	};
	CUgraphNode n;
	CUgraphExec e;
	CUgraph g;
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemAllocNode(&n, g, NULL, 0, &params));
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	EQ(cuGraphLaunch(e, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	SAME();
	OK(cuGraphExecDestroy(e));
	OK(cuGraphDestroy(g));
}

/* run makes a graph that allocates, and frees again if it is to, and launches it. */
static CUresult run(uint64_t bytes, bool frees, CUgraphExec *e, CUdeviceptr *p)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
		.bytesize = bytes,
	};
	CUgraphNode n;
	CUgraph g;
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemAllocNode(&n, g, NULL, 0, &params));
	if (frees)
		OK(cuGraphAddMemFreeNode(&n, g, &n, 1, params.dptr));
	OK(cuGraphInstantiateWithFlags(e, g, 0));
	OK(cuGraphDestroy(g));
	*p = params.dptr;
	return cuGraphLaunch(*e, NULL);
}

/* What one graph leaves another may keep: the first, run again, needs more. */
static void graphs(void)
{
	CUgraphExec a, b, c;
	CUdeviceptr p, q, rest;
	OK(run(128 * MIB, true, &a, &p));
	OK(run(128 * MIB, false, &b, &p));
	SAME();
	OK(cuMemAlloc_v2(&rest, room() - 64 * MIB));
	EQ(cuGraphLaunch(a, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(everybody() <= GIB);
	SAME();
	OK(cuMemFreeAsync(p, NULL));
	uint64_t before = refused();
	OK(cuGraphLaunch(a, NULL)); /* what the other left is enough */
	OK(run(64 * MIB, true, &c, &q));
	OK(cuGraphLaunch(a, NULL));
	EQ(refused(), before);
	SAME();
	OK(cuMemFree_v2(rest));
	OK(cuGraphExecDestroy(a));
	OK(cuGraphExecDestroy(b));
	OK(cuGraphExecDestroy(c));
	OK(cuDeviceGraphMemTrim(0));
	SAME();
}

static const char ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n";

/* A library's module for which there is no room is overhead, and stays so when a context
 * ends: otherwise it would be counted as that when it has gone. */
static void module(void)
{
	CUcontext c, was;
	CUlibrary l;
	CUmodule m;
	CUdeviceptr p;
	OK(cuCtxGetCurrent(&was));
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(cuCtxSetCurrent(was));
	OK(cuMemAlloc_v2(&p, room()));
	OK(cuLibraryLoadData(&l, ptx, NULL, NULL, 0, NULL, NULL, 0));
	EQ(cuLibraryGetModule(&m, l), 2); /* loaded all the same: only its library's unload undoes it */
	EQ(held(RATION_MODULE), truth(FAKEGPU_MODULE));
	OK(cuCtxDestroy_v2(c));
	EQ(held(RATION_CONTEXT), truth(FAKEGPU_CONTEXT));
	EQ(held(RATION_MODULE), truth(FAKEGPU_MODULE));
	OK(cuLibraryUnload(l));
	SAME();
	OK(cuMemFree_v2(p));
	SAME();
}

int main(void)
{
	start();
	EQ(limit_bytes(region_limit(region_here(), 0)), GIB);
	linear();
	others();
	slack();
	context();
	graph();
	graphs();
	module();
	OK(cuDevicePrimaryCtxRelease_v2(0));
	SAME();
	return FINISH();
}
