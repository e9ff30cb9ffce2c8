/* Arrays, and graph memory. */
#include "held.h"

CUresult cuArrayCreate(CUarray *, const CUDA_ARRAY_DESCRIPTOR_v1 *);
CUresult cuArray3DCreate(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR_v1 *);

static void plain(void)
{
	CUDA_ARRAY_DESCRIPTOR_v1 one = {1000, 10, CU_AD_FORMAT_FLOAT, 4};
	CUDA_ARRAY_DESCRIPTOR two = {1920, 1080, CU_AD_FORMAT_UNSIGNED_INT8, 4};
	CUDA_ARRAY3D_DESCRIPTOR_v1 three = {64, 64, 64, CU_AD_FORMAT_HALF, 2, 0};
	CUDA_ARRAY3D_DESCRIPTOR four = {128, 128, 12, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED};
	CUarray a[4];
	OK(cuArrayCreate(&a[0], &one));
	SAME();
	OK(cuArrayCreate_v2(&a[1], &two));
	SAME();
	OK(cuArray3DCreate(&a[2], &three));
	SAME();
	OK(cuArray3DCreate_v2(&a[3], &four));
	SAME();
	for (int i = 0; i < 4; i++) {
		OK(cuArrayDestroy(a[i]));
		SAME();
	}
	EQ(held(RATION_DATA), 0);
}

static void special(void)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {256, 256, 16, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE};
	CUmipmappedArray m;
	CUarray a;
	OK(cuArray3DCreate_v2(&a, &d));
	EQ(held(RATION_DATA), 0);
	OK(cuArrayDestroy(a));
	d.Flags = 0;
	OK(cuMipmappedArrayCreate(&m, &d, 5));
	SAME();
	CHECK(held(RATION_DATA) > 16 * MIB);
	OK(cuMipmappedArrayDestroy(m));
	SAME();
	d.NumChannels = 3;
	CHECK(cuArray3DCreate_v2(&a, &d) != CUDA_SUCCESS);
	SAME();
}

/* Formats that take less than a word for each channel are charged no more than that. */
static void compressed(void)
{
	static const struct {
		CUDA_ARRAY_DESCRIPTOR d;
		uint64_t bytes;
	} all[] = {
		{{4096, 4096, CU_AD_FORMAT_BC1_UNORM, 4}, 8 * MIB},
		{{4096, 4096, CU_AD_FORMAT_BC7_UNORM, 4}, 16 * MIB},
		{{4094, 4093, CU_AD_FORMAT_BC7_UNORM, 4}, 16 * MIB},
	};
	struct region *r = region_here();
	CUarray a;
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
		EQ(region_set_limit(r, 0, make_limit(region_used(r, 0) + all[i].bytes)), REGION_OK);
		OK(cuArrayCreate_v2(&a, &all[i].d));
		EQ(held(RATION_DATA), all[i].bytes);
		SAME();
		OK(cuArrayDestroy(a));
	}
	EQ(region_set_limit(r, 0, LIMIT_NONE), REGION_OK);
}

static void graphs(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
		.bytesize = 50 * MIB,
	};
	CUgraphNode n;
	CUgraphExec e;
	CUgraph g;
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemAllocNode(&n, g, NULL, 0, &params));
	OK(cuGraphAddMemFreeNode(&n, g, &n, 1, params.dptr));
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	SAME();
	for (int i = 0; i < 3; i++) {
		OK(cuGraphLaunch(e, NULL));
		SAME();
	}
	EQ(held(RATION_DATA), 64 * MIB);
	OK(cuGraphExecDestroy(e));
	OK(cuGraphDestroy(g));
	SAME();
	OK(cuDeviceGraphMemTrim(0));
	SAME();
	EQ(held(RATION_DATA), 0);
}

int main(void)
{
	start();
	plain();
	special();
	compressed();
	graphs();
	OK(cuDevicePrimaryCtxRelease_v2(0));
	SAME();
	return FINISH();
}
