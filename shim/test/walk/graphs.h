/* Steps with graphs that allocate. */
#ifndef RATION_TEST_WALK_GRAPHS_H
#define RATION_TEST_WALK_GRAPHS_H

#include "walker.h"

static bool free_somehow(struct walker *w, CUdeviceptr p)
{
    return below(w, 2) ? DONE(cuMemFree_v2(p)) : DONE(cuMemFreeAsync(p, NULL));
}

static bool make_graph(struct walker *w, struct thing *t)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, t->device}},
        .bytesize = 1 + below(w, 40 * MIB),
    };
    CUgraphNode a, f;
    CUgraphExec e = NULL;
    CUgraph g;
    if (!MADE(cuGraphCreate(&g, 0)))
        return false;
    bool inside = below(w, 2);
    bool ok = MADE(cuGraphAddMemAllocNode(&a, g, NULL, 0, &params)) &&
              (!inside || MADE(cuGraphAddMemFreeNode(&f, g, &a, 1, params.dptr))) && MADE(cuGraphInstantiateWithFlags(&e, g, 0)) &&
              MADE(cuGraphLaunch(e, NULL));
    if (!ok) {
        while (e != NULL && !DONE(cuGraphExecDestroy(e)))
            ;
        while (!DONE(cuGraphDestroy(g)))
            ;
        return false;
    }
    t->handle = g;
    t->other = e;
    t->p = inside ? 0 : params.dptr;
    t->again = inside;
    return true;
}

static bool unmake_graph(struct walker *w, struct thing *t)
{
    if (t->p != 0 && !free_somehow(w, t->p))
        return false;
    t->p = 0;
    if (t->other != NULL && !DONE(cuGraphExecDestroy(t->other)))
        return false;
    t->other = NULL;
    return DONE(cuGraphDestroy(t->handle));
}

#endif
