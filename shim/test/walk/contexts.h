/* Steps with contexts, green ones too. */
#ifndef RATION_TEST_WALK_CONTEXTS_H
#define RATION_TEST_WALK_CONTEXTS_H

#include "memory.h"

/* Whatever a walker had in a context is gone with it; and what pools handed out, with
 * the last one of a device. */
static void gone_for(struct walker *w, CUcontext c, int device, bool last)
{
	for (int i = 0; i < HELD; i++) {
		struct thing *t = &w->held[i];
		bool pool = t->kind == ASYNC || t->kind == POOLED || t->kind == POOL_POINTER;
		bool stays = t->kind == PHYSICAL || t->kind == IMPORTED || t->kind == LIBRARY || t->kind == GRAPH || pool;
		if ((t->context == c && !stays) || (pool && last && t->device == device))
			drop(w, t);
	}
}

/* A context has ended, where only this walker had anything. */
static void gone(struct walker *w, CUcontext c, int device)
{
	gone_for(w, c, device, __atomic_sub_fetch(&all.contexts[device], 1, __ATOMIC_RELAXED) == 0);
}

/* The driver does not reset a primary context while green ones use it. */
static void step_reset_green(struct walker *w, int device)
{
	CUresult r = cuDevicePrimaryCtxReset_v2(device);
	if (r != UNKNOWN && r != CUDA_ERROR_NOT_PERMITTED)
		good(w, "cuDevicePrimaryCtxReset_v2 beside a green context", r == CUDA_SUCCESS ? CUDA_ERROR_ILLEGAL_STATE : r, false);
}

static void step_green(struct walker *w)
{
	unsigned i = below(w, GREENS);
	int device = (int)below(w, DEVICES);
	CUdevResource whole;
	CUdevResourceDesc desc;
	if (all.calm)
		return;
	measure();
	if (w->green[i].handle == NULL) {
		w->green[i].device = device;
		if (DONE(cuDeviceGetDevResource(device, &whole, 1)) && DONE(cuDevResourceGenerateDesc(&desc, &whole, 1)) &&
		    MADE(cuGreenCtxCreate(&w->green[i].handle, desc, device, 1))) {
			DONE(cuCtxFromGreenCtx(&w->green[i].context, w->green[i].handle));
			__atomic_fetch_add(&all.greens[device], 1, __ATOMIC_RELAXED);
		}
	} else if (DONE(cuGreenCtxDestroy(w->green[i].handle))) {
		w->green[i].handle = NULL;
		__atomic_fetch_sub(&all.greens[w->green[i].device], 1, __ATOMIC_RELAXED);
		DONE(cuCtxSetCurrent(all.primary[0])); /* it may have been current */
	}
	measure_end();
}

static void step_context(struct walker *w)
{
	unsigned i = below(w, OWN);
	int device = (int)below(w, DEVICES);
	CUcontext c = NULL;
	if (all.calm)
		return;
	measure();
	bool primary = all.alone && below(w, 4) == 0;
	if (primary && all.greens[device] > 0) {
		step_reset_green(w, device);
	} else if (primary) {
		/* It must be possible to make it again. */
		if (region_used(region_here(), 0) + 64 * MIB < limit_bytes(region_limit(region_here(), 0)) &&
		    DONE(below(w, 2) ? cuDevicePrimaryCtxReset_v2(device) : cuDevicePrimaryCtxRelease_v2(device))) {
			unsigned flags;
			int active;
			gone(w, all.primary[device], device);
			while (cuDevicePrimaryCtxRelease_v2(device) != CUDA_SUCCESS &&
			       cuDevicePrimaryCtxGetState(device, &flags, &active) == 0 && active)
				;
			while (!MADE(cuDevicePrimaryCtxRetain(&all.primary[device], device)))
				;
			all.contexts[device]++;
		}
	} else if (w->own[i] == NULL) {
		if (MADE(cuCtxCreate_v2(&c, 0, device))) {
			DONE(cuCtxPopCurrent_v2(&c));
			w->own[i] = c;
			w->own_device[i] = device;
			__atomic_fetch_add(&all.contexts[device], 1, __ATOMIC_RELAXED);
		}
	} else {
		c = w->own[i];
		if (DONE(cuCtxDestroy_v2(c))) {
			w->own[i] = NULL;
			gone(w, c, w->own_device[i]);
		}
	}
	measure_end();
}

#endif
