#include "charge.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "region/atomics.h"
#include "overhead.h"
#include "attach.h"
#include "log.h"
#include "hooks/pool.h"
#include "region/words.h"

/* What this process holds, in bytes, rounded as the region rounds: to tell a slot
 * that replaces a lost one, and to compare with the driver's figure. */
static uint64_t held[RATION_DEVICES][RATION_KINDS];

/* Of that, what the driver need not have: see charge_absent. */
static uint64_t absent[RATION_DEVICES];

static uint64_t whole(uint64_t bytes) { return units_for(bytes) * RATION_UNIT; }

static void hold(unsigned device, unsigned kind, uint64_t bytes) { __atomic_fetch_add(&held[device][kind], bytes, __ATOMIC_RELAXED); }

uint64_t charge_held(unsigned device, unsigned kind) { return load_relaxed(&held[device][kind]); }

uint64_t charge_held_total(unsigned device)
{
	uint64_t sum = 0;
	for (unsigned k = 0; k < RATION_KINDS; k++)
		sum += charge_held(device, k);
	return sum;
}

uint64_t charge_absent(unsigned device) { return load_relaxed(&absent[device]); }

void charge_mark_absent(unsigned device, uint64_t bytes, bool from_now)
{
	fetch_add(&absent[device], from_now ? whole(bytes) : -whole(bytes));
}

void charge_reset(void)
{
	memset(held, 0, sizeof held);
	memset(absent, 0, sizeof absent);
}

/* once a second, so that a program that tries in a loop does not flood its log. */
static bool once_a_second(uint64_t *last, uint64_t *skipped)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	uint64_t now = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000 + 1000, before = load_relaxed(last);
	if (now - before < 1000 || !cas(last, before, now)) {
		fetch_add(skipped, 1);
		return false;
	}
	return true;
}

/* complain is the one line that a person can act on. */
static void complain(unsigned device, const struct region_refusal *why)
{
	static uint64_t last, skipped;
	char a[SIZE_TEXT], f[SIZE_TEXT], l[SIZE_TEXT], o[SIZE_TEXT], who[256] = "";
	uint64_t room = why->limit > why->held ? why->limit - why->held : 0, me = (uint64_t)getpid();
	int n = 0;
	if (!log_wanted(LOG_WARN) || !once_a_second(&last, &skipped))
		return;
	for (unsigned i = 0; i < RATION_HOLDERS && n >= 0 && (size_t)n < sizeof who; i++)
		if (why->top[i].bytes)
			n += snprintf(who + n, sizeof who - (size_t)n, "%s pid %llu%s %s", i ? "," : "", (unsigned long long)why->top[i].pid,
				      why->top[i].pid == me ? " (itself)" : "", size_text(why->top[i].bytes, o));
	uint64_t quiet = __atomic_exchange_n(&skipped, 0, __ATOMIC_RELAXED);
	char more[64] = "";
	if (quiet)
		snprintf(more, sizeof more, "; %llu more since the last such line", (unsigned long long)quiet);
	log_warn("out of memory: %s (pid %llu) asked for %s of device %u, %s of its job's %s is free; held by%s; end one of them, "
		 "ask for less, or raise the limit with ration limit%s",
		 program_invocation_short_name, (unsigned long long)me, size_text(why->asked, a), device, size_text(room, f),
		 size_text(why->limit, l), n ? who : " nobody", more);
}

/* rejoin brings all we hold into a new slot. What other threads are charging at
 * this moment may be counted twice: too much, never too little. */
static bool rejoin(struct region *r, uint64_t lost)
{
	bool fresh;
	if (!attach_rejoin(lost, &fresh))
		return false;
	for (unsigned d = 0; fresh && d < RATION_DEVICES; d++)
		for (unsigned k = 0; k < RATION_KINDS; k++)
			if (charge_held(d, k))
				region_charge_forced(r, d, k, charge_held(d, k));
	return true;
}

/* trouble is where the region itself fails. Exit is no trouble: a slot is left
 * while other threads still run. */
static int trouble(int err)
{
	static uint64_t last, skipped;
	if (attach_state() != ATTACH_ON)
		return CUDA_SUCCESS;
	if (once_a_second(&last, &skipped))
		log_error("region %s: %s", attach_config()->path, region_error_text(err));
	return attach_config()->fail_open ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

bool charge_would_refuse(unsigned device, uint64_t bytes)
{
	struct region *r = attach_region();
	return region_used(r, device) / RATION_UNIT + units_for(bytes) > limit_ceiling(region_limit(r, device));
}

/* make_room is for before a refusal. Pools may hold what nobody uses: the driver would
 * take that first, too. And what the driver took by itself may be less by now. */
static void make_room(unsigned device, uint64_t bytes, bool locked)
{
	if (pools_used())
		pools_relieve(device, !locked);
	if (charge_held(device, RATION_OVERHEAD) && charge_would_refuse(device, bytes))
		overhead_try_refresh(device);
}

int charge_add(unsigned device, unsigned kind, uint64_t bytes, bool locked)
{
	struct region *r = attach_region();
	struct region_refusal why;
	if (unlikely(charge_would_refuse(device, bytes)))
		make_room(device, bytes, locked);
	for (;;) {
		uint64_t status = load_relaxed(&r->claim);
		int err = region_charge(r, device, kind, bytes, &why);
		if (likely(err == REGION_OK)) {
			hold(device, kind, whole(bytes));
			return CUDA_SUCCESS;
		}
		if (err == REGION_REFUSED) {
			complain(device, &why);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		if (err != REGION_EVICTED || !rejoin(r, status))
			return trouble(err);
	}
}

void charge_add_forced(unsigned device, unsigned kind, uint64_t bytes)
{
	struct region *r = attach_region();
	for (;;) {
		uint64_t status = load_relaxed(&r->claim);
		int err = region_charge_forced(r, device, kind, bytes);
		if (err == REGION_OK)
			hold(device, kind, whole(bytes));
		if (err == REGION_OK || err != REGION_EVICTED || !rejoin(r, status)) {
			if (err)
				trouble(err);
			return;
		}
	}
}

void charge_return(unsigned device, unsigned kind, uint64_t bytes)
{
	struct region *r = attach_region();
	uint64_t n = whole(bytes);
	if (!n)
		return;
	for (;;) {
		uint64_t status = load_relaxed(&r->claim);
		int err = region_return(r, device, kind, n);
		if (likely(err == REGION_OK)) {
			hold(device, kind, -n);
			return;
		}
		if (err != REGION_EVICTED || !rejoin(r, status)) {
			trouble(err);
			return;
		}
	}
}

void charge_adjust(unsigned device, unsigned kind, uint64_t from, uint64_t to)
{
	from = whole(from), to = whole(to);
	if (to > from)
		charge_add_forced(device, kind, to - from);
	else if (to < from)
		charge_return(device, kind, from - to);
}
