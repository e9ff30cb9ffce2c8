/* Arrays and mipmapped arrays. Their size is worked out from the descriptor, since
 * it must be charged before the driver is asked, and corrected by the driver's own
 * figure where it has one. */
#include "account.h"
#include "context.h"
#include "gauge.h"
#include "life.h"

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

static uint64_t at_least_one(uint64_t n) { return n ? n : 1; }

/* size_of is at least the size of one level; the driver refuses what is too large
 * to count. */
static uint64_t size_of(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	uint64_t n = element_size(d->Format) * d->NumChannels;
	if (__builtin_mul_overflow(n, d->Width, &n) || __builtin_mul_overflow(n, at_least_one(d->Height), &n) ||
	    __builtin_mul_overflow(n, at_least_one(d->Depth), &n) || n > UINT64_MAX - ALIGNMENT)
		return UINT64_MAX;
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

static void keep(const struct place *at, void *handle, uint64_t charged, uint64_t real)
{
	account_adjust(at->device->index, RATION_DATA, charged, real);
	struct record r = {.key = (uintptr_t)handle, .bytes = real, .device = (uint8_t)at->device->index, .context = at->context};
	context_keep(&arrays, &r, RATION_DATA);
	gauge_tick(at->device);
}

/* CREATE charges bytes and asks the driver; real is what it came to. */
#define CREATE(bytes, real, symbol, ...)                                                                               \
	do {                                                                                                           \
		struct place at;                                                                                       \
		CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};                                                            \
		HERE(&at, symbol, __VA_ARGS__);                                                                        \
		uint64_t charged = bytes;                                                                              \
		int result = account_charge(at.device->index, RATION_DATA, charged, false);                            \
		if (result != CUDA_SUCCESS)                                                                            \
			return result;                                                                                 \
		result = REAL(symbol, __VA_ARGS__);                                                                    \
		if (result != CUDA_SUCCESS)                                                                            \
			account_return(at.device->index, RATION_DATA, charged);                                        \
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

/* As with addresses: the record goes before the driver is asked. */
#define DESTROY(symbol)                                                                                                \
	do {                                                                                                           \
		struct record r;                                                                                       \
		LEAVE_ALONE(symbol, array);                                                                            \
		bool known = records_take(&arrays, (uintptr_t)array, &r);                                              \
		int result = REAL(symbol, array);                                                                      \
		if (known && result != CUDA_SUCCESS)                                                                   \
			records_put(&arrays, &r);                                                                      \
		else if (known)                                                                                        \
			account_return(r.device, RATION_DATA, r.bytes);                                                \
		return result;                                                                                         \
	} while (0)

int cuArrayDestroy(CUarray array) { DESTROY(cuArrayDestroy); }
int cuMipmappedArrayDestroy(CUmipmappedArray array) { DESTROY(cuMipmappedArrayDestroy); }
