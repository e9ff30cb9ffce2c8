/* Steps with contexts. */
#ifndef RATION_TEST_WALK_CONTEXTS_H
#define RATION_TEST_WALK_CONTEXTS_H

#include "memory.h"

/* Whatever was in a context is gone with it; and what pools handed out, with the
 * last one of a device. */
static void gone(struct walker *w, CUcontext c, int device)
{
    bool last = __atomic_sub_fetch(&all.contexts[device], 1, __ATOMIC_RELAXED) == 0;
    for (int i = 0; i < HELD; i++) {
        struct thing *t = &w->held[i];
        bool pool = t->kind == ASYNC || t->kind == POOLED || t->kind == POOL_POINTER;
        bool stays = t->kind == PHYSICAL || t->kind == IMPORTED || t->kind == LIBRARY || t->kind == GRAPH || pool;
        if ((t->context == c && !stays) || (pool && last && t->device == device))
            drop(w, t);
    }
}

static void step_context(struct walker *w)
{
    unsigned i = below(w, OWN);
    int device = (int)below(w, DEVICES);
    CUcontext c = NULL;
    if (all.calm)
        return;
    measure();
    if (all.alone && below(w, 4) == 0) {
        /* It must be possible to make it again. */
        if (region_used(region_here(), 0) + 64 * MIB < limit_bytes(region_limit(region_here(), 0)) &&
            DONE(below(w, 2) ? cuDevicePrimaryCtxReset_v2(device) : cuDevicePrimaryCtxRelease_v2(device))) {
            unsigned flags;
            int active;
            gone(w, all.primary[device], device);
            while (cuDevicePrimaryCtxRelease_v2(device) != CUDA_SUCCESS && cuDevicePrimaryCtxGetState(device, &flags, &active) == 0 &&
                   active)
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
