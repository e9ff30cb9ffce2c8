#include "compute/compute.h"

#include <pthread.h>
#include <string.h>

#include "compute/cap.h"
#include "capture.h"
#include "hooks.h"
#include "log.h"
#include "compute/meter_table.h"
#include "region/atomics.h"
#include "region/words.h"
#include "compute/slice.h"

/* How long a thread's look is good for. The coarse clock moves in steps of 1 to 10 ms. */
#define COMPUTE_LOOK_NS 4000000

/* The least slice, in microseconds: switching costs 180. */
#define COMPUTE_LEAST_SLICE 100

/* By the region's index. Atomic. */
static struct compute_device {
	uint32_t waiting;   /* threads of this process that wait for the device */
	uint64_t looked_us; /* when a thread last looked */
} __attribute__((aligned(64))) compute_devices[RATION_DEVICES];

static uint32_t compute_asked[RATION_SLOTS]; /* region_workers' */

__thread uint64_t compute_next_signal, compute_next_look;

void compute_reset(void)
{
	memset(compute_devices, 0, sizeof compute_devices);
	memset(compute_asked, 0, sizeof compute_asked);
	compute_next_signal = compute_next_look = 0;
	slices_reset();
	cap_reset();
}

/* compute_show shows this process's sign of work. Of two threads one may store an older word
 * over a newer one, but not one that lacks a thread that waits: each looks at their number
 * again after it has stored. */
static unsigned compute_show(struct device *d, uint64_t now_us)
{
	uint32_t *waiting = &compute_devices[d->index].waiting, n;
	unsigned workers;
	do {
		n = __atomic_load_n(waiting, __ATOMIC_SEQ_CST);
		workers = slice_workers(d, now_us > RATION_WORK_LEASE_US ? now_us - RATION_WORK_LEASE_US : 1);
		workers = !workers && n ? 1 : workers;
		region_show_work(attach_region(), d->index, workers ? make_work(now_us, workers, n > 0) : 0);
	} while (__atomic_load_n(waiting, __ATOMIC_SEQ_CST) != n);
	return workers;
}

/* compute_slice returns the slice of one of so many contexts of the job: 0 without a share. */
static uint64_t compute_slice(unsigned device, unsigned workers)
{
	unsigned share = region_share(attach_region(), device);
	uint64_t slice = region_round(attach_region()) * share / 100 / (workers ? workers : 1);
	return !share ? 0 : slice < COMPUTE_LEAST_SLICE ? COMPUTE_LEAST_SLICE : slice;
}

/* compute_adjust brings the slices of this process's contexts on a device up to date. */
static void compute_adjust(struct device *d, uint64_t now_us)
{
	struct region *r = attach_region();
	unsigned own = compute_show(d, now_us);
	unsigned workers = own + region_workers(r, d->index, now_us, compute_asked);
	uint64_t slice = compute_slice(d->index, workers);
	unsigned state = slice_set(d, slice);
	region_show_slice(r, d->index, make_slice(slice, slice ? state : RATION_SLICE_READY));
	if (slice)
		slice_complain(d, state);
	cap_update(d);
}

/* compute_look_at does so unless a thread has in the last milliseconds. A thread that is
 * cancelled in the middle would keep a context for itself: no thread is. */
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

/* compute_current returns the device of the thread's current context, with a sign of work
 * where now_us is not 0; NULL where there is none. */
static struct device *compute_current(uint64_t now_us)
{
	CUcontext handle = NULL;
	CUdevice ordinal;
	if (!attach_on() || REAL(cuCtxGetCurrent, &handle) != CUDA_SUCCESS || !handle)
		return NULL;
	struct device *d = slice_sign(handle, now_us);
	if (likely(d != NULL) || REAL(cuCtxGetDevice, &ordinal) != CUDA_SUCCESS || device_of(ordinal, &d) != 1)
		return d;
	/* CUDA's runtime sets a primary context before it makes it active, and asks this and that. */
	if (!__atomic_load_n(&d->contexts_alive, __ATOMIC_ACQUIRE))
		return NULL;
	/* Made before the job had a share, or by a call that is not hooked. */
	log_debug("context %p on device %u was not seen being made", (void *)handle, d->index);
	region_enter(attach_region(), d->index);
	slice_add_unseen(handle, d);
	slice_sign(handle, now_us);
	return d; /* also where it found no place: the thread looks all the same */
}

void compute_signal(void)
{
	uint64_t now = clock_coarse();
	compute_next_signal = compute_next_look = now + COMPUTE_LOOK_NS;
	struct device *d = compute_current(now / 1000);
	if (d)
		compute_look_at(d, now / 1000, false);
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
	/* It had work until now: without a sign, one that waited for longer than a lease would show that it has none,
	 * and give its contexts what they would have if it were so for as long as its next wait takes. */
	compute_current(now / 1000);
	__atomic_fetch_sub(&compute_devices[d->index].waiting, 1, __ATOMIC_SEQ_CST);
	compute_show(d, now / 1000);
	compute_look_at(d, now / 1000, false);
	cap_waited();
}

void compute_making(struct device *d)
{
	if (!attach_compute())
		return;
	uint64_t now_us = clock_coarse() / 1000;
	region_enter(attach_region(), d->index);
	/* As one of those that have work: it will soon. */
	unsigned workers = 1 + slice_workers(d, now_us > RATION_WORK_LEASE_US ? now_us - RATION_WORK_LEASE_US : 1) +
			   region_workers(attach_region(), d->index, now_us, compute_asked);
	slice_watch(d, compute_slice(d->index, workers));
}

int compute_made(struct device *d, CUcontext whole, CUcontext part)
{
	if (!attach_compute())
		return CUDA_SUCCESS;
	unsigned state = slice_made(whole, part);
	if (!whole && !part)
		return CUDA_SUCCESS;
	if (attach_config()->strict && state != RATION_SLICE_KEPT && region_share(attach_region(), d->index)) {
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
	if (!attach_compute())
		return;
	slice_pause(handle);
	meter_table_context_ends(handle);
}

void compute_not_ended(CUcontext handle)
{
	if (!attach_compute())
		return;
	slice_resume(handle);
	meter_table_context_lives(handle);
}

void compute_ended(CUcontext handle)
{
	if (!attach_compute())
		return;
	struct device *d = slice_sign(handle, 0);
	slice_forget(handle);
	meter_table_context_ended(handle);
	if (d && attach_on())
		compute_look_at(d, clock_coarse() / 1000, true);
}

void compute_stream_ends(CUstream stream)
{
	int status = 0;
	/* A capture ends with a stream of it. */
	if (capture_any() && REAL(cuStreamIsCapturing, stream, &status) == CUDA_SUCCESS && status != 0)
		capture_ended();
	meter_table_stream_ends(stream); /* also while there is no cap: there may be one again */
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
