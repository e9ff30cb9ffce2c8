#include "compute/cap.h"

#include "attach.h"
#include "clock.h"
#include "gate.h"
#include "hooks.h"
#include "compute/meter_table.h"
#include "compute/priority.h"
#include "region/failpoint.h"
#include "compute/slice.h"

/* All in ns. Launches under way may make this much debt: enough that the device does not run out of
 * work while a waiting thread sleeps. */
#define CAP_AHEAD UINT64_C(10000000)
#define CAP_LEAST_NAP UINT64_C(50000)
/* A launch that waits for its turn asks this often. */
#define CAP_TURN_NAP UINT64_C(200000)
/* No thread sleeps longer than this at a time, or waits longer for launches under way: a kernel may
 * wait for the very launch that waits here. */
#define CAP_MOST_WAIT UINT64_C(1000000000)

uint32_t cap_devices;

static void cap_charge(const struct device *d, uint64_t ns, uint64_t in_turn_ns)
{
	unsigned percent = region_cap(attach_region(), d->index);
	if (!percent || !attach_on())
		return;
	region_cap_charge(attach_region(), d->index, ns, percent, clock_exact());
	region_cap_in_turn(attach_region(), d->index, in_turn_ns);
}

/* cap_show_uncharged publishes since when this process has had work on a device that is not charged
 * yet. Of two threads, one may store an older time over a newer one, and then reads again. */
static void cap_show_uncharged(const struct device *d)
{
	for (uint64_t since = meter_table_uncharged(d), again;; since = again) {
		region_show_uncharged(attach_region(), d->index, since);
		if ((again = meter_table_uncharged(d)) == since)
			return;
	}
}

void cap_reset(void)
{
	meter_table_reset();
	meter_reset(cap_charge, cap_show_uncharged);
	cap_devices = 0;
}

void cap_update(const struct device *d)
{
	uint32_t bit = 1u << d->index;
	if (region_cap(attach_region(), d->index) || priority_turns(d))
		__atomic_fetch_or(&cap_devices, bit, __ATOMIC_RELAXED);
	else
		__atomic_fetch_and(&cap_devices, ~bit, __ATOMIC_RELAXED);
}

static void cap_sleep(unsigned device, uint64_t now, uint64_t ns)
{
	uint64_t until = now + (ns < CAP_MOST_WAIT ? ns : CAP_MOST_WAIT);
	struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
	FAILPOINT(CAP_WAITING);
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
	region_cap_waited(attach_region(), device, clock_exact() - now);
	gate_pass_again();
}

/* cap_wait waits until the time that the job has used is due, and until the launches under way in
 * this context will not make much debt. It holds nothing. It returns true if it saw that the
 * context has nothing under way. */
static bool cap_wait(struct meter *m, CUcontext context, CUstream stream, struct device *d)
{
	struct region *r = attach_region();
	bool paused = false, idle = false;
	uint64_t begun = clock_exact(), now = begun, nap = CAP_LEAST_NAP;
	unsigned percent;
	for (; (percent = region_cap(r, d->index)) && attach_on(); now = clock_exact()) {
		if (m)
			meter_read(m, context);
		uint64_t flight = m ? meter_flight(m, context, now) : 0, due = region_cap_due(r, d->index, percent, now);
		uint64_t ahead = region_cap_ahead(due, flight, percent, now);
		/* At 100 % there is nothing to wait for. */
		if (percent >= 100 || (due <= now && ahead <= now + CAP_AHEAD))
			break;
		if (due > now) {
			begun = now;
		} else if (now - begun >= CAP_MOST_WAIT) {
			meter_give_up(m);
			break;
		}
		if (m && !paused)
			meter_pauses(m, context, stream);
		paused = true;
		if (flight) {
			cap_sleep(d->index, now, nap);
			nap = nap * 2 < flight / 8 ? nap * 2 : nap;
			continue;
		}
		idle = true;
		cap_sleep(d->index, now, due - now);
	}
	return idle;
}

/* cap_wait_turn waits for this process's turn, and until the launches under way in this context will
 * end soon after it. It holds nothing but the process's claims. */
static void cap_wait_turn(struct meter *m, CUcontext context, CUstream stream, struct device *d)
{
	bool paused = false;
	uint64_t begun = clock_exact(), now = begun;
	for (; priority_turns(d) && attach_on(); now = clock_exact()) {
		if (m)
			meter_read(m, context);
		/* Without a meter, there may be something under way. */
		if (priority_turn(d, m ? meter_flight(m, context, now) : 1))
			return;
		if (now - begun >= CAP_MOST_WAIT) {
			priority_stop_turns(d);
			return;
		}
		if (m && !paused)
			meter_pauses(m, context, stream);
		paused = true;
		cap_sleep(d->index, now, CAP_TURN_NAP);
	}
}

/* cap_device returns the device of a context that is current, or NULL if it is not known. */
static struct device *cap_device(CUcontext context)
{
	struct device *d = slice_sign(context, 0);
	CUdevice ordinal;
	if (unlikely(!d) && (REAL(cuCtxGetDevice, &ordinal) != CUDA_SUCCESS || device_of(ordinal, &d) != 1))
		return NULL;
	return d;
}

bool cap_launch_begins(CUstream stream, bool graph)
{
	CUcontext context = NULL;
	struct device *d;
	if (meter_passes(stream, graph) || !attach_on() || REAL(cuCtxGetCurrent, &context) != CUDA_SUCCESS || !context ||
	    !(d = cap_device(context)) || !(region_cap(attach_region(), d->index) || priority_turns(d)))
		return false;
	bool idle = false, ends = false;
	for (uint64_t waited = 0;; waited += CAP_LEAST_NAP) {
		struct meter *m = meter_table_find(context);
		cap_wait_turn(m, context, stream, d);
		idle = cap_wait(m, context, stream, d) || idle;
		m = meter_table_of(context, d, waited >= CAP_MOST_WAIT);
		/* The context is ending, or one of several references to it is released. In the
		 * second case, launches made meanwhile are measured with the next ones. */
		if (unlikely(!m) && meter_table_ends(context))
			return false;
		if ((m && meter_begins(m, context, stream, graph, idle, &ends)) || waited >= CAP_MOST_WAIT || !cap_any())
			return ends;
		cap_sleep(d->index, clock_exact(), CAP_LEAST_NAP);
	}
}

/* cap_meter returns the meter of the current context, or NULL if there is no cap or no meter. It
 * sets *context. */
static struct meter *cap_meter(CUcontext *context)
{
	*context = NULL;
	return cap_any() && attach_on() && REAL(cuCtxGetCurrent, context) == CUDA_SUCCESS && *context ? meter_table_find(*context) : NULL;
}

void cap_copies(CUstream stream)
{
	CUcontext context;
	struct meter *m = cap_meter(&context);
	if (m)
		meter_copies(m, context, stream);
}

void cap_waits(void)
{
	CUcontext context;
	struct meter *m = cap_meter(&context);
	if (m)
		meter_waits(m, context);
}

void cap_waited(void)
{
	CUcontext context;
	struct meter *m = cap_meter(&context);
	if (m)
		meter_read(m, context);
}
