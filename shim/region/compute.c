/* The lease of work, by which a job's share of a device's time is divided among the contexts that
 * have work. shim/compute/PROTOCOLS.md. */
#include "internal.h"

unsigned region_share(const struct region *r, unsigned device) { return percent_of(load_acquire(&r->limits->device[device].compute)); }

uint64_t region_round(const struct region *r) { return round_of(load_acquire(&r->limits->round)); }

unsigned region_priority(const struct region *r) { return priority_of(load_acquire(&r->limits->priority)); }

void region_enter(struct region *r, unsigned device)
{
	uint64_t claim = load_acquire(&r->claim);
	if (!region_take(r, device, claim, true))
		region_yield(r, device, claim);
}

void region_show_slice(struct region *r, unsigned device, uint64_t slice)
{
	struct ration_account *a = region_own_account(r, device);
	if (a && load_relaxed(&a->slice) != slice)
		store_release(&a->slice, slice);
}

/* compute_shift_us returns region_clock in microseconds. */
static uint64_t compute_shift_us(struct region *r) { return (uint64_t)((int64_t)region_clock(r) / 1000); }

void region_show_work(struct region *r, unsigned device, uint64_t work)
{
	struct ration_account *a = region_own_account(r, device);
	if (!a)
		return;
	if (work)
		work = make_work(work_time(work) - compute_shift_us(r), work_contexts(work), work_waiting(work));
	/* Sequentially consistent: afterwards the caller reads its number of waiting threads again. */
	__atomic_store_n(&a->work, work, __ATOMIC_SEQ_CST);
	FAILPOINT(WORK_SHOWN);
}

/* compute_sign_counts returns true if the process of a slot has work, by its word work. If no
 * thread of that process waits for the device, the word counts for one lease. If one waits, it
 * counts until the process writes it again or is dead. If the process has work that is not charged,
 * this call only makes sure that it is charged soon after the process has died. */
static bool compute_sign_counts(struct region *r, unsigned slot, uint64_t work, bool uncharged, uint64_t now_us,
				uint32_t asked[RATION_SLOTS])
{
	uint64_t age = (now_us - work_time(work)) & LOW_BITS(RATION_WORK_TIME_BITS);
	uint32_t lease = (uint32_t)(now_us / RATION_WORK_LEASE_US) & INT32_MAX;
	bool waits = work && work_waiting(work);
	/* A time in the future was written after the caller read the clock. */
	if (work && (age < RATION_WORK_LEASE_US || age > LOW_BITS(RATION_WORK_TIME_BITS - 1)))
		return true;
	if (!waits && !uncharged)
		return false;
	/* Asking about a process takes system calls: do it once for each lease, and use the answer
	 * for the rest of the lease. */
	uint32_t before = load32_acquire(&asked[slot]);
	if (before >> 1 == lease)
		return waits && !(before & 1);
	if (!cas32(&asked[slot], before, lease << 1))
		return waits; /* another thread is asking: assume that it has work */
	/* A process that has ended does not wait any more, even if its fork children keep its
	 * bytes. */
	bool over = region_reap_slot(r, slot) || region_ending(r, slot) != REGION_RUNS;
	store32_release(&asked[slot], lease << 1 | over);
	return waits && !over;
}

unsigned region_workers(struct region *r, unsigned device, uint64_t now_us, uint32_t asked[RATION_SLOTS])
{
	unsigned contexts = 0, own = claim_slot(load_acquire(&r->claim));
	now_us -= compute_shift_us(r);
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		const struct ration_account *a = account(r, device, slot);
		uint64_t status = load_acquire(&r->m->status[slot]);
		if (slot == own || status_state(status) != RATION_SLOT_ACTIVE || load_acquire(&a->gen) != status_gen(status) ||
		    region_left(r, slot, status_gen(status)))
			continue;
		uint64_t work = load_acquire(&a->work);
		if (compute_sign_counts(r, slot, work, load_acquire(&a->uncharged) != 0, now_us, asked))
			contexts += work_contexts(work) ? work_contexts(work) : 1;
	}
	return contexts;
}
