#include "compute/compute.h"

#include <pthread.h>
#include <string.h>

#include "compute/cap.h"
#include "capture.h"
#include "hooks.h"
#include "log.h"
#include "compute/meter_table.h"
#include "compute/priority.h"
#include "region/atomics.h"
#include "region/words.h"
#include "compute/slice.h"

/* How long a computed slice is not computed again, in ns. The coarse clock moves in steps of 1 to
 * 10 ms. */
#define COMPUTE_LOOK_NS 4000000

/* The shortest slice, in microseconds: switching costs 180. */
#define COMPUTE_LEAST_SLICE 100

/* One for each device, by the region's index. Atomic. */
static struct compute_device {
	uint32_t waiting;   /* threads of this process that wait for the device */
	uint64_t looked_us; /* when a thread last computed the slice */
} __attribute__((aligned(64))) compute_devices[RATION_DEVICES];

static uint32_t compute_asked[RATION_SLOTS]; /* the parameter asked of region_workers */

__thread uint64_t compute_next_signal, compute_next_look;

/* compute_show publishes whether this process has work on a device, and returns in how many
 * contexts. Of two threads, one may store an older word over a newer one, but never a word that
 * lacks a waiting thread: each thread reads the number of waiting threads again after it has
 * stored. */
static unsigned compute_show(struct device *d, uint64_t now_us)
{
	uint32_t *waiting = &compute_devices[d->index].waiting, n;
	unsigned workers;
	bool again = false;
	do {
		n = __atomic_load_n(waiting, __ATOMIC_SEQ_CST);
		workers = slice_workers(d, now_us > RATION_WORK_LEASE_US ? now_us - RATION_WORK_LEASE_US : 1);
		workers = !workers && n ? 1 : workers;
		region_show_work(attach_region(), d->index, workers ? make_work(now_us, workers, n > 0) : 0);
		priority_show(d, workers, n > 0, again);
		again = true;
	} while (__atomic_load_n(waiting, __ATOMIC_SEQ_CST) != n);
	return workers;
}

/* compute_slice returns the slice in microseconds of one context, if this process has `own` contexts
 * with work and the job has this many; 0 without a share and a priority. */
static uint64_t compute_slice(const struct device *d, unsigned own, unsigned workers)
{
	unsigned share = region_share(attach_region(), d->index);
	uint64_t slice = region_round(attach_region()) * share / 100 / (workers ? workers : 1);
	return priority_slice(d, own, workers, share, !share ? 0 : slice < COMPUTE_LEAST_SLICE ? COMPUTE_LEAST_SLICE : slice);
}

/* compute_adjust computes the slice of this process's contexts on a device, and sets it. It also
 * reads whether there is a cap. */
static void compute_adjust(struct device *d, uint64_t now_us)
{
	struct region *r = attach_region();
	unsigned own = compute_show(d, now_us);
	unsigned workers = own + region_workers(r, d->index, now_us, compute_asked);
	uint64_t slice;
	unsigned state;
	uint32_t drops;
	priority_look_begins(d);
	do {
		drops = priority_drops(d);
		slice = compute_slice(d, own, workers);
		state = slice_set(d, slice);
	} while (priority_drops(d) != drops);
	priority_look_ends(d);
	region_show_slice(r, d->index, make_slice(slice, slice ? state : RATION_SLICE_READY));
	if (slice)
		slice_complain(d, state);
	cap_update(d);
}

/* compute_look_at calls compute_adjust, unless a thread did in the last milliseconds (always: even
 * then). It disables cancellation: a thread that is cancelled in the middle would keep a context's
 * place taken for ever. */
static void compute_look_at(struct device *d, uint64_t now_us, bool always)
{
	uint64_t *looked = &compute_devices[d->index].looked_us, before = load_relaxed(looked);
	int cancel;
	if (!always && now_us - before < COMPUTE_LOOK_NS / 1000)
		return;
	if (!cas(looked, before, now_us) && !always)
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	compute_adjust(d, now_us);
	pthread_setcancelstate(cancel, &cancel);
}

/* compute_slices_changed computes the slice again, after a claim has changed. */
static void compute_slices_changed(struct device *d) { compute_look_at(d, clock_coarse() / 1000, true); }

void compute_reset(void)
{
	memset(compute_devices, 0, sizeof compute_devices);
	memset(compute_asked, 0, sizeof compute_asked);
	compute_next_signal = compute_next_look = 0;
	slices_reset();
	priority_reset(compute_slices_changed);
	cap_reset();
}

/* compute_current returns the device of the thread's current context, or NULL if there is none. If
 * now_us is not 0, it also records that the context has work. */
static struct device *compute_current(uint64_t now_us)
{
	CUcontext handle = NULL;
	CUdevice ordinal;
	if (!attach_on() || REAL(cuCtxGetCurrent, &handle) != CUDA_SUCCESS || !handle)
		return NULL;
	struct device *d = slice_sign(handle, now_us);
	if (likely(d != NULL) || REAL(cuCtxGetDevice, &ordinal) != CUDA_SUCCESS || device_of(ordinal, &d) != 1)
		return d;
	/* CUDA's runtime makes a primary context current before the context is active, and makes
	 * queries then. */
	if (!__atomic_load_n(&d->contexts_alive, __ATOMIC_ACQUIRE))
		return NULL;
	/* The context was made before the job had a share, or by a call that is not hooked. */
	log_debug("context %p on device %u was not seen being made", (void *)handle, d->index);
	region_enter(attach_region(), d->index);
	slice_add_unseen(handle, d);
	slice_sign(handle, now_us);
	return d; /* even if slice_add_unseen found no place for the context: the thread computes the slice all the same */
}

