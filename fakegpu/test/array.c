/* Arrays, mipmapped arrays and external memory. */
#include <fcntl.h>

#include "check.h"

static void arrays(void)
{
	CUDA_ARRAY_DESCRIPTOR d = {1024, 1024, CU_AD_FORMAT_FLOAT, 4}, got;
	CUDA_ARRAY_MEMORY_REQUIREMENTS need;
	uint64_t before = mine();
	CUarray a, b;
	OK(cuArrayCreate_v2(&a, &d));
	EQ(mine() - before, 16 * MIB);
	OK(cuArrayGetDescriptor_v2(&got, a));
	EQ(got.Width, 1024);
	OK(cuArrayGetMemoryRequirements(&need, a, 0));
	EQ(need.size, 16 * MIB);
	OK(cuArrayDestroy(a));
	EQ(mine(), before);
	EQ(cuArrayDestroy(a), CUDA_ERROR_INVALID_HANDLE);
	d.NumChannels = 3;
	EQ(cuArrayCreate_v2(&b, &d), CUDA_ERROR_INVALID_VALUE);
	CUDA_ARRAY3D_DESCRIPTOR deferred = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_DEFERRED_MAPPING};
	OK(cuArray3DCreate_v2(&b, &deferred));
	EQ(mine(), before);
	OK(cuArrayDestroy(b));
}

static void mipmaps(void)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {1024, 1024, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
	CUDA_ARRAY_DESCRIPTOR level;
	uint64_t before = mine();
	CUmipmappedArray m;
	CUarray a;
	OK(cuMipmappedArrayCreate(&m, &d, 3));
	EQ(mine() - before, MIB + 256 * KIB + 64 * KIB);
	OK(cuMipmappedArrayGetLevel(&a, m, 2));
	OK(cuArrayGetDescriptor_v2(&level, a));
	EQ(level.Width, 256);
	EQ(cuArrayDestroy(a), CUDA_ERROR_INVALID_HANDLE);
	EQ(cuMipmappedArrayGetLevel(&a, m, 3), CUDA_ERROR_INVALID_VALUE);
	OK(cuMipmappedArrayDestroy(m));
	EQ(mine(), before);
}

static void external(void)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC d = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = 8 * MIB};
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC b = {.offset = MIB, .size = 7 * MIB};
	CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC md = {.arrayDesc = {64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 0}, .numLevels = 1};
	uint64_t before = mine();
	CUexternalMemory e;
	CUmipmappedArray m;
	CUdeviceptr p;
	d.handle.fd = open("/dev/null", O_RDONLY);
	OK(cuImportExternalMemory(&e, &d));
	EQ(fcntl(d.handle.fd, F_GETFD), -1); /* the driver's now */
	OK(cuExternalMemoryGetMappedBuffer(&p, e, &b));
	OK(cuExternalMemoryGetMappedMipmappedArray(&m, e, &md));
	EQ(mine(), before); /* another API's memory */
	b.size = 8 * MIB;
	EQ(cuExternalMemoryGetMappedBuffer(&p, e, &b), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree_v2(p));
	OK(cuMipmappedArrayDestroy(m));
	OK(cuDestroyExternalMemory(e));
	EQ(cuDestroyExternalMemory(e), CUDA_ERROR_INVALID_HANDLE);
}

int main(void)
{
	CUcontext c;
	CUDA_ARRAY_DESCRIPTOR d = {1024, 1024, CU_AD_FORMAT_FLOAT, 4};
	CUarray a;
	start();
	arrays();
	mipmaps();
	external();
	uint64_t before = mine();
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(cuArrayCreate_v2(&a, &d));
	OK(cuCtxDestroy_v2(c)); /* arrays end with their context */
	EQ(mine(), before);
	return FINISH();
}
