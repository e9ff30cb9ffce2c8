/* A job's part of a device's time: the lease of work, by which the share is divided among the
 * contexts that have work, and the cap's word. shim/compute/PROTOCOLS.md. */
#include "internal.h"

/* The largest debt that is kept, in ns. A clock that jumped, or a word that a process of the job
 * wrote at random, must not stop launches for ever. */
#define COMPUTE_MOST_DEBT_NS (3600 * UINT64_C(1000000000))

/* How much unused time is kept, in ns. Without it, a late measurement of a batch, or a late launch,
 * would reduce what the cap allows. */
#define COMPUTE_CREDIT_NS UINT64_C(50000000)

unsigned region_share(const struct region *r, unsigned device) { return percent_of(load_acquire(&r->limits->device[device].compute)); }

unsigned region_cap(const struct region *r, unsigned device) { return percent_of(load_acquire(&r->limits->device[device].compute_max)); }

uint64_t region_round(const struct region *r) { return round_of(load_acquire(&r->limits->round)); }

void region_enter(struct region *r, unsigned device)
{
	if (!region_take(r, device, load_acquire(&r->claim), true))
		turn_end(&r->turns[device]);
}

/* compute_account returns this process's account, or NULL if it has none yet. If this process is
 * taken for dead in the next instant, its caller writes into the next owner's account. This is
 * harmless: the words written here decide nothing for longer than a lease, and the new owner writes
 * them again. */
static struct ration_account *compute_account(struct region *r, unsigned device)
{
	uint64_t claim = load_acquire(&r->claim);
	struct ration_account *a = account(r, device, claim_slot(claim));
	return claim && region_owned(r, claim) && load_acquire(&a->gen) == status_gen(claim_status(claim)) ? a : NULL;
}

void region_show_work(struct region *r, unsigned device, uint64_t work)
{
	struct ration_account *a = compute_account(r, device);
	if (!a)
		return;
	/* Sequentially consistent: afterwards the caller reads its number of waiting threads again. */
	__atomic_store_n(&a->work, work, __ATOMIC_SEQ_CST);
	FAILPOINT(WORK_SHOWN);
}

void region_show_slice(struct region *r, unsigned device, uint64_t slice)
{
	struct ration_account *a = compute_account(r, device);
	if (a && load_relaxed(&a->slice) != slice)
		store_release(&a->slice, slice);
}

/* compute_sign_counts returns true if the process of a slot has work, by its word work. If no
 * thread of that process waits for the device, the word counts for one lease. If one waits, it
 * counts until the process writes it again or is dead. */
static bool compute_sign_counts(struct region *r, unsigned slot, uint64_t work, uint64_t now_us, uint32_t asked[RATION_SLOTS])
{
	uint64_t age = (now_us - work_time(work)) & LOW_BITS(RATION_WORK_TIME_BITS);
	uint32_t lease = (uint32_t)(now_us / RATION_WORK_LEASE_US) & INT32_MAX;
	/* A time in the future was written after the caller read the clock. */
	if (!work || age < RATION_WORK_LEASE_US || age > LOW_BITS(RATION_WORK_TIME_BITS - 1))
		return work != 0;
	if (!work_waiting(work))
		return false;
	/* Asking about a process takes system calls: do it once for each lease, and use the answer
	 * for the rest of the lease. */
	uint32_t before = load32_acquire(&asked[slot]);
	if (before >> 1 == lease)
		return !(before & 1);
	if (!cas32(&asked[slot], before, lease << 1))
		return true; /* another thread is asking: assume that it has work */
	/* A process that has ended does not wait any more, even if its fork children keep its
	 * bytes. */
	bool over = region_reap_slot(r, slot) || region_ending(r, slot) != REGION_RUNS;
	store32_release(&asked[slot], lease << 1 | over);
	return !over;
}

unsigned region_workers(struct region *r, unsigned device, uint64_t now_us, uint32_t asked[RATION_SLOTS])
{
	unsigned contexts = 0, own = claim_slot(load_acquire(&r->claim));
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		const struct ration_account *a = account(r, device, slot);
		uint64_t status = load_acquire(&r->m->status[slot]);
		if (slot == own || status_state(status) != RATION_SLOT_ACTIVE || load_acquire(&a->gen) != status_gen(status) ||
		    region_left(r, slot, status_gen(status)))
			continue;
		uint64_t work = load_acquire(&a->work);
		if (compute_sign_counts(r, slot, work, now_us, asked))
			contexts += work_contexts(work) ? work_contexts(work) : 1;
	}
	return contexts;
}

