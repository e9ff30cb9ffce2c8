/* Steps that make, change and end what takes memory. */
#ifndef RATION_TEST_WALK_MEMORY_H
#define RATION_TEST_WALK_MEMORY_H

#include "graphs.h"
#include "pools.h"

static bool make_measured(struct walker *w, struct thing *t)
{
	CUmodule m;
	bool ok;
	measure();
	if (t->kind == MODULE) {
		ok = MADE(cuModuleLoadData((CUmodule *)&t->handle, ptx));
	} else {
		ok = MADE(cuLibraryLoadData((CUlibrary *)&t->handle, ptx, NULL, NULL, 0, NULL, NULL, 0));
		if (ok && below(w, 4))
			MADE(cuLibraryGetModule(&m, t->handle));
	}
	measure_end();
	return ok;
}

static bool make(struct walker *w, struct thing *t)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)below(w, DEVICES)}};
	CUDA_ARRAY3D_DESCRIPTOR cube = {1 + below(w, 300), below(w, 100), below(w, 4), CU_AD_FORMAT_FLOAT, 4, 0};
	CUDA_ARRAY_DESCRIPTOR flat = {1 + below(w, 900), below(w, 300), CU_AD_FORMAT_HALF, 1 + (below(w, 2))};
	size_t pitch;
	*t = (struct thing){.device = enter(w, &t->context), .context = t->context, .size = 1 + below(w, 3 * MIB)};
	t->kind = 1 + (enum kind)below(w, below(w, 4) ? MIPMAP : KINDS - 1);
	switch (t->kind) {
	case LINEAR: return MADE(cuMemAlloc_v2(&t->p, t->size));
	case PITCH: return MADE(cuMemAllocPitch_v2(&t->p, &pitch, 1 + below(w, 5000), 1 + below(w, 100), 4));
	case MANAGED:
		if (all.strict && !all.alone)
			return false; /* it would hide what contexts take */
		return MADE(cuMemAllocManaged(&t->p, t->size, CU_MEM_ATTACH_GLOBAL)) ? away(t, 1), true : false;
	case ASYNC:
		if (!MADE(cuMemAllocAsync(&t->p, 1 + below(w, 20 * MIB), NULL)))
			return false;
		if ((t->pool = all.alone ? all.current[t->device] - 1 : -1) >= 0) {
			t->kind = POOLED;
			w->pool[t->pool].live++;
		}
		return true;
	case POOLED:
		if ((t->pool = some_pool(w, t->device)) < 0 ||
		    !MADE(cuMemAllocFromPoolAsync(&t->p, 1 + below(w, 20 * MIB), w->pool[t->pool].handle, NULL)))
			return false;
		w->pool[t->pool].live++;
		return true;
	case PHYSICAL:
		t->device = prop.location.id;
		t->size = (1 + below(w, 4)) * 2 * MIB;
		return MADE(cuMemCreate(&t->memory, t->size, &prop, 0));
	case ARRAY: return MADE(cuArrayCreate_v2((CUarray *)&t->handle, &flat));
	case ARRAY3D: return MADE(cuArray3DCreate_v2((CUarray *)&t->handle, &cube));
	case MIPMAP: return MADE(cuMipmappedArrayCreate((CUmipmappedArray *)&t->handle, &cube, 1 + below(w, 4)));
	case GRAPH: return make_graph(w, t);
	default: return !all.calm && make_measured(w, t);
	}
}

static bool unmap(struct walker *w, struct thing *t)
{
	if (t->p == 0)
		return true;
	if (t->handle == NULL && !DONE(cuMemUnmap(t->p, t->size)))
		return false;
	t->handle = t; /* unmapped, and not yet given back */
	if (!DONE(cuMemAddressFree(t->p, t->size)))
		return false;
	t->p = 0;
	t->handle = NULL;
	return true;
}

