/* Steps with graphs that allocate. */
#ifndef RATION_TEST_WALK_GRAPHS_H
#define RATION_TEST_WALK_GRAPHS_H

#include "walker.h"

static bool free_somehow(struct walker *w, CUdeviceptr p) { return below(w, 2) ? DONE(cuMemFree_v2(p)) : DONE(cuMemFreeAsync(p, NULL)); }

static bool make_graph(struct walker *w, struct thing *t)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, t->device}},
		.bytesize = 1 + below(w, 40 * MIB),
	};
	CUDA_MEM_ALLOC_NODE_PARAMS second = params;
	CUgraphNode a, b, f;
	CUgraphExec e = NULL;
	CUgraph g;
	if (!MADE(cuGraphCreate(&g, 0)))
		return false;
	bool inside = below(w, 2), two = also(TWO_DEVICES) && below(w, 2), frees = !inside && also(AUTO_FREE) && below(w, 2);
	second.poolProps.location.id = DEVICES - 1 - t->device;
	bool ok = MADE(cuGraphAddMemAllocNode(&a, g, NULL, 0, &params)) &&
		  (!two || MADE(cuGraphAddMemAllocNode(&b, g, NULL, 0, &second))) &&
		  (!inside || MADE(cuGraphAddMemFreeNode(&f, g, &a, 1, params.dptr))) &&
		  (!inside || !two || MADE(cuGraphAddMemFreeNode(&f, g, &b, 1, second.dptr))) &&
		  MADE(cuGraphInstantiateWithFlags(&e, g, frees)) && MADE(cuGraphLaunch(e, NULL));
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
	t->second = inside || !two ? 0 : second.dptr;
	t->again = inside || frees;
	return true;
}

static bool unmake_graph(struct walker *w, struct thing *t)
{
	t->again = false; /* it would have memory again, of which we would not know */
	if (t->p != 0 && !free_somehow(w, t->p))
		return false;
	t->p = 0;
	if (t->second != 0 && !free_somehow(w, t->second))
		return false;
	t->second = 0;
	if (t->other != NULL && !DONE(cuGraphExecDestroy(t->other)))
		return false;
	t->other = NULL;
	return DONE(cuGraphDestroy(t->handle));
}

#endif
