/* Arrays and mipmapped arrays. Their size is computed from the descriptor, since it must be
 * charged before the driver is asked. If the driver tells afterwards how much memory they need,
 * the charge is corrected. */
#include "charge.h"
#include "full.h"
#include "hooks/context_table.h"
#include "overhead.h"

static const uint64_t ARRAY_ALIGNMENT = 64 << 10;

static uint64_t array_element_size(int format)
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

/* Bits per element, for formats that cover all channels at once; other formats are computed by
 * channel. Compressed formats come in blocks of four by four elements. */
static const uint8_t array_format_bits[256] = {
	[0x50] = 32,                                                                  /* 10, 10, 10 and 2 */
	[0x91] = 4,  [0x92] = 4,  [0x97] = 4,  [0x98] = 4,                            /* BC1, BC4 */
	[0x93] = 8,  [0x94] = 8,  [0x95] = 8,  [0x96] = 8,  [0x99] = 8,               /* BC2, BC3, */
	[0x9a] = 8,  [0x9b] = 8,  [0x9c] = 8,  [0x9d] = 8,  [0x9e] = 8,               /* BC5 to BC7 */
	[0xb0] = 12, [0x9f] = 24, [0xa1] = 24,                                        /* 4:2:0: NV12, P010, P016 */
	[0xa2] = 16, [0xa3] = 32, [0xa4] = 32,                                        /* 4:2:2: NV16, P210, P216, */
	[0xa5] = 16, [0xa6] = 32, [0xa7] = 32,                                        /* YUY2, Y210, Y216 */
	[0xa8] = 32, [0xa9] = 32, [0xb1] = 64,                                        /* 4:4:4: AYUV, Y410, Y416, */
	[0xb2] = 24, [0xb3] = 48, [0xb4] = 24, [0xb5] = 48,                           /* planar */
	[0xc0] = 8,  [0xc1] = 16, [0xc2] = 32, [0xc3] = 16, [0xc4] = 32, [0xc5] = 64, /* normalised */
	[0xc6] = 8,  [0xc7] = 16, [0xc8] = 32, [0xc9] = 16, [0xca] = 32, [0xcb] = 64,
};

static bool array_compressed(int format) { return format >= 0x91 && format <= 0x9e; }

static uint64_t array_whole_blocks(uint64_t n) { return n > UINT64_MAX - 3 ? n : (n + 3) / 4 * 4; }

static uint64_t array_at_least_one(uint64_t n) { return n ? n : 1; }

/* array_level_bytes returns the size of one level in bytes, rounded up. It returns UINT64_MAX,
 * which the driver refuses, if the size overflows. */
static uint64_t array_level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	unsigned whole = d->Format >= 0 && d->Format < 256 ? array_format_bits[d->Format] : 0;
	uint64_t n = whole ? whole : 8 * array_element_size(d->Format) * d->NumChannels, width = d->Width,
		 height = array_at_least_one(d->Height);
	if (array_compressed(d->Format))
		width = array_whole_blocks(width), height = array_whole_blocks(height);
	if (__builtin_mul_overflow(n, width, &n) || __builtin_mul_overflow(n, height, &n) ||
	    __builtin_mul_overflow(n, array_at_least_one(d->Depth), &n) || n > UINT64_MAX - ARRAY_ALIGNMENT)
		return UINT64_MAX;
	n = (n + 7) / 8;
	return (n + ARRAY_ALIGNMENT - 1) / ARRAY_ALIGNMENT * ARRAY_ALIGNMENT;
}

/* array_levels returns how many levels the driver makes if so many are asked for: at least one,
 * and no more than it takes to come down to one element. */
static unsigned array_levels(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
	bool layers = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
	unsigned most = 64 - (unsigned)__builtin_clzll(d->Width | d->Height | (layers ? 0 : d->Depth) | 1);
	return levels == 0 ? 1 : levels < most ? levels : most;
}