/* Takes a thing apart as far as the driver lets it. */
static bool unmake(struct walker *w, struct thing *t)
{
	CUcontext c;
	enter(w, &c);
	switch (t->kind) {
	case NOTHING: return true;
	case LINEAR:
	case PITCH:
	case ASYNC:
	case POOLED:
	case POOL_POINTER: return free_somehow(w, t->p);
	case MANAGED: return DONE(cuMemFree_v2(t->p));
	case PHYSICAL:
	case IMPORTED:
		if (below(w, 2))
			close_descriptor(t);
		if (below(w, 2) && t->memory != 0 && t->p != 0 && DONE(cuMemRelease(t->memory)))
			t->memory = 0; /* before what is mapped */
		if (!unmap(w, t) || (t->memory != 0 && !DONE(cuMemRelease(t->memory))))
			return false;
		close_descriptor(t);
		return true;
	case ARRAY:
	case ARRAY3D: return DONE(cuArrayDestroy(t->handle));
	case MIPMAP: return DONE(cuMipmappedArrayDestroy(t->handle));
	case MODULE: return DONE(cuModuleUnload(t->handle));
	case LIBRARY: return DONE(cuLibraryUnload(t->handle));
	case GRAPH: return unmake_graph(w, t);
	case OPENED: return DONE(cuIpcCloseMemHandle(t->p));
	default: return false;
	}
}

static void drop(struct walker *w, struct thing *t)
{
	drained(w, t);
	if (t->kind == MANAGED && !t->moved)
		away(t, -1);
	t->kind = NOTHING;
}

static bool measured(enum kind k) { return k == MODULE || k == LIBRARY; }

static void step_unmake(struct walker *w, struct thing *t)
{
	bool slow = measured(t->kind);
	if (slow)
		measure();
	if (unmake(w, t))
		drop(w, t);
	if (slow)
		measure_end();
}

/* Changes of what there is */

/* Exports memory, and imports it into the same process. */
static void import_own(struct walker *w, const struct thing *t)
{
	struct thing copy = {.kind = IMPORTED, .device = t->device, .context = t->context, .size = t->size};
	struct thing *place = &w->held[below(w, HELD)];
	int fd;
	if (!DONE(cuMemExportToShareableHandle(&fd, t->memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)))
		return;
	copy.descriptor = fd + 1;
	all.imported = true;
	if (below(w, 2))
		copy.memory = 0;
	else if (!DONE(cuMemImportFromShareableHandle(&copy.memory, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)))
		copy.memory = 0;
	if (below(w, 2))
		close_descriptor(&copy);
	if (place->kind == NOTHING)
		*place = copy;
	else
		while (!unmake(w, &copy))
			;
}

static void change(struct walker *w, struct thing *t)
{
	CUmemGenericAllocationHandle again;
	switch (t->kind) {
	case MANAGED:
		/* Where others measure, what it hid would show all at once. */
		if (all.alone && DONE(cuMemPrefetchAsync(t->p, t->size, t->moved ? CU_DEVICE_CPU : t->device, NULL))) {
			away(t, t->moved ? 1 : -1);
			t->moved = !t->moved;
		}
		break;
	case PHYSICAL:
	case IMPORTED:
		if (t->p == 0 && t->memory != 0) {
			if (!DONE(cuMemAddressReserve(&t->p, t->size, 0, 0, 0)))
				t->p = 0;
			else if (!DONE(cuMemMap(t->p, t->size, 0, t->memory, 0)))
				t->handle = t; /* reserved only */
		} else if (t->p != 0 && t->handle == NULL && below(w, 2)) {
			if (!DONE(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)t->p)))
				return;
			while (!DONE(cuMemRelease(again)))
				;
		} else if (t->p != 0) {
			if (t->memory != 0)
				unmap(w, t);
		}
		if (t->kind == PHYSICAL && t->memory != 0 && below(w, 2))
			import_own(w, t);
		else if (below(w, 4) == 0)
			close_descriptor(t);
		break;
	case GRAPH:
		if (t->again && t->other != NULL && below(w, 2))
			MADE(cuGraphLaunch(t->other, NULL));
		else
			DONE(cuDeviceGraphMemTrim(also(TWO_DEVICES) ? (int)below(w, DEVICES) : t->device));
		break;
	default:
		if (!DONE(below(w, 2) ? cuCtxSynchronize() : cuStreamSynchronize(NULL)))
			return;
		if (all.alone && all.orphans == 0)
			all.settling = false;
	}
}

#endif
