/* Steps with pools of stream-ordered memory. */
#ifndef RATION_TEST_WALK_POOLS_H
#define RATION_TEST_WALK_POOLS_H

#include "walker.h"

static int some_pool(struct walker *w, int device)
{
	int i = (int)below(w, POOLS);
	return w->pool[i].handle != NULL && !w->pool[i].destroyed && w->pool[i].device == device ? i : -1;
}

static void drained(struct walker *w, const struct thing *t)
{
	if (t->kind != POOLED || --w->pool[t->pool].live > 0 || !w->pool[t->pool].destroyed) {
		if (t->kind == POOLED && w->pool[t->pool].destroyed)
			__atomic_fetch_sub(&all.orphans, 1, __ATOMIC_RELAXED);
		return;
	}
	__atomic_fetch_sub(&all.orphans, 1, __ATOMIC_RELAXED);
	w->pool[t->pool].handle = NULL;
	w->pool[t->pool].destroyed = false;
}

static void step_pool(struct walker *w)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				.location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)below(w, DEVICES)}};
	int i = (int)below(w, POOLS);
	CUmemoryPool p = w->pool[i].handle;
	uint64_t threshold = (uint64_t)below(w, 3) * 48 * MIB;
	if (w->pool[i].destroyed)
		return;
	if (p == NULL) {
		if (MADE(cuMemPoolCreate(&p, &props))) {
			w->pool[i].handle = p;
			w->pool[i].device = props.location.id;
		}
		return;
	}
	switch (below(w, all.alone ? 5 : 4)) {
	case 0: DONE(cuMemPoolTrimTo(p, below(w, 2) * 32 * MIB)); break;
	case 1: DONE(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold)); break;
	case 2:
		if (DONE(cuDeviceGetDefaultMemPool(&p, w->pool[i].device)))
			DONE(cuMemPoolTrimTo(p, 0));
		break;
	case 3:
		if (!DONE(cuMemPoolDestroy(p)))
			return;
		if (all.current[w->pool[i].device] == i + 1)
			all.current[w->pool[i].device] = 0;
		if (w->pool[i].live == 0) {
			w->pool[i].handle = NULL;
			return;
		}
		w->pool[i].destroyed = true;
		__atomic_fetch_add(&all.orphans, w->pool[i].live, __ATOMIC_RELAXED);
		__atomic_store_n(&all.settling, true, __ATOMIC_RELAXED);
		break;
	default:
		if (DONE(cuDeviceSetMemPool(w->pool[i].device, p)))
			all.current[w->pool[i].device] = i + 1;
	}
}

#endif
