#include "array.h"

static const uint64_t ARRAY_ALIGNMENT = 64 * 1024;

static unsigned array_element_size(int format)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8: return 1;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF: return 2;
	default: return 4; /* 32 bits; planar formats are not told apart */
	}
}

static uint64_t array_at_least_one(uint64_t n) { return n == 0 ? 1 : n; }

/* 0 if the descriptor makes no sense. */
static uint64_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	uint64_t w = d->Width, h = array_at_least_one(d->Height), z = array_at_least_one(d->Depth);
	if (w == 0 || w > 1u << 20 || h > 1u << 20 || z > 1u << 16 || d->NumChannels < 1 || d->NumChannels > 4 || d->NumChannels == 3)
		return 0;
	/* Blocks of four by four, of 8 and 16 bytes. */
	if (d->Format == CU_AD_FORMAT_BC1_UNORM || d->Format == CU_AD_FORMAT_BC7_UNORM)
		return round_up(round_up(w, 4) * round_up(h, 4) * z / (d->Format == CU_AD_FORMAT_BC1_UNORM ? 2 : 1), ARRAY_ALIGNMENT);
	return round_up(w * h * z * array_element_size(d->Format) * d->NumChannels, ARRAY_ALIGNMENT);
}

/* Sparse and deferred arrays get their memory by mapping it. */
static uint64_t array_cost(const CUDA_ARRAY3D_DESCRIPTOR *d, uint64_t size)
{
	return (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0 ? 0 : physical_size(size);
}

static CUresult array_create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	struct context *c;
	struct array *a;
	uint64_t size, cost;

	TRY(current_context(&c));
	if (out == NULL || (size = array_size(desc)) == 0)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	cost = array_cost(desc, size);
	if (!machine_charge(c->device_index, KIND_DATA, cost))
		return CUDA_ERROR_OUT_OF_MEMORY;
	a = handle_new(sizeof *a, HANDLE_ARRAY, c);
	if (a == NULL) {
		machine_return(c->device_index, KIND_DATA, cost);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	a->desc = *desc;
	a->charged = cost;
	*out = a;
	return CUDA_SUCCESS;
}

void array_end(struct array *a)
{
	if (a->charged > 0)
		machine_return(a->handle.context->device_index, KIND_DATA, a->charged);
	handle_drop(a);
}

static CUresult array_destroy(CUarray handle)
{
	struct array *a;
	TRY(driver_ready());
	a = handle_want(handle, HANDLE_ARRAY, "cuArrayDestroy");
	if (a == NULL || a->level_of != NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	array_end(a);
	return CUDA_SUCCESS;
}

static CUDA_ARRAY3D_DESCRIPTOR array_from_2d(const CUDA_ARRAY_DESCRIPTOR *d)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
}

static CUDA_ARRAY3D_DESCRIPTOR array_from_2d_v1(const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
}

static CUDA_ARRAY3D_DESCRIPTOR array_from_3d_v1(const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags};
}

#define CREATE(entry, convert)                           \
	do {                                             \
		CUDA_ARRAY3D_DESCRIPTOR d_;              \
		if (desc == NULL)                        \
			return CUDA_ERROR_INVALID_VALUE; \
		d_ = convert;                            \
		ENTRY(entry, array_create(out, &d_));    \
	} while (0)

API cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *desc) { CREATE(cuArrayCreate, array_from_2d_v1(desc)); }
API cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *desc) { CREATE(cuArrayCreate, array_from_2d(desc)); }
API cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc) { CREATE(cuArray3DCreate, array_from_3d_v1(desc)); }
API cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc) { CREATE(cuArray3DCreate, *desc); }
API cuArrayDestroy(CUarray a) { ENTRY(cuArrayDestroy, array_destroy(a)); }

static CUresult array_describe(CUarray handle, const void *out, CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	struct array *a;
	TRY(driver_ready());
	a = handle_want(handle, HANDLE_ARRAY, "cuArrayGetDescriptor");
	if (a == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*desc = a->desc;
	return CUDA_SUCCESS;
}

API cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *out, CUarray a)
{
	CUDA_ARRAY3D_DESCRIPTOR d;
	TRY(array_describe(a, out, &d));
	*out = (CUDA_ARRAY_DESCRIPTOR_v1){(unsigned)d.Width, (unsigned)d.Height, d.Format, d.NumChannels};
	return CUDA_SUCCESS;
}

API cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *out, CUarray a)
{
	CUDA_ARRAY3D_DESCRIPTOR d;
	TRY(array_describe(a, out, &d));
	*out = (CUDA_ARRAY_DESCRIPTOR){d.Width, d.Height, d.Format, d.NumChannels};
	return CUDA_SUCCESS;
}

API cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *out, CUarray a)
{
	CUDA_ARRAY3D_DESCRIPTOR d;
	TRY(array_describe(a, out, &d));
	*out = (CUDA_ARRAY3D_DESCRIPTOR_v1){(unsigned)d.Width, (unsigned)d.Height, (unsigned)d.Depth, d.Format, d.NumChannels, d.Flags};
	return CUDA_SUCCESS;
}

API cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray a) { return array_describe(a, out, out); }

static CUresult array_requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, uint64_t size)
{
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = size, .alignment = ARRAY_ALIGNMENT};
	return CUDA_SUCCESS;
}

API cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray handle, CUdevice device)
{
	struct array *a;
	TRY(device_check(device));
	a = handle_want(handle, HANDLE_ARRAY, "cuArrayGetMemoryRequirements");
	return a == NULL ? CUDA_ERROR_INVALID_HANDLE : array_requirements(out, array_size(&a->desc));
}

static uint64_t array_half(uint64_t n) { return n > 1 ? n / 2 : n; }

/* The descriptor of the next level down; layers do not shrink. */
static CUDA_ARRAY3D_DESCRIPTOR array_next_level(CUDA_ARRAY3D_DESCRIPTOR d)
{
	d.Width = array_half(d.Width);
	d.Height = array_half(d.Height);
	if ((d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0)
		d.Depth = array_half(d.Depth);
	return d;
}

/* As seen on an H200: at least one level, and no more than there are. */
static unsigned array_levels(CUDA_ARRAY3D_DESCRIPTOR d, unsigned levels)
{
	bool layered = (d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
	unsigned n = 1;
	for (; n < levels && n < MAX_LEVELS && (d.Width > 1 || d.Height > 1 || (d.Depth > 1 && !layered)); n++)
		d = array_next_level(d);
	return n;
}

static uint64_t array_mipmap_size(CUDA_ARRAY3D_DESCRIPTOR d, unsigned levels)
{
	uint64_t sum = 0;
	if (array_size(&d) == 0)
		return 0;
	for (unsigned i = 0; i < levels; i++, d = array_next_level(d))
		sum += array_size(&d);
	return sum;
}

CUresult mipmap_new(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels, bool charge)
{
	CUDA_ARRAY3D_DESCRIPTOR d;
	struct context *c;
	struct mipmap *m;
	uint64_t size, cost;

	TRY(current_context(&c));
	if (out == NULL || desc == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	levels = array_levels(*desc, levels);
	if ((size = array_mipmap_size(*desc, levels)) == 0)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	cost = charge ? array_cost(desc, size) : 0;
	if (!machine_charge(c->device_index, KIND_DATA, cost))
		return CUDA_ERROR_OUT_OF_MEMORY;
	m = handle_new(sizeof *m, HANDLE_MIPMAP, c);
	if (m == NULL) {
		machine_return(c->device_index, KIND_DATA, cost);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	m->desc = d = *desc;
	m->charged = cost;
	for (; m->levels < levels; m->levels++, d = array_next_level(d)) {
		/* Owned by the mipmap, hence by no context of its own. */
		struct array *a = handle_new(sizeof *a, HANDLE_ARRAY, NULL);
		if (a == NULL) {
			mipmap_end(m);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		a->desc = d;
		a->level_of = m;
		m->level[m->levels] = a;
	}
	*out = m;
	return CUDA_SUCCESS;
}

void mipmap_end(struct mipmap *m)
{
	for (unsigned i = 0; i < m->levels; i++)
		handle_drop(m->level[i]);
	if (m->charged > 0)
		machine_return(m->handle.context->device_index, KIND_DATA, m->charged);
	handle_drop(m);
}

static CUresult array_mipmap_destroy(CUmipmappedArray handle)
{
	struct mipmap *m;
	TRY(driver_ready());
	m = handle_want(handle, HANDLE_MIPMAP, "cuMipmappedArrayDestroy");
	if (m == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	mipmap_end(m);
	return CUDA_SUCCESS;
}

API cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
	ENTRY(cuMipmappedArrayCreate, mipmap_new(out, desc, levels, true));
}

API cuMipmappedArrayDestroy(CUmipmappedArray m) { ENTRY(cuMipmappedArrayDestroy, array_mipmap_destroy(m)); }

API cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray handle, unsigned level)
{
	struct mipmap *m;
	TRY(driver_ready());
	m = handle_want(handle, HANDLE_MIPMAP, "cuMipmappedArrayGetLevel");
	if (m == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (out == NULL || level >= m->levels)
		return CUDA_ERROR_INVALID_VALUE;
	*out = m->level[level];
	return CUDA_SUCCESS;
}

API cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray handle, CUdevice device)
{
	struct mipmap *m;
	TRY(device_check(device));
	m = handle_want(handle, HANDLE_MIPMAP, "cuMipmappedArrayGetMemoryRequirements");
	return m == NULL ? CUDA_ERROR_INVALID_HANDLE : array_requirements(out, array_mipmap_size(m->desc, m->levels));
}