static uint64_t array_bytes(CUDA_ARRAY3D_DESCRIPTOR d, unsigned levels)
{
	uint64_t sum = 0;
	/* Memory is mapped to these arrays later, and was charged when it was made. */
	if (d.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return 0;
	for (unsigned i = array_levels(&d, levels); i > 0; i--) {
		if (__builtin_add_overflow(sum, array_level_bytes(&d), &sum))
			return UINT64_MAX;
		d.Width = d.Width > 1 ? d.Width / 2 : d.Width;
		d.Height = d.Height > 1 ? d.Height / 2 : d.Height;
		/* Layers do not shrink. */
		if (!(d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) && d.Depth > 1)
			d.Depth /= 2;
	}
	return sum;
}

/* An array between its charge and the driver's answer. */
struct array_alloc {
	struct alloc_target target; /* device is NULL if nothing is charged */
	uint64_t bytes;             /* bytes charged */
};

/* array_valid reports whether the driver would make such an array, given enough memory. */
static bool array_valid(const void *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	bool whole = d && d->Format >= 0 && d->Format < 256 && array_format_bits[d->Format];
	return out && d && d->Width && (whole || d->NumChannels == 1 || d->NumChannels == 2 || d->NumChannels == 4);
}

/* array_begin charges for an array. It returns CUDA_SUCCESS, or the error that the call must
 * return. Invalid arguments are left to the driver, uncharged. */
static int array_begin(struct array_alloc *a, const void *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
	a->target.device = NULL;
	int refused = array_valid(out, desc) ? context_enter(&a->target) : init_enter();
	if (refused || !a->target.device)
		return refused;
	a->bytes = array_bytes(*desc, levels);
	if (charge_would_refuse(a->target.device->index, a->bytes) && context_failed()) {
		a->target.device = NULL;
		return CUDA_SUCCESS;
	}
	refused = charge_request(a->target.device->index, RATION_DATA, a->bytes);
	if (refused)
		a->target.device = NULL;
	return refused;
}

/* array_end returns the charge if the driver failed; otherwise it corrects it to the size that
 * the driver needs, and records it. It returns result. */
static int array_end(const struct array_alloc *a, int result, void **out, bool mipmapped)
{
	struct device *d = a->target.device;
	CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
	if (!d)
		return result;
	if (result != CUDA_SUCCESS) {
		charge_return(d->index, RATION_DATA, a->bytes);
		full_log(d->index, a->bytes, result);
		return result;
	}
	void *handle = *out;
	int known = !a->bytes   ? CUDA_ERROR_NOT_FOUND
		    : mipmapped ? REAL(cuMipmappedArrayGetMemoryRequirements, &needs, handle, d->ordinal)
				: REAL(cuArrayGetMemoryRequirements, &needs, handle, d->ordinal);
	uint64_t real = known == CUDA_SUCCESS && needs.size ? needs.size : a->bytes;
	charge_correct(d->index, RATION_DATA, a->bytes, real);
	struct alloc_record r = {.key = (uintptr_t)handle, .bytes = real, .device = (uint8_t)d->index, .context = a->target.context};
	context_keep(&context_arrays, &r, RATION_DATA);
	charge_arrived(d->index, real);
	overhead_start_and_refresh(d); /* the driver may take more than that */
	return result;
}

/* ARRAY_DESC widens a descriptor of the older calls. */
#define ARRAY_DESC(desc, depth, flags) \
	((desc) ? &(CUDA_ARRAY3D_DESCRIPTOR){(desc)->Width, (desc)->Height, depth, (desc)->Format, (desc)->NumChannels, flags} : NULL)

int cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *desc)
{
	struct array_alloc a;
	return array_end(&a, REAL_UNLESS(array_begin(&a, out, ARRAY_DESC(desc, 0, 0), 1), cuArrayCreate, out, desc), (void **)out, false);
}

int cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	struct array_alloc a;
	return array_end(&a, REAL_UNLESS(array_begin(&a, out, ARRAY_DESC(desc, 0, 0), 1), cuArrayCreate_v2, out, desc), (void **)out,
			 false);
}

int cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc)
{
	struct array_alloc a;
	return array_end(&a,
			 REAL_UNLESS(array_begin(&a, out, ARRAY_DESC(desc, (desc)->Depth, (desc)->Flags), 1), cuArray3DCreate, out, desc),
			 (void **)out, false);
}

int cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	struct array_alloc a;
	return array_end(&a, REAL_UNLESS(array_begin(&a, out, desc, 1), cuArray3DCreate_v2, out, desc), (void **)out, false);
}

int cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
	struct array_alloc a;
	int refused = array_begin(&a, out, desc, levels);
	return array_end(&a, REAL_UNLESS(refused, cuMipmappedArrayCreate, out, desc, levels), (void **)out, true);
}

/* array_destroyed completes a free that began with context_free_begin, and returns result. The
 * memory that the driver took for the array beyond our count is freed, too, so the overhead is
 * read again. */
static int array_destroyed(const struct alloc_record *r, int result)
{
	if (context_free_end(&context_arrays, r, result == CUDA_SUCCESS)) {
		struct device *d = device_at(r->device);
		charge_return(r->device, RATION_DATA, r->bytes);
		if (d)
			overhead_refresh(d);
	}
	return result;
}

int cuArrayDestroy(CUarray array)
{
	struct alloc_record r = context_free_begin(&context_arrays, (uintptr_t)array);
	return array_destroyed(&r, REAL(cuArrayDestroy, array));
}

int cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	struct alloc_record r = context_free_begin(&context_arrays, (uintptr_t)array);
	return array_destroyed(&r, REAL(cuMipmappedArrayDestroy, array));
}
