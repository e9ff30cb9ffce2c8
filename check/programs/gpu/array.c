/* Arrays and mipmapped arrays, in turn. The driver tells the size of those whose memory
 * is mapped later; that of the others is computed from their elements, and is a multiple
 * of the 64 KiB blocks that the driver uses. */
#include "allocpaths.h"

enum { SIDE = 512, ELEMENT = 4, SLICE = SIDE * SIDE * ELEMENT, LEVELS = 3 };

static struct {
	CUarray array;
	CUmipmappedArray mipmap; /* NULL if it is an array */
	uint64_t bytes;
} pieces[PIECES];

static size_t count;

static uint64_t array_data(void)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < count; i++)
		sum += pieces[i].bytes;
	return sum;
}

/* array_use writes the first slice and the last one. */
static void array_use(CUarray to, size_t depth)
{
	static char slice[SLICE];
	CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
			      .srcHost = slice,
			      .srcPitch = SIDE * ELEMENT,
			      .srcHeight = SIDE,
			      .dstMemoryType = CU_MEMORYTYPE_ARRAY,
			      .dstArray = to,
			      .WidthInBytes = SIDE * ELEMENT,
			      .Height = SIDE,
			      .Depth = 1};
	MUST(cuMemcpy3D_v2, &copy);
	copy.dstZ = depth - 1;
	MUST(cuMemcpy3D_v2, &copy);
	MUST(cuCtxSynchronize, );
}

static bool array_take_plain(void)
{
	CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
	CUDA_ARRAY3D_DESCRIPTOR desc = {SIDE, SIDE, piece / SLICE, CU_AD_FORMAT_FLOAT, 1, 0};
	if (!HAD(cuArray3DCreate_v2, &pieces[count].array, &desc))
		return false;
	pieces[count].mipmap = NULL;
	pieces[count].bytes = cuArrayGetMemoryRequirements(&needs, pieces[count].array, device) ? piece : needs.size;
	array_use(pieces[count++].array, desc.Depth);
	return true;
}

/* The first level is half a piece, so that all levels together are less than a piece. */
static bool array_take_mipmap(void)
{
	CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
	CUDA_ARRAY3D_DESCRIPTOR desc = {SIDE, SIDE, piece / 2 / SLICE, CU_AD_FORMAT_FLOAT, 1, 0};
	CUarray level;
	uint64_t bytes = 0, depth = desc.Depth, slice = SLICE;
	if (!HAD(cuMipmappedArrayCreate, &pieces[count].mipmap, &desc, LEVELS))
		return false;
	for (int i = 0; i < LEVELS; i++) {
		bytes += slice * depth;
		slice /= 4;
		depth = depth > 1 ? depth / 2 : 1;
	}
	pieces[count].bytes = cuMipmappedArrayGetMemoryRequirements(&needs, pieces[count].mipmap, device) ? bytes : needs.size;
	MUST(cuMipmappedArrayGetLevel, &level, pieces[count].mipmap, 0);
	count++;
	array_use(level, desc.Depth);
	return true;
}

static bool array_take(void) { return count % 2 ? array_take_mipmap() : array_take_plain(); }

static void array_give_back(void)
{
	for (; count > 0; count--) {
		if (pieces[count - 1].mipmap)
			MUST(cuMipmappedArrayDestroy, pieces[count - 1].mipmap);
		else
			MUST(cuArrayDestroy, pieces[count - 1].array);
	}
}

const struct allocpath array = {.name = "array", .take = array_take, .data = array_data, .give_back = array_give_back};
