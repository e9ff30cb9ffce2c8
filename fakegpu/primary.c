#include <pthread.h>

#include "driver.h"

/* One per device. Once made, a primary context keeps its handle: retaining it
 * again after its end brings the same one back to life, as in the driver. */
static struct primary {
	struct context *context;
	unsigned references;
	unsigned green; /* of them, by green contexts */
	unsigned flags;
} primary[MAX_DEVICES];

static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER;

static bool primary_active(const struct primary *p) { return p->context != NULL && load_acquire(&p->context->alive); }

CUresult primary_retain(CUdevice device, bool green, struct context **out)
{
	struct primary *p = &primary[device];
	CUresult r = CUDA_SUCCESS;

	pthread_mutex_lock(&primary_lock);
	if (p->context == NULL)
		r = context_new(&p->context, device, p->flags, true);
	else if (!primary_active(p))
		r = context_revive(p->context);
	if (r == CUDA_SUCCESS) {
		p->references++;
		p->green += green;
		*out = p->context;
	}
	pthread_mutex_unlock(&primary_lock);
	return r;
}

CUresult primary_release(CUdevice device, bool green)
{
	struct primary *p = &primary[device];
	CUresult r = CUDA_SUCCESS;

	pthread_mutex_lock(&primary_lock);
	if (p->references == (green ? 0 : p->green)) {
		r = CUDA_ERROR_INVALID_CONTEXT;
	} else {
		p->green -= green;
		if (--p->references == 0 && primary_active(p))
			context_end(p->context);
	}
	pthread_mutex_unlock(&primary_lock);
	return r;
}

static CUresult primary_call_retain(CUcontext *out, CUdevice device)
{
	TRY(device_check(device));
	return out == NULL ? CUDA_ERROR_INVALID_VALUE : primary_retain(device, false, out);
}

static CUresult primary_call_release(CUdevice device)
{
	TRY(device_check(device));
	return primary_release(device, false);
}

/* Ends the context, however often it is retained; each of these must still be released. */
static CUresult primary_call_reset(CUdevice device)
{
	CUresult r = CUDA_SUCCESS;
	struct primary *p;
	TRY(device_check(device));
	p = &primary[device];
	pthread_mutex_lock(&primary_lock);
	if (p->green > 0)
		r = CUDA_ERROR_NOT_PERMITTED;
	else if (primary_active(p))
		context_end(p->context);
	pthread_mutex_unlock(&primary_lock);
	return r;
}

API cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) { ENTRY(cuDevicePrimaryCtxRetain, primary_call_retain(out, device)); }
API cuDevicePrimaryCtxRelease(CUdevice device) { ENTRY(cuDevicePrimaryCtxRelease, primary_call_release(device)); }
API cuDevicePrimaryCtxRelease_v2(CUdevice device) { ENTRY(cuDevicePrimaryCtxRelease, primary_call_release(device)); }
API cuDevicePrimaryCtxReset(CUdevice device) { ENTRY(cuDevicePrimaryCtxReset, primary_call_reset(device)); }
API cuDevicePrimaryCtxReset_v2(CUdevice device) { ENTRY(cuDevicePrimaryCtxReset, primary_call_reset(device)); }

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active)
{
	TRY(device_check(device));
	if (flags == NULL || is_active == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&primary_lock);
	*flags = primary[device].flags;
	*is_active = primary_active(&primary[device]);
	pthread_mutex_unlock(&primary_lock);
	return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
	TRY(device_check(device));
	pthread_mutex_lock(&primary_lock);
	primary[device].flags = flags;
	if (primary[device].context != NULL)
		primary[device].context->flags = flags;
	pthread_mutex_unlock(&primary_lock);
	return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) { return cuDevicePrimaryCtxSetFlags_v2(device, flags); }
