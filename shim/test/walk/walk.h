/* Random steps through every call that takes or gives device memory, legal ones only. */
#ifndef RATION_TEST_WALK_H
#define RATION_TEST_WALK_H

#include "also.h"
#include "mail.h"

static void some_step(struct walker *w, int box)
{
	struct thing *t = &w->held[below(w, HELD)];
	CUcontext c;
	if (all.also && below(w, 8) == 0) {
		step_also(w);
		return;
	}
	switch (below(w, 16)) {
	case 0: step_pool(w); return;
	case 1:
		if (below(w, 4) == 0)
			step_context(w);
		return;
	case 2:
	case 3:
		enter(w, &c);
		change(w, t);
		return;
	case 4:
		if (box >= 0) {
			enter(w, &c);
			post(w, t);
		}
		return;
	case 5:
		if (box < 0 || t->kind != NOTHING)
			return;
		if (!receive(w, t, box))
			t->kind = NOTHING;
		return;
	default:
		if (t->kind != NOTHING)
			step_unmake(w, t);
		else if (!make(w, t))
			t->kind = NOTHING;
	}
}

/* One step. box is where letters come from, or -1. */
static void step(struct walker *w, int box)
{
	pthread_rwlock_rdlock(&all.measured);
	some_step(w, box);
	pthread_rwlock_unlock(&all.measured);
}

/* Gives back everything. */
static void walk_home(struct walker *w)
{
	pthread_rwlock_rdlock(&all.measured);
	for (int i = 0; i < HELD; i++)
		for (int tries = 0; w->held[i].kind != NOTHING && tries < 20; tries++)
			step_unmake(w, &w->held[i]);
	for (int i = 0; i < POOLS; i++)
		while (w->pool[i].handle != NULL && !w->pool[i].destroyed && !DONE(cuMemPoolDestroy(w->pool[i].handle)))
			;
	measure();
	for (int i = 0; i < GREENS; i++)
		while (w->green[i].handle != NULL && !DONE(cuGreenCtxDestroy(w->green[i].handle)))
			;
	for (int i = 0; i < OWN; i++)
		while (w->own[i] != NULL && !DONE(cuCtxDestroy_v2(w->own[i])))
			;
	measure_end();
	pthread_rwlock_unlock(&all.measured);
}

#endif
