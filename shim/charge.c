#include "charge.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "attach.h"
#include "cannot.h"
#include "charge_wait.h"
#include "cuda.h"
#include "hooks.h"
#include "log.h"
#include "region/atomics.h"
#include "region/failpoint.h"
#include "region/words.h"
#include "userjob.h"

/* The bytes that this process has charged and returned, rounded up to the region's units. Each
 * sum only grows, so two sums read at two instants bound the value in between. A sum counts
 * even if the call to the region failed: so the sums agree with one another, and a new slot
 * that replaces a lost one is filled from them. Atomic. */
static struct charge_sums {
	uint64_t added[RATION_KINDS], returned[RATION_KINDS];
	uint64_t arrived, leaving; /* of all kinds except overhead */
	uint64_t absent;           /* grows and shrinks: see charge_mark_absent */
	uint64_t pad[5];
} __attribute__((aligned(64))) charge_sums[RATION_DEVICES];

static struct region_exports charge_exports[RATION_DEVICES];

static charge_relieve charge_reliefs[RELIEF_COUNT]; /* atomic */

static uint64_t charge_rounded(uint64_t bytes) { return units_for(bytes) * RATION_UNIT; }

/* Release here, acquire in the readers: a reading that sees one step of an allocation also sees
 * the steps before it, in any thread. */
static void charge_count(uint64_t *sum, uint64_t bytes) { __atomic_fetch_add(sum, bytes, __ATOMIC_RELEASE); }

void charge_arrived(unsigned device, uint64_t bytes) { charge_count(&charge_sums[device].arrived, charge_rounded(bytes)); }

void charge_leaving(unsigned device, uint64_t bytes) { charge_count(&charge_sums[device].leaving, charge_rounded(bytes)); }

uint64_t charge_held(unsigned device, unsigned kind)
{
	/* Read returned first: all returned bytes were added before, so the difference is not
	 * negative. */
	uint64_t returned = load_acquire(&charge_sums[device].returned[kind]);
	return load_acquire(&charge_sums[device].added[kind]) - returned;
}

uint64_t charge_moved(unsigned device)
{
	uint64_t sum = 0; /* of sums that only grow */
	for (unsigned k = 0; k < RATION_KINDS; k++)
		sum += load_acquire(&charge_sums[device].added[k]) + load_acquire(&charge_sums[device].returned[k]);
	return sum;
}

/* charge_sum_kinds returns the sum over all kinds except overhead: the bounds are used to find
 * the overhead. */
static uint64_t charge_sum_kinds(const uint64_t *by_kind)
{
	uint64_t sum = 0;
	for (unsigned k = 0; k < RATION_KINDS; k++)
		sum += k == RATION_OVERHEAD ? 0 : load_acquire(&by_kind[k]);
	return sum;
}

void charge_bounds_begin(unsigned device, struct charge_bounds *b)
{
	b->returned = charge_sum_kinds(charge_sums[device].returned);
	b->arrived = load_acquire(&charge_sums[device].arrived);
}

void charge_bounds_end(unsigned device, struct charge_bounds *b)
{
	const struct charge_sums *s = &charge_sums[device];
	/* Read absent first: bytes that are no longer absent were counted in leaving before. */
	b->absent = load_acquire(&s->absent);
	uint64_t leaving = load_acquire(&s->leaving);
	b->least = b->arrived > leaving ? b->arrived - leaving : 0;
	b->most = charge_sum_kinds(s->added) - b->returned;
}

uint64_t charge_absent(unsigned device) { return load_acquire(&charge_sums[device].absent); }

void charge_mark_managed(unsigned device, uint64_t bytes, bool from_now)
{
	charge_mark_absent(device, bytes, from_now);
	if (bytes && from_now)
		cannot_add(RATION_CANNOT_MANAGED, charge_rounded(bytes));
	else if (bytes)
		cannot_end(RATION_CANNOT_MANAGED, charge_rounded(bytes));
}

void charge_mark_absent(unsigned device, uint64_t bytes, bool from_now)
{
	fetch_add(&charge_sums[device].absent, from_now ? charge_rounded(bytes) : -charge_rounded(bytes));
}

void charge_reset(void)
{
	memset(charge_sums, 0, sizeof charge_sums);
	memset(charge_exports, 0, sizeof charge_exports);
}

