/* An executable that frees on launch, whose memory another graph's free node has freed. */
#include "../stranger.h"
static CUgraphExec graph(uint64_t bytes, CUdeviceptr frees, CUdeviceptr *out, int flags)
{
	CUgraph g;
	CUgraphExec e;
	CUgraphNode a;
	OK(cuGraphCreate(&g, 0));
	if (bytes) {
		CUDA_MEM_ALLOC_NODE_PARAMS params = {
			.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
			.bytesize = bytes};
		OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &params));
		if (out)
			*out = params.dptr;
	}
	if (frees)
		OK(cuGraphAddMemFreeNode(&a, g, NULL, 0, frees));
	OK(cuGraphInstantiateWithFlags(&e, g, flags));
	return e;
}
#define SHOW(s)                                                                                            \
	printf("%s: region %llu truth %llu\n", s, (unsigned long long)region_used(region_here(), 0) >> 20, \
	       (unsigned long long)in_use(0) >> 20)
int main(void)
{
	start();
	CUdeviceptr pa, pc, q;
	CUgraphExec a = graph(300 * MIB, 0, &pa, 1);
	OK(cuGraphLaunch(a, NULL));
	SHOW("A launched");
	CUgraphExec b = graph(0, pa, NULL, 0);
	OK(cuGraphLaunch(b, NULL));
	SHOW("B freed A's");
	CUgraphExec c = graph(300 * MIB, 0, &pc, 1);
	OK(cuGraphLaunch(c, NULL));
	SHOW("C launched");
	OK(cuMemAlloc_v2(&q, 500 * MIB));
	SHOW("500 MiB linear");
	CUresult r = cuGraphLaunch(a, NULL);
	printf("A again: %d\n", r);
	SHOW("A again");
	EQ(r, CUDA_ERROR_OUT_OF_MEMORY);
	WITHIN_LIMIT(0);
	BALANCED(0);
	return FINISH();
}
