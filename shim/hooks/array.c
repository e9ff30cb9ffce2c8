/* Arrays and mipmapped arrays. Their size is worked out from the descriptor, since
 * it must be charged before the driver is asked, and corrected by the driver's own
 * figure where it has one. */
#include "charge.h"
#include "hooks/context.h"
#include "overhead.h"
#include "attach.h"

static const uint64_t ALIGNMENT = 64 << 10;

static uint64_t element_size(int format)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8: return 1;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF: return 2;
	default: return 4;
	}
}

/* Formats that name all channels at once, in bits for each element; what is not here
 * counts by channel. Compressed ones come in blocks of four by four. */
static const uint8_t bits[256] = {
	[0x50] = 32,                                                        /* 10, 10, 10 and 2 */
	[0x91] = 4, [0x92] = 4, [0x97] = 4, [0x98] = 4,                     /* BC1, BC4 */
	[0x93] = 8, [0x94] = 8, [0x95] = 8, [0x96] = 8, [0x99] = 8,         /* BC2, BC3, */
	[0x9a] = 8, [0x9b] = 8, [0x9c] = 8, [0x9d] = 8, [0x9e] = 8,         /* BC5 to BC7 */
	[0xb0] = 12, [0x9f] = 24, [0xa1] = 24,                              /* 4:2:0: NV12, P010, P016 */
	[0xa2] = 16, [0xa3] = 32, [0xa4] = 32,                              /* 4:2:2: NV16, P210, P216, */
	[0xa5] = 16, [0xa6] = 32, [0xa7] = 32,                              /* YUY2, Y210, Y216 */
	[0xa8] = 32, [0xa9] = 32, [0xb1] = 64,                              /* 4:4:4: AYUV, Y410, Y416, */
	[0xb2] = 24, [0xb3] = 48, [0xb4] = 24, [0xb5] = 48,                 /* planar */
	[0xc0] = 8, [0xc1] = 16, [0xc2] = 32, [0xc3] = 16, [0xc4] = 32, [0xc5] = 64, /* normalised */
	[0xc6] = 8, [0xc7] = 16, [0xc8] = 32, [0xc9] = 16, [0xca] = 32, [0xcb] = 64,
};

static bool compressed(int format) { return format >= 0x91 && format <= 0x9e; }

static uint64_t blocks(uint64_t n) { return n > UINT64_MAX - 3 ? n : (n + 3) / 4 * 4; }

static uint64_t at_least_one(uint64_t n) { return n ? n : 1; }

/* size_of is at least the size of one level; the driver refuses what is too large
 * to count. */
static uint64_t size_of(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	unsigned whole = d->Format >= 0 && d->Format < 256 ? bits[d->Format] : 0;
	uint64_t n = whole ? whole : 8 * element_size(d->Format) * d->NumChannels, width = d->Width, height = at_least_one(d->Height);
	if (compressed(d->Format))
		width = blocks(width), height = blocks(height);
	if (__builtin_mul_overflow(n, width, &n) || __builtin_mul_overflow(n, height, &n) ||
	    __builtin_mul_overflow(n, at_least_one(d->Depth), &n) || n > UINT64_MAX - ALIGNMENT)
		return UINT64_MAX;
	n = (n + 7) / 8;
	return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t levels_size(CUDA_ARRAY3D_DESCRIPTOR d, unsigned levels)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < levels && i < 64; i++) {
		if (__builtin_add_overflow(sum, size_of(&d), &sum))
			return UINT64_MAX;
		d.Width = d.Width > 1 ? d.Width / 2 : d.Width;
		d.Height = d.Height > 1 ? d.Height / 2 : d.Height;
		/* Layers do not shrink. */
		if (!(d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) && d.Depth > 1)
			d.Depth /= 2;
	}
	return sum;
}

/* Memory of these is mapped to them later, and was charged where it was made. */
static bool empty(const CUDA_ARRAY3D_DESCRIPTOR *d) { return d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING); }

