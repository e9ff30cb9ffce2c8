/* Green contexts: a share of a device's multiprocessors. Each has a CUcontext of its own;
 * their memory is the primary context's, which they keep alive, and stays when they go. */
#include <string.h>

#include "driver.h"

enum { RESOURCE_SM = 1 };

struct resource_desc {
	struct handle handle;
	unsigned sms;
};

struct green_context {
	struct handle handle;
	struct context *context;
	unsigned sms;
};

static void green_fill(CUdevResource *r, unsigned sms)
{
	memset(r, 0, sizeof *r);
	r->type = RESOURCE_SM;
	r->sm.smCount = sms;
}

API cuDeviceGetDevResource(CUdevice device, CUdevResource *r, int type)
{
	TRY(device_check(device));
	if (r == NULL || type != RESOURCE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	green_fill(r, (unsigned)machine_shape()->model->sms);
	return CUDA_SUCCESS;
}

API cuDevSmResourceSplitByCount(CUdevResource *result, unsigned *groups, const CUdevResource *input, CUdevResource *remaining,
				unsigned flags, unsigned min)
{
	unsigned size = (unsigned)round_up(min == 0 ? 1 : min, 8), n;
	(void)flags;
	TRY(driver_ready());
	if (groups == NULL || input == NULL || input->type != RESOURCE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	n = input->sm.smCount / size;
	if (result == NULL) {
		*groups = n;
		return CUDA_SUCCESS;
	}
	if (*groups > n)
		*groups = n;
	for (unsigned i = 0; i < *groups; i++)
		green_fill(&result[i], size);
	if (remaining != NULL)
		green_fill(remaining, input->sm.smCount - *groups * size);
	return CUDA_SUCCESS;
}

API cuDevResourceGenerateDesc(CUdevResourceDesc *desc, CUdevResource *resources, unsigned count)
{
	struct resource_desc *d;
	TRY(driver_ready());
	if (desc == NULL || resources == NULL || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	d = handle_new(sizeof *d, HANDLE_DESC, NULL);
	if (d == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned i = 0; i < count; i++)
		d->sms += resources[i].sm.smCount;
	*desc = d;
	return CUDA_SUCCESS;
}

static CUresult green_create(CUgreenCtx *out, CUdevResourceDesc desc, CUdevice device)
{
	struct resource_desc *d;
	struct green_context *g;
	struct context *base, *c;
	CUresult r;

	TRY(device_check(device));
	d = handle_want(desc, HANDLE_DESC, "cuGreenCtxCreate");
	if (out == NULL || d == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	TRY(primary_retain(device, true, &base));
	r = context_new_green(&c, base);
	if (r != CUDA_SUCCESS) {
		primary_release(device, true);
		return r;
	}
	g = handle_new(sizeof *g, HANDLE_GREEN, NULL);
	if (g == NULL) {
		context_end(c);
		primary_release(device, true);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	g->context = c;
	g->sms = d->sms;
	*out = g;
	return CUDA_SUCCESS;
}

API cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc desc, CUdevice device, unsigned flags)
{
	(void)flags;
	ENTRY(cuGreenCtxCreate, green_create(out, desc, device));
}

static CUresult green_destroy(CUgreenCtx green)
{
	struct green_context *g;
	CUdevice device;
	TRY(driver_ready());
	g = handle_want(green, HANDLE_GREEN, "cuGreenCtxDestroy");
	if (g == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	device = g->context->device;
	context_end(g->context);
	handle_drop(g);
	return primary_release(device, true);
}

API cuGreenCtxDestroy(CUgreenCtx green) { ENTRY(cuGreenCtxDestroy, green_destroy(green)); }

API cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green)
{
	struct green_context *g;
	TRY(driver_ready());
	g = handle_want(green, HANDLE_GREEN, "cuCtxFromGreenCtx");
	if (out == NULL || g == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = g->context;
	return CUDA_SUCCESS;
}

API cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *r, int type)
{
	struct green_context *g;
	TRY(driver_ready());
	g = handle_want(green, HANDLE_GREEN, "cuGreenCtxGetDevResource");
	if (r == NULL || g == NULL || type != RESOURCE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	green_fill(r, g->sms);
	return CUDA_SUCCESS;
}

API cuCtxGetDevResource(CUcontext c, CUdevResource *r, int type)
{
	TRY(context_check(c));
	return cuDeviceGetDevResource(c->device, r, type);
}