void charge_on_pressure(enum charge_relief which, charge_relieve relieve)
{
	__atomic_store_n(&charge_reliefs[which], relieve, __ATOMIC_RELAXED);
}

/* charge_ruled reports whether a policy in force gives this process its limits. That is not so if root has put it into a job
 * of its own, nor after ration policy disable. */
static bool charge_ruled(void) { return attach_config()->ruled && userjob_ruled(); }

/* charge_remedy says what the user can do about a limit that is too low. Only an operator changes limits in a
 * file beside the region. What a policy's rule allows the user to ask for is not known here. */
static const char *charge_remedy(void)
{
	const struct region *r = attach_region();
	if (!r || !r->limits_beside)
		return "raise the limit with ration limit";
	if (charge_ruled() && userjob_is_run(r->path))
		return "start it with a larger --mem, if your ration has that (ration policy show)";
	if (charge_ruled())
		return "for a larger ration, if your rule allows one; runs of yours may have parts of it (ration policy show)";
	return "have the limit raised by the user who made the job";
}

/* charge_log_refusal logs a refusal in one line that tells the user how to get the memory. */
static void charge_log_refusal(unsigned device, const struct region_refusal *why)
{
	static uint64_t last, skipped;
	static const char *const ends[] = {[REGION_RUNS] = "",
					   [REGION_ENDING] = " (ending; the driver still has it)",
					   [REGION_OUTLIVED] = " (ended; a fork child has its files of the driver open)",
					   [REGION_LENT] = " (ended; other processes can reach memory that it exported)"};
	char a[SIZE_TEXT], f[SIZE_TEXT], l[SIZE_TEXT], o[SIZE_TEXT], who[512] = "";
	uint64_t room = why->limit > why->held ? why->limit - why->held : 0, me = (uint64_t)getpid();
	const char *remedy = ""; /* what can be done about the holders, if there are any */
	int n = 0, others = 0;
	if (!log_wanted(LOG_WARN) || !log_seldom(&last, &skipped))
		return;
	for (unsigned i = 0; i < RATION_HOLDERS && n >= 0 && (size_t)n < sizeof who; i++)
		if (why->top[i].bytes) {
			n += snprintf(who + n, sizeof who - (size_t)n, "%s pid %llu%s %s", n ? "," : "; held by",
				      (unsigned long long)why->top[i].pid, why->top[i].itself ? " (itself)" : ends[why->top[i].end],
				      size_text(why->top[i].bytes, o));
			if (!why->top[i].itself)
				remedy = others++ ? "end one of them, " : "end that process, ";
			else if (!others)
				remedy = "free some of it, ";
		}
	uint64_t quiet = __atomic_exchange_n(&skipped, 0, __ATOMIC_RELAXED);
	char more[64] = "";
	if (quiet)
		snprintf(more, sizeof more, "; %llu more since the last such line", (unsigned long long)quiet);
	if (!why->limit) {
		const struct region *r = attach_region();
		/* The rule may give nothing there, or runs have all of it for now. */
		bool users = r && r->limits_beside && r->path && charge_ruled() && !userjob_is_run(r->path);
		log_warn(users ? "out of memory: your ration has nothing of device %u, or your runs have all of that (ration policy show, "
				 "ration ps)%s"
			       : "out of memory: device %u is not for this job, which has no memory of it (use another device: ration "
				 "inspect "
				 "lists the job's)%s",
			 device, more);
		return;
	}
	char waited[128] = "";
	if (why->waited)
		snprintf(waited, sizeof waited, " and waited %.1f s%s", (double)why->waited / 1e9,
			 why->mutual ? " for processes that wait as well" : "");
	log_warn("out of memory: %s (pid %llu) asked for %s of device %u%s, %s of its job's %s is free%s; %sask for less, or %s%s",
		 program_invocation_short_name, (unsigned long long)me, size_text(why->asked, a), device, waited, size_text(room, f),
		 size_text(why->limit, l), who, remedy, charge_remedy(), more);
}

/* charge_bring charges all that this process holds to a new slot. Bytes that other threads are
 * charging at this moment may be counted twice: too much, never too little. */