static void keep(const struct alloc_target *at, void *handle, uint64_t charged, uint64_t real)
{
	charge_adjust(at->device->index, RATION_DATA, charged, real);
	struct alloc_record r = {.key = (uintptr_t)handle, .bytes = real, .device = (uint8_t)at->device->index, .context = at->context};
	context_keep(&arrays, &r, RATION_DATA);
	overhead_read(at->device); /* how they lie in memory is the driver's secret */
}

/* CREATE charges bytes and asks the driver; real is what it came to. */
#define CREATE(bytes, real, symbol, ...)                                                                               \
	do {                                                                                                           \
		struct alloc_target at;                                                                                       \
		CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};                                                            \
		HERE(&at, symbol, __VA_ARGS__);                                                                        \
		uint64_t charged = bytes;                                                                              \
		int result = charge_add(at.device->index, RATION_DATA, charged, false);                            \
		if (result != CUDA_SUCCESS)                                                                            \
			return result;                                                                                 \
		result = REAL(symbol, __VA_ARGS__);                                                                    \
		if (result != CUDA_SUCCESS)                                                                            \
			charge_return(at.device->index, RATION_DATA, charged);                                        \
		else                                                                                                   \
			keep(&at, *out, charged, charged && real == CUDA_SUCCESS && needs.size ? needs.size : charged); \
		return result;                                                                                         \
	} while (0)

#define ARRAY_REAL REAL(cuArrayGetMemoryRequirements, &needs, *out, at.device->ordinal)

/* ARRAY is the same for the four calls that make a plain one. */
#define ARRAY(symbol, ...)                                                                                             \
	do {                                                                                                           \
		ENTER(symbol, out, desc);                                                                              \
		if (!out || !desc)                                                                                     \
			return REAL(symbol, out, desc);                                                                \
		CUDA_ARRAY3D_DESCRIPTOR d = {__VA_ARGS__};                                                             \
		CREATE(empty(&d) ? 0 : size_of(&d), ARRAY_REAL, symbol, out, desc);                                    \
	} while (0)

int cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *desc)
{
	ARRAY(cuArrayCreate, desc->Width, desc->Height, 0, desc->Format, desc->NumChannels, 0);
}

int cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	ARRAY(cuArrayCreate_v2, desc->Width, desc->Height, 0, desc->Format, desc->NumChannels, 0);
}

int cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc)
{
	ARRAY(cuArray3DCreate, desc->Width, desc->Height, desc->Depth, desc->Format, desc->NumChannels, desc->Flags);
}

int cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	ARRAY(cuArray3DCreate_v2, desc->Width, desc->Height, desc->Depth, desc->Format, desc->NumChannels, desc->Flags);
}

int cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
	ENTER(cuMipmappedArrayCreate, out, desc, levels);
	if (!out || !desc)
		return REAL(cuMipmappedArrayCreate, out, desc, levels);
	CREATE(empty(desc) ? 0 : levels_size(*desc, levels),
	       REAL(cuMipmappedArrayGetMemoryRequirements, &needs, *out, at.device->ordinal), cuMipmappedArrayCreate, out, desc, levels);
}

/* gone gives back an array, and with it what the driver took for it beyond our count. */
static void gone(const struct alloc_record *r)
{
	struct device *d = device_at(r->device);
	charge_return(r->device, RATION_DATA, r->bytes);
	if (d)
		overhead_refresh(d);
}

/* As with addresses: the record goes before the driver is asked. */
#define DESTROY(symbol)                                                                                                \
	do {                                                                                                           \
		struct alloc_record r;                                                                                       \
		LEAVE_ALONE(symbol, array);                                                                            \
		bool known = alloc_table_take(&arrays, (uintptr_t)array, &r);                                              \
		int result = REAL(symbol, array);                                                                      \
		if (known && result != CUDA_SUCCESS)                                                                   \
			alloc_table_put(&arrays, &r);                                                                      \
		else if (known)                                                                                        \
			gone(&r);                                                                                      \
		return result;                                                                                         \
	} while (0)

int cuArrayDestroy(CUarray array) { DESTROY(cuArrayDestroy); }
int cuMipmappedArrayDestroy(CUmipmappedArray array) { DESTROY(cuMipmappedArrayDestroy); }