void compute_signal(void)
{
	uint64_t now = clock_coarse();
	compute_next_signal = compute_next_look = now + COMPUTE_LOOK_NS;
	struct device *d = compute_current(now / 1000);
	/* A process that had no work has no claim, even if it computed its slice a moment ago. */
	if (d)
		compute_look_at(d, now / 1000, priority_unclaimed(d));
}

void compute_found_busy(void)
{
	compute_signal();
	cap_waits();
}

void compute_look_now(void)
{
	uint64_t now = clock_coarse();
	compute_next_look = now + COMPUTE_LOOK_NS;
	struct device *d = compute_current(0);
	if (d)
		compute_look_at(d, now / 1000, false);
}

struct device *compute_wait_begin(void)
{
	struct device *d;
	if (!attach_compute())
		return NULL;
	uint64_t now = clock_coarse();
	if (!(d = compute_current(now / 1000)))
		return NULL;
	cap_waits();
	__atomic_fetch_add(&compute_devices[d->index].waiting, 1, __ATOMIC_SEQ_CST);
	compute_show(d, now / 1000);
	compute_look_at(d, now / 1000, false);
	return d;
}

void compute_wait_end(struct device *d)
{
	if (!d)
		return;
	uint64_t now = clock_coarse();
	/* The context had work until now. If this were not recorded, a process that waited for
	 * longer than a lease would publish that it has no work, and would set its slices as if
	 * that were so, until its next wait has ended. */
	compute_current(now / 1000);
	__atomic_fetch_sub(&compute_devices[d->index].waiting, 1, __ATOMIC_SEQ_CST);
	compute_show(d, now / 1000);
	compute_look_at(d, now / 1000, false);
	cap_waited();
}

void compute_making(struct device *d)
{
	if (!attach_compute()) {
		slice_watch(d, 0);
		return;
	}
	uint64_t now_us = clock_coarse() / 1000;
	region_enter(attach_region(), d->index);
	/* Count the new context as one that has work: it will have some soon. */
	unsigned own = 1 + slice_workers(d, now_us > RATION_WORK_LEASE_US ? now_us - RATION_WORK_LEASE_US : 1);
	unsigned workers = own + region_workers(attach_region(), d->index, now_us, compute_asked);
	slice_watch(d, compute_slice(d, own, workers));
}

int compute_made(struct device *d, CUcontext whole, CUcontext part)
{
	unsigned state = slice_made(whole, part);
	if (!attach_compute() || (!whole && !part))
		return CUDA_SUCCESS;
	if (attach_config()->limits.strict && state != RATION_SLICE_KEPT && region_share(attach_region(), d->index)) {
		log_error("device %u: no context: its share of the device's time cannot be enforced, and RATION_COMPUTE=strict: %s",
			  d->index, slice_state_text(state));
		slice_forget(whole);
		slice_forget(part);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	compute_look_at(d, clock_coarse() / 1000, true);
	return CUDA_SUCCESS;
}

void compute_ending(CUcontext handle)
{
	slice_pause(handle);
	if (attach_compute())
		meter_table_context_ends(handle);
}

void compute_not_ended(CUcontext handle)
{
	slice_resume(handle);
	if (attach_compute())
		meter_table_context_lives(handle);
}

void compute_ended(CUcontext handle)
{
	struct device *d = slice_sign(handle, 0);
	slice_forget(handle);
	if (!attach_compute())
		return;
	meter_table_context_ended(handle);
	if (d && attach_on())
		compute_look_at(d, clock_coarse() / 1000, true);
}

void compute_stream_ends(CUstream stream)
{
	if (attach_compute())
		meter_table_stream_ends(stream); /* also without a cap: there may be one again later */
}

bool compute_launch_begins(CUstream stream, bool graph)
{
	if (unlikely(clock_coarse() >= compute_next_signal))
		compute_signal();
	return unlikely(cap_any()) && cap_launch_begins(stream, graph);
}

void compute_launch_ended(CUstream stream) { meter_ends(stream); }

void compute_copy_begins(CUstream stream)
{
	if (unlikely(cap_any()))
		cap_copies(stream);
}

void compute_event_wait_begins(CUstream stream, CUevent event)
{
	if (likely(!cap_any()))
		return;
	/* The stream does not stop for an event that has been reached. To ask costs less than to
	 * measure the launches before and after it apart. Not while a stream may be captured: the
	 * event may be part of the capture. */
	if (!capture_any()) {
		int mode = capture_relax_always(), result = REAL(cuEventQuery, event);
		capture_restore(mode);
		if (result == CUDA_SUCCESS)
			return;
	}
	cap_copies(stream);
}