static uint64_t compute_bounded(uint64_t due, uint64_t now_ns)
{
	return due > now_ns + COMPUTE_MOST_DEBT_NS ? now_ns + COMPUTE_MOST_DEBT_NS : due;
}

/* compute_due returns the time until which launches wait at this cap, in ns of the monotonic clock.
 * If the word was computed with another cap, it converts the debt to this cap. */
static uint64_t compute_due(uint64_t word, unsigned percent, uint64_t now_ns)
{
	uint64_t due = compute_bounded(due_time(word), now_ns);
	unsigned before = percent_of(due_cap(word));
	if (due > now_ns && before && before != percent)
		due = compute_bounded(now_ns + (due - now_ns) * before / percent, now_ns);
	return due;
}

uint64_t region_cap_due(struct region *r, unsigned device, unsigned percent, uint64_t now_ns)
{
	uint64_t *word = &r->m->compute[device].due, before = load_acquire(word), due = compute_due(before, percent, now_ns);
	/* Store the bounded value; otherwise the word would stay an hour ahead for ever. If the
	 * swap fails, the next call does it. */
	if (due > now_ns && before != make_due(due, percent))
		cas(word, before, make_due(due, percent));
	return due;
}

/* compute_charged returns the due time after used_ns more are charged. The used time began used_ns
 * before now; the credit lies before that. */
static uint64_t compute_charged(uint64_t due, uint64_t used_ns, unsigned percent, uint64_t now_ns)
{
	uint64_t from = now_ns > used_ns + COMPUTE_CREDIT_NS ? now_ns - used_ns - COMPUTE_CREDIT_NS : 0;
	return compute_bounded((due > from ? due : from) + used_ns * 100 / percent, now_ns);
}

uint64_t region_cap_ahead(uint64_t due, uint64_t under_way_ns, unsigned percent, uint64_t now_ns)
{
	return under_way_ns ? compute_charged(due, under_way_ns, percent, now_ns + under_way_ns) : due;
}

/* compute_claim claims up to ns nanoseconds of one part (one millisecond) of the time, and returns
 * how many were still unclaimed. */
static uint64_t compute_claim(uint64_t *word, uint64_t number, uint64_t ns)
{
	uint64_t before, used, claimed;
	do {
		before = load_acquire(word);
		/* The ring has no record of a part this old: charge it as measured. */
		if (time_part_number(before) > number)
			return ns;
		used = time_part_number(before) == number ? time_part_used(before) : 0;
		claimed = used >= RATION_PART_NS ? 0 : ns < RATION_PART_NS - used ? ns : RATION_PART_NS - used;
	} while (!cas(word, before, make_time_part(number, used + claimed)));
	return claimed;
}

uint64_t region_cap_claim(struct region *r, unsigned device, uint64_t from_ns, uint64_t to_ns)
{
	uint64_t claimed = 0;
	while (from_ns < to_ns) {
		uint64_t number = from_ns / RATION_PART_NS, end = (number + 1) * RATION_PART_NS;
		end = end < to_ns ? end : to_ns;
		claimed += compute_claim(&r->m->compute[device].parts[number % RATION_PARTS], number, end - from_ns);
		from_ns = end;
	}
	return claimed;
}

void region_cap_charge(struct region *r, unsigned device, uint64_t used_ns, unsigned percent, uint64_t now_ns)
{
	struct ration_compute *c = &r->m->compute[device];
	struct ration_account *a;
	uint64_t before, due;
	FAILPOINT(CAP_MEASURED);
	do {
		before = load_acquire(&c->due);
		due = compute_charged(compute_due(before, percent, now_ns), used_ns, percent, now_ns);
	} while (!cas(&c->due, before, make_due(due, percent)));
	FAILPOINT(CAP_CHARGED);
	/* Statistics only. */
	fetch_add(&c->used, used_ns);
	if ((a = compute_account(r, device)))
		fetch_add(&a->time_used, used_ns);
}

void region_cap_waited(struct region *r, unsigned device, uint64_t ns)
{
	struct ration_account *a = compute_account(r, device);
	fetch_add(&r->m->compute[device].waited, ns);
	if (a)
		fetch_add(&a->time_waited, ns);
}