static void charge_bring(struct region *r)
{
	for (unsigned d = 0; d < RATION_DEVICES; d++) {
		for (unsigned k = 0; k < RATION_KINDS; k++) {
			uint64_t held = charge_held(d, k);
			if (held)
				region_charge_forced(r, d, k, held);
		}
		if (load_acquire(&charge_exports[d].bytes))
			region_set_exports(r, d, &charge_exports[d]);
	}
	cannot_show();
}

/* charge_fail logs that an operation on the region failed, and returns the result of the hooked
 * call. At exit this process leaves its slot while other threads still run: that is no failure,
 * and the result is CUDA_SUCCESS. */
static int charge_fail(int err)
{
	static uint64_t last, skipped;
	if (attach_state() != ATTACH_ON)
		return CUDA_SUCCESS;
	if (log_seldom(&last, &skipped))
		log_error("region %s: %s", attach_config()->path, region_error_text(err));
	return attach_config()->fail_open ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

bool charge_would_refuse(unsigned device, uint64_t bytes)
{
	struct region *r = attach_region();
	return region_used(r, device) / RATION_UNIT + units_for(bytes) > limit_ceiling(region_limit(r, device));
}

/* charge_make_room runs the reliefs in order, until the request would fit. */
__attribute__((cold, noinline)) static void charge_make_room(unsigned device, uint64_t bytes)
{
	for (unsigned i = 0; i < RELIEF_COUNT && charge_would_refuse(device, bytes); i++) {
		charge_relieve relieve = __atomic_load_n(&charge_reliefs[i], __ATOMIC_RELAXED);
		if (relieve)
			relieve(device);
	}
}

enum charge_change { CHARGE_ASK, CHARGE_FORCE, CHARGE_RETURN };

/* charge_apply makes one change to this process's account in the region, in a new slot if ours
 * was reaped. It returns REGION_OK or an error. It is inline, so that each caller compiles only
 * its own kind of change. */
static inline __attribute__((always_inline)) int charge_apply(enum charge_change change, unsigned device, unsigned kind, uint64_t bytes,
							      uint64_t *word)
{
	struct region *r = attach_region();
	for (;;) {
		uint64_t claim = load_relaxed(&r->claim);
		int err = change == CHARGE_ASK     ? region_ask(r, device, kind, bytes, word)
			  : change == CHARGE_FORCE ? region_charge_forced(r, device, kind, bytes)
						   : region_return(r, device, kind, bytes);
		if (likely(err != REGION_EVICTED) || !attach_rejoin(claim, charge_bring))
			return err;
	}
}

/* charge_answer returns the error that the hooked call must return, for an error of charge_apply. It
 * records and logs a refusal, unless the thread waits for room then. */
__attribute__((cold, noinline)) static int charge_answer(unsigned device, uint64_t bytes, int err, uint64_t word)
{
	struct region_refusal why;
	uint64_t waited;
	if (err != REGION_REFUSED)
		return charge_fail(err);
	if (!charge_wait_defer(device, bytes, &waited)) {
		region_refuse(attach_region(), device, bytes, word, waited, &why);
		charge_log_refusal(device, &why);
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* charge_try charges bytes to the job without counting them in charge_sums. It returns REGION_OK or
 * an error. */
static inline int charge_try(unsigned device, unsigned kind, uint64_t bytes, uint64_t *word)
{
	if (unlikely(charge_would_refuse(device, bytes)))
		charge_make_room(device, bytes);
	return charge_apply(CHARGE_ASK, device, kind, bytes, word);
}

/* charge_ask is charge_try. It returns CUDA_SUCCESS, or the error that the hooked call must return. */
static inline int charge_ask(unsigned device, unsigned kind, uint64_t bytes)
{
	uint64_t word;
	int err = charge_try(device, kind, bytes, &word);
	return likely(err == REGION_OK) ? CUDA_SUCCESS : charge_answer(device, bytes, err, word);
}

int charge_add(unsigned device, unsigned kind, uint64_t bytes)
{
	int refused = charge_ask(device, kind, bytes);
	if (likely(!refused))
		charge_count(&charge_sums[device].added[kind], charge_rounded(bytes));
	return refused;
}

/* charge_request_late answers a request that was not granted at once: it waits, and tries again. */
__attribute__((cold, noinline)) static int charge_request_late(unsigned device, unsigned kind, uint64_t bytes, int err, uint64_t word)
{
	struct charge_wait w;
	charge_wait_begin(&w);
	int refused = charge_answer(device, bytes, err, word);
	while (charge_wait_again(&w))
		refused = charge_add(device, kind, bytes);
	return refused;
}

int charge_request(unsigned device, unsigned kind, uint64_t bytes)
{
	uint64_t word;
	int err = charge_try(device, kind, bytes, &word);
	if (unlikely(err))
		return charge_request_late(device, kind, bytes, err, word);
	charge_count(&charge_sums[device].added[kind], charge_rounded(bytes));
	return CUDA_SUCCESS;
}

void charge_claim(unsigned device, unsigned kind, uint64_t bytes)
{
	charge_count(&charge_sums[device].added[kind], charge_rounded(bytes));
	charge_arrived(device, bytes);
}

int charge_claimed(unsigned device, unsigned kind, uint64_t bytes, bool stays)
{
	/* Memory that stays is charged now, even above the limit: there is nothing to wait for. */
	struct charge_wait *waits = stays ? charge_wait_suspend() : NULL;
	int refused = bytes ? charge_ask(device, kind, bytes) : CUDA_SUCCESS;
	charge_wait_resume(waits);
	int err = refused && stays ? charge_apply(CHARGE_FORCE, device, kind, bytes, NULL) : REGION_OK;
	if (err)
		charge_fail(err);
	return refused;
}

void charge_unclaim(unsigned device, unsigned kind, uint64_t bytes)
{
	charge_count(&charge_sums[device].returned[kind], charge_rounded(bytes));
}

void charge_add_forced(unsigned device, unsigned kind, uint64_t bytes)
{
	int err = charge_apply(CHARGE_FORCE, device, kind, bytes, NULL);
	if (unlikely(err))
		charge_fail(err);
	charge_count(&charge_sums[device].added[kind], charge_rounded(bytes));
	if (kind != RATION_OVERHEAD)
		charge_arrived(device, bytes);
}

#ifdef RATION_LOCKDEBUG
_Noreturn static void charge_wrong(const char *line)
{
	if (write(STDERR_FILENO, line, strlen(line)) < 0)
		abort();
	abort();
}
#endif

void charge_return(unsigned device, unsigned kind, uint64_t bytes)
{
	uint64_t whole = charge_rounded(bytes);
	int err = whole ? charge_apply(CHARGE_RETURN, device, kind, whole, NULL) : REGION_OK;
	if (unlikely(err == REGION_NOT_HELD)) {
		/* Another thread is filling a new slot with all that this process holds,
		 * including these bytes. Wait until it has; charge_sums counts them as returned
		 * only below. */
		attach_wait_rejoin();
		err = charge_apply(CHARGE_RETURN, device, kind, whole, NULL);
	}
	if (unlikely(err))
		charge_fail(err);
	charge_count(&charge_sums[device].returned[kind], whole);
#ifdef RATION_LOCKDEBUG
	if ((int64_t)charge_held(device, kind) < 0)
		charge_wrong("ration: more bytes were returned than charged (charge.h)\n");
#endif
}

void charge_correct(unsigned device, unsigned kind, uint64_t from, uint64_t to)
{
	from = charge_rounded(from), to = charge_rounded(to);
	if (to > from) {
		charge_add_forced(device, kind, to - from);
		charge_leaving(device, to - from); /* charge_arrived is still to come, for the whole size */
	} else if (to < from) {
		charge_return(device, kind, from - to);
	}
}

void charge_resize(unsigned device, unsigned kind, uint64_t from, uint64_t to)
{
	from = charge_rounded(from), to = charge_rounded(to);
	if (to > from) {
		charge_add_forced(device, kind, to - from);
	} else if (to < from) {
		charge_leaving(device, from - to);
		charge_return(device, kind, from - to);
	}
}

/* charge_show_exports writes what this process has exported to the region, in a new slot if ours was
 * reaped. */
static void charge_show_exports(unsigned device)
{
	struct region *r = attach_region();
	uint64_t claim;
	do
		claim = load_relaxed(&r->claim);
	while (region_set_exports(r, device, &charge_exports[device]) == REGION_EVICTED && attach_rejoin(claim, charge_bring));
}

void charge_export(unsigned device, uint64_t bytes)
{
	cannot_add(RATION_CANNOT_EXPORTED, charge_rounded(bytes));
	charge_count(&charge_exports[device].bytes, charge_rounded(bytes));
	charge_show_exports(device);
	FAILPOINT(EXPORT_SHOWN);
}

void charge_unexport(unsigned device, uint64_t bytes)
{
	charge_count(&charge_exports[device].bytes, -charge_rounded(bytes));
	charge_show_exports(device);
	cannot_end(RATION_CANNOT_EXPORTED, charge_rounded(bytes));
}

/* charge_lock_byte returns the byte that this process locks in its descriptors: a random one, as the
 * driver's file is one for all processes. */
static uint64_t charge_lock_byte(struct region_exports *e)
{
	uint64_t word;
	/* The C library has a name for it since 2.25. */
	if (syscall(SYS_getrandom, &word, sizeof word, GRND_NONBLOCK) == sizeof word)
		cas(&e->lock, 0, RATION_EXPORT_LOCK_FIRST | word % RATION_EXPORT_LOCK_FIRST);
	return load_acquire(&e->lock);
}

void charge_handle(unsigned device)
{
	struct region_exports *e = &charge_exports[device];
	if (!load_acquire(&e->lock) && !charge_lock_byte(e))
		cas(&e->lock, 0, RATION_EXPORT_LOCK_UNKNOWN);
	charge_show_exports(device);
	FAILPOINT(EXPORT_GIVEN);
}

bool charge_imported(unsigned device) { return region_imported(attach_region(), load_acquire(&charge_exports[device].lock)); }

void charge_descriptor(unsigned device, int fd, bool own_file)
{
	struct region_exports *e = &charge_exports[device];
	uint64_t file = own_file ? 0 : region_export_file(fd), lock = load_acquire(&e->lock);
	if (!file || (!cas(&e->file, 0, file) && load_acquire(&e->file) != file))
		store_release(&e->file, RATION_EXPORT_FILES);
	if (!lock)
		lock = charge_lock_byte(e);
	if (lock < RATION_EXPORT_LOCK_FIRST || region_export_lock(fd, lock)) {
		if (__atomic_exchange_n(&e->lock, RATION_EXPORT_LOCK_UNKNOWN, __ATOMIC_ACQ_REL) != RATION_EXPORT_LOCK_UNKNOWN)
			log_warn("device %u: an exported descriptor could not be locked: if this process ends, its exported memory stays "
				 "charged until the other processes of its container have ended",
				 device);
	}
	FAILPOINT(EXPORT_LOCKED);
	charge_show_exports(device);
	FAILPOINT(EXPORT_GIVEN);
}

#ifdef RATION_LOCKDEBUG

static uint32_t charge_inside, charge_entered; /* hooks under way, and hooks ever begun; atomic */

void charge_hook_begins(void)
{
	__atomic_fetch_add(&charge_inside, 1, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&charge_entered, 1, __ATOMIC_SEQ_CST);
}

/* charge_balanced reports whether all charged bytes have arrived, and all leaving bytes have
 * been returned. */
static bool charge_balanced(unsigned device)
{
	const struct charge_sums *s = &charge_sums[device];
	return charge_sum_kinds(s->added) - charge_sum_kinds(s->returned) == load_acquire(&s->arrived) - load_acquire(&s->leaving);
}

void charge_hook_ends(void)
{
	uint32_t entered = __atomic_load_n(&charge_entered, __ATOMIC_SEQ_CST);
	bool alone = __atomic_load_n(&charge_inside, __ATOMIC_SEQ_CST) == 1;
	for (unsigned d = 0; alone && d < RATION_DEVICES; d++)
		/* No error if another thread has begun a hook meanwhile. */
		if (!charge_balanced(d) && __atomic_load_n(&charge_entered, __ATOMIC_SEQ_CST) == entered)
			charge_wrong("ration: at rest, bytes are still on their way (charge.h)\n");
	__atomic_fetch_sub(&charge_inside, 1, __ATOMIC_SEQ_CST);
}

#endif
