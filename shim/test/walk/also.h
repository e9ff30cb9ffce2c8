/* Steps that only some walks take: what users do to a process, and not to its memory. */
#ifndef RATION_TEST_WALK_ALSO_H
#define RATION_TEST_WALK_ALSO_H

#include <sys/stat.h>

#include "contexts.h"

/* Resets the second device's primary context, whose memory has no limit, while all others
 * of this process stand still, and makes it again. */
static void step_reset(struct walker *w)
{
	enum { DEVICE = 1 };
	if (!all.strict || all.alone || all.calm)
		return;
	measure();
	if (all.greens[DEVICE] > 0) {
		step_reset_green(w, DEVICE);
	} else if (DONE(cuDevicePrimaryCtxReset_v2(DEVICE))) {
		bool last = --all.contexts[DEVICE] == 0;
		for (int i = 0; i < all.count; i++)
			gone_for(&all.walkers[i], all.primary[DEVICE], DEVICE, last);
		while (!MADE(cuDevicePrimaryCtxRetain(&all.primary[DEVICE], DEVICE)))
			;
		all.contexts[DEVICE]++;
		while (!DONE(cuDevicePrimaryCtxRelease_v2(DEVICE))) /* what was retained before counts still */
			;
	}
	measure_end();
}

/* A thread that allocates and frees until it is cancelled, with nothing left over. */
struct victim {
	CUcontext context;
	bool async;
	bool anywhere; /* it may be cancelled anywhere, and not at cancellation points only */
	CUdeviceptr p;
};

static void victim_end(void *arg)
{
	struct victim *v = arg;
	if (v->p != 0)
		(void)!cuMemFree_v2(v->p);
}

static void *victim_run(void *arg)
{
	struct victim *v = arg;
	pthread_cleanup_push(victim_end, v);
	CUresult r = cuCtxSetCurrent(v->context);
	/* From here on all calls are hooked: no other is safe to be cancelled in. */
	if (v->anywhere)
		pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	while (r == CUDA_SUCCESS) {
		r = v->async ? cuMemAllocAsync(&v->p, MIB, NULL) : cuMemAlloc_v2(&v->p, MIB);
		if (r != CUDA_SUCCESS)
			v->p = 0;
		pthread_testcancel();
		CUdeviceptr p = v->p;
		v->p = 0;
		if (p != 0)
			r = cuMemFree_v2(p);
	}
	/* While a thread ends, the C library takes locks of its own, in which it can be cancelled still. */
	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, NULL);
	pthread_cleanup_pop(1);
	return NULL;
}

static void step_cancel(struct walker *w)
{
	struct victim v = {all.primary[below(w, DEVICES)], below(w, 2), below(w, 2), 0};
	pthread_t t;
	pthread_attr_t a;
	/* Never a real-time thread, as its maker may be: it does not wait for anything, and would keep
	 * the CPU. */
	pthread_attr_init(&a);
	pthread_attr_setinheritsched(&a, PTHREAD_EXPLICIT_SCHED);
	if (pthread_create(&t, &a, victim_run, &v) != 0)
		return;
	usleep(below(w, 500));
	pthread_cancel(t);
	pthread_join(t, NULL);
}

static bool is_region(int fd)
{
	struct stat st;
	return fstat(fd, &st) == 0 && st.st_dev == region_here()->dev && st.st_ino == region_here()->ino;
}

/* Closes what the library has open, while no other thread opens anything, and asks for more
 * than there is, for which it opens it again: out of the way. */
static void step_close(struct walker *w)
{
	CUdeviceptr p;
	if (!all.strict)
		return;
	measure();
	for (int fd = 0; fd < 512; fd++)
		if (is_region(fd))
			close(fd);
	DONE(cuCtxSetCurrent(all.primary[0]));
	if (MADE(cuMemAlloc_v2(&p, 1ull << 40)) || is_region(0) || is_region(1) || is_region(2))
		good(w, "closing what the library has open", CUDA_ERROR_ILLEGAL_STATE, false);
	measure_end();
}

static void step_also(struct walker *w)
{
	switch (1u << below(w, 7)) {
	case GREEN:
		if (also(GREEN))
			step_green(w);
		return;
	case RESET:
		if (also(RESET))
			step_reset(w);
		return;
	case CANCEL:
		if (also(CANCEL) && !all.alone)
			step_cancel(w);
		return;
	case CLOSE:
		if (also(CLOSE))
			step_close(w);
		return;
	default: return; /* the others change how other steps are made */
	}
}

#endif
