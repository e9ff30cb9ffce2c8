#include "charge_wait.h"

#include <pthread.h>
#include <string.h>

#include "attach.h"
#include "capture.h"
#include "clock.h"
#include "hooks.h"
#include "lock_order.h"
#include "log.h"
#include "region/words.h"

#define SECOND_NS UINT64_C(1000000000)

static __thread struct charge_wait *charge_waiter __attribute__((tls_model("initial-exec"))); /* the loop that this thread is in */

/* charge_wait_limit returns for how long requests of the job wait, in ns. A program that captures a
 * stream does not wait: what it waits for may be the end of the capture. */
static uint64_t charge_wait_limit(void)
{
	return attach_state() == ATTACH_ON && !capture_any() ? region_wait_alloc(attach_region()) * 1000000 : 0;
}

void charge_wait_begin(struct charge_wait *w)
{
	w->waits = !charge_waiter && attach_on() && charge_wait_limit();
	if (!w->waits)
		return;
	memset(w, 0, sizeof *w);
	w->waits = true;
	charge_waiter = w;
}

/* charge_wait_hopeless reports whether the request cannot fit, whatever other processes free. What this
 * process holds is its own to free: many programs do so when they are refused, and then try again. */
static bool charge_wait_hopeless(unsigned device, uint64_t bytes)
{
	struct region *r = attach_region();
	return units_for(bytes) + units_for(region_own_bytes(r, device)) > limit_ceiling(region_limit(r, device));
}

bool charge_wait_defer(unsigned device, uint64_t bytes, uint64_t *waited)
{
	struct charge_wait *w = charge_waiter;
	*waited = w && w->from ? clock_exact() - w->from : 0;
	if (!w || w->last || charge_wait_hopeless(device, bytes))
		return false;
	if (w->from && w->waiter.device != device) /* its turn is another device's */
		region_wait_leave(attach_region(), &w->waiter), w->waiter.since = 0;
	w->waiter.device = device;
	w->waiter.bytes = bytes;
	w->refused = true;
	return true;
}

struct charge_wait *charge_wait_suspend(void)
{
	struct charge_wait *w = charge_waiter;
	charge_waiter = NULL;
	return w;
}

void charge_wait_resume(struct charge_wait *w)
{
	if (w)
		charge_waiter = w;
}

/* charge_wait_log logs once for a request that it waits, and for what. */
static void charge_wait_log(struct charge_wait *w, uint64_t limit_ns, unsigned rank)
{
	struct region *r = attach_region();
	unsigned device = w->waiter.device;
	uint64_t limit = limit_bytes(region_limit(r, device)), used = region_used(r, device);
	char asked[SIZE_TEXT], free[SIZE_TEXT], whole[SIZE_TEXT];
	w->logged = true;
	log_warn("waiting up to %llu s for %s of device %u: %s of its job's %s is free, and %u requests wait before it",
		 (unsigned long long)((limit_ns + SECOND_NS - 1) / SECOND_NS), size_text(w->waiter.bytes, asked), device,
		 size_text(limit > used ? limit - used : 0, free), size_text(limit, whole), rank);
}

static bool charge_wait_fits(struct region *r, const struct region_waiter *w)
{
	return units_for(region_used(r, w->device)) + units_for(w->bytes) <= limit_ceiling(region_limit(r, w->device));
}

/* charge_wait_room waits until the request may fit, or must be refused. Once a second the first one
 * tries without room: a request that does not fit makes this process give up memory that it reserves
 * and does not use (charge_on_pressure). again: the request has found
 * room before, and was refused nevertheless. Then it waits for a change first, so that it does not try
 * again and again. */
static void charge_wait_room(struct charge_wait *w, bool again)
{
	struct region *r = attach_region();
	uint64_t began = clock_exact();
	for (;;) {
		uint64_t now = clock_exact(), limit = charge_wait_limit();
		if (now - w->from >= limit || charge_wait_hopeless(w->waiter.device, w->waiter.bytes)) {
			w->last = true;
			return;
		}
		uint32_t armed = region_wait_arm(r, &w->waiter);
		unsigned rank = region_wait_rank(r, &w->waiter);
		/* The ledger of a job that sleeps is empty, and that is no room: its processes have
		 * their memory aside. */
		if (!again && !rank && region_awake(r) && (charge_wait_fits(r, &w->waiter) || now - began >= SECOND_NS))
			return;
		again = false;
		if (!w->logged && now - w->from >= SECOND_NS)
			charge_wait_log(w, limit, rank);
		uint64_t look = rank < 2 ? RATION_WAIT_LOOK_NS : RATION_WAIT_LOOK_LATE_NS, left = w->from + limit - now;
		if (!region_wait_sleep(r, &w->waiter, armed, left < look ? left : look))
			region_wait_look(r, &w->waiter, rank);
	}
}

bool charge_wait_again(struct charge_wait *w)
{
	int cancel;
	if (!w->waits)
		return false;
	bool wait = w->refused && !w->last, again = w->from;
	w->refused = false;
	lock_order_hook();
	/* A cancelled thread would leave its turn behind. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	if (wait) {
		if (!w->from)
			w->from = clock_exact();
		charge_wait_room(w, again);
	} else {
		charge_waiter = NULL;
		if (w->waiter.since)
			region_wait_leave(attach_region(), &w->waiter);
	}
	pthread_setcancelstate(cancel, &cancel);
	return wait;
}
