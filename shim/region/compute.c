/* What a job has of a device's time: the lease of work, by which its share is divided among
 * the contexts that have work, and the cap's word. shim/compute/PROTOCOLS.md. */
#include "internal.h"

/* A debt is kept, but none of more than this: a clock that jumped, or a word that a process
 * of the job wrote at random, must not stop its launches for ever. */
#define COMPUTE_MOST_DEBT_NS (3600 * UINT64_C(1000000000))

/* Time that was not used is lost but for so much, so that what is late (the measurement of a
 * batch, a launch after it) takes nothing away from the cap. */
#define COMPUTE_CREDIT_NS UINT64_C(50000000)

unsigned region_share(const struct region *r, unsigned device) { return percent_of(load_acquire(&r->limits->device[device].compute)); }

unsigned region_cap(const struct region *r, unsigned device) { return percent_of(load_acquire(&r->limits->device[device].compute_max)); }

uint64_t region_round(const struct region *r) { return round_of(load_acquire(&r->limits->round)); }

void region_enter(struct region *r, unsigned device)
{
	if (!region_take(r, device, load_acquire(&r->claim), true))
		turn_end(&r->turns[device]);
}

/* compute_account returns this process's account, or NULL where it has none, or none yet.
 * A process that is taken for dead in the next instant writes into an account that is
 * another's: a word by which nothing is decided for longer than a lease, and which its owner
 * writes again. */
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
	/* Sequentially consistent: the caller looks at its waiting threads again after it. */
	__atomic_store_n(&a->work, work, __ATOMIC_SEQ_CST);
	FAILPOINT(WORK_SHOWN);
}

void region_show_slice(struct region *r, unsigned device, uint64_t slice)
{
	struct ration_account *a = compute_account(r, device);
	if (a && load_relaxed(&a->slice) != slice)
		store_release(&a->slice, slice);
}

/* compute_sign_counts says whether a sign of work counts at this moment. The clock only says
 * so of a process that said itself that it would look again: one that waits for its device
 * counts until it has said otherwise, or is dead. */
static bool compute_sign_counts(struct region *r, unsigned slot, uint64_t work, uint64_t now_us, uint32_t asked[RATION_SLOTS])
{
	uint64_t age = (now_us - work_time(work)) & LOW_BITS(RATION_WORK_TIME_BITS);
	uint32_t lease = (uint32_t)(now_us / RATION_WORK_LEASE_US) & INT32_MAX;
	/* A sign of the future is one that was made since the caller looked at the clock. */
	if (!work || age < RATION_WORK_LEASE_US || age > LOW_BITS(RATION_WORK_TIME_BITS - 1))
		return work != 0;
	if (!work_waiting(work))
		return false;
	/* Asking takes system calls: once for each lease, and the answer holds for the rest of it. */
	uint32_t before = load32_acquire(&asked[slot]);
	if (before >> 1 == lease)
		return !(before & 1);
	if (!cas32(&asked[slot], before, lease << 1))
		return true; /* another thread asks */
	/* A process that has ended waits for nothing, though its fork children keep what it held. */
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

/* compute_due returns the time that the word stands for at this cap: of a debt that was reckoned
 * with another one, as much as it is with this. */
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
	/* Written down, or it would be an hour ahead for ever. If it has changed, the next look sees it. */
	if (due > now_ns && before != make_due(due, percent))
		cas(word, before, make_due(due, percent));
	return due;
}

/* compute_charged returns what is due once so much more is charged. The time that was used began so
 * long before now, and before that lies the credit. */
static uint64_t compute_charged(uint64_t due, uint64_t used_ns, unsigned percent, uint64_t now_ns)
{
	uint64_t from = now_ns > used_ns + COMPUTE_CREDIT_NS ? now_ns - used_ns - COMPUTE_CREDIT_NS : 0;
	return compute_bounded((due > from ? due : from) + used_ns * 100 / percent, now_ns);
}

uint64_t region_cap_ahead(uint64_t due, uint64_t under_way_ns, unsigned percent, uint64_t now_ns)
{
	return under_way_ns ? compute_charged(due, under_way_ns, percent, now_ns + under_way_ns) : due;
}

/* compute_claim claims ns of one part of the time, and returns how much of that was left. */
static uint64_t compute_claim(uint64_t *word, uint64_t number, uint64_t ns)
{
	uint64_t before, used, claimed;
	do {
		before = load_acquire(word);
		/* What was charged so long ago is forgotten. */
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
	/* For people only. */
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
