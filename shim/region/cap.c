/* The words of a job's caps: what is charged, when that is due, and what processes leave uncharged
 * when they end. shim/compute/PROTOCOLS.md, *The cap's word*. */
#include "internal.h"

/* The largest debt that is kept, in ns, whatever the words say. */
#define CAP_MOST_DEBT_NS (3600 * UINT64_C(1000000000))

/* How much unused time is kept, in ns. Without it, a late measurement of a batch, or a late launch,
 * would reduce what the cap allows. */
#define CAP_CREDIT_NS UINT64_C(50000000)

unsigned region_cap(const struct region *r, unsigned device) { return percent_of(load_acquire(&r->limits->device[device].compute_max)); }

/* region_own_account returns this process's account, or NULL if it has none yet. If this process is
 * taken for dead in the next instant, its caller writes into the next owner's account. This is
 * harmless: the words written here decide little, and the new owner writes them again. */
struct ration_account *region_own_account(struct region *r, unsigned device)
{
	uint64_t claim = load_acquire(&r->claim);
	struct ration_account *a = account(r, device, claim_slot(claim));
	return claim && region_owned(r, claim) && load_acquire(&a->gen) == status_gen(claim_status(claim)) ? a : NULL;
}

/* cap_renew clears the words of a device that are times of another clock, which was zero at
 * before, and then notes the clock that was zero at zero. A word that was read while the other
 * clock was still noted is of that clock. If another process renews at the same time, the values
 * that follow stay. */
static void cap_renew(struct ration_compute *c, uint64_t before, uint64_t zero)
{
	for (unsigned i = 0; i <= RATION_PARTS; i++) {
		uint64_t *word = i < RATION_PARTS ? &c->parts[i] : &c->due, old = load_acquire(word);
		if (load_acquire(&c->clock) != before)
			return;
		if (old)
			cas(word, old, 0);
	}
	FAILPOINT(CAP_CLEARED);
	cas(&c->clock, before, zero);
}

/* cap_words returns the words of a device's cap. Their times are of the machine's clock. */
static struct ration_compute *cap_words(struct region *r, unsigned device)
{
	struct ration_compute *c = &r->m->compute[device];
	uint64_t before = load_acquire(&c->clock), zero = before;
	if (UNLIKELY(region_clock_differs(r, &zero)))
		cap_renew(c, before, zero);
	return c;
}

/* cap_most returns how far in the future the due time can be, in ns: all time that was ever
 * charged would be due at this cap from now on. A due time beyond that is not one that this
 * protocol wrote. */
static uint64_t cap_most(const struct ration_compute *c, unsigned percent)
{
	uint64_t used = load_acquire(&c->used);
	return (used < CAP_MOST_DEBT_NS ? used : CAP_MOST_DEBT_NS) * 100 / percent;
}

static uint64_t cap_bounded(uint64_t due, uint64_t most, uint64_t now_ns)
{
	most = most < CAP_MOST_DEBT_NS ? most : CAP_MOST_DEBT_NS;
	return due > now_ns + most ? now_ns + most : due;
}

/* cap_due returns the time until which launches wait at this cap, by the machine's clock. If
 * the word was computed with another cap, it converts the debt to this cap. */
static uint64_t cap_due(const struct ration_compute *c, uint64_t word, unsigned percent, uint64_t now_ns)
{
	uint64_t due = cap_bounded(due_time(word), CAP_MOST_DEBT_NS, now_ns);
	unsigned before = percent_of(due_cap(word));
	if (due > now_ns && before && before != percent)
		due = now_ns + (due - now_ns) * before / percent;
	return cap_bounded(due, cap_most(c, percent), now_ns);
}

uint64_t region_cap_due(struct region *r, unsigned device, unsigned percent, uint64_t now_ns)
{
	struct ration_compute *c = cap_words(r, device);
	uint64_t now = now_ns - region_clock(r), before = load_acquire(&c->due), due = cap_due(c, before, percent, now);
	/* Store the bounded value; otherwise the word would stay as far ahead for ever. If the
	 * swap fails, the next call does it. */
	if (due > now && before != make_due(due, percent))
		cas(&c->due, before, make_due(due, percent));
	return due > now ? now_ns + (due - now) : now - due < now_ns ? now_ns - (now - due) : 0;
}

/* cap_charged returns the due time after used_ns more are charged, but no more than most ahead
 * of now. The used time began used_ns before now; the credit lies before that. */
static uint64_t cap_charged(uint64_t due, uint64_t used_ns, unsigned percent, uint64_t most, uint64_t now_ns)
{
	uint64_t from = now_ns > used_ns + CAP_CREDIT_NS ? now_ns - used_ns - CAP_CREDIT_NS : 0;
	return cap_bounded((due > from ? due : from) + used_ns * 100 / percent, most, now_ns);
}

uint64_t region_cap_ahead(uint64_t due, uint64_t under_way_ns, unsigned percent, uint64_t now_ns)
{
	return under_way_ns ? cap_charged(due, under_way_ns, percent, CAP_MOST_DEBT_NS, now_ns + under_way_ns) : due;
}

/* cap_claim claims up to ns nanoseconds of one part (one millisecond) of the time, and returns
 * how many were still unclaimed. */
static uint64_t cap_claim(uint64_t *word, uint64_t number, uint64_t ns)
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

/* cap_claim_time claims the time from from_ns to to_ns, by the machine's clock. */
static uint64_t cap_claim_time(struct ration_compute *c, uint64_t from_ns, uint64_t to_ns)
{
	uint64_t claimed = 0;
	while (from_ns < to_ns) {
		uint64_t number = from_ns / RATION_PART_NS, end = (number + 1) * RATION_PART_NS;
		end = end < to_ns ? end : to_ns;
		claimed += cap_claim(&c->parts[number % RATION_PARTS], number, end - from_ns);
		from_ns = end;
	}
	return claimed;
}

uint64_t region_cap_claim(struct region *r, unsigned device, uint64_t from_ns, uint64_t to_ns)
{
	uint64_t shift = region_clock(r);
	return cap_claim_time(cap_words(r, device), from_ns - shift, to_ns - shift);
}

/* cap_charge charges time that was claimed. now_ns is of the machine's clock. The time is
 * counted first: the due time is bounded by what was counted. */
static void cap_charge(struct ration_compute *c, uint64_t used_ns, unsigned percent, uint64_t now_ns)
{
	uint64_t before, due;
	FAILPOINT(CAP_MEASURED);
	fetch_add(&c->used, used_ns);
	FAILPOINT(CAP_COUNTED);
	do {
		before = load_acquire(&c->due);
		due = cap_charged(cap_due(c, before, percent, now_ns), used_ns, percent, cap_most(c, percent), now_ns);
	} while (!cas(&c->due, before, make_due(due, percent)));
	FAILPOINT(CAP_CHARGED);
}

void region_cap_charge(struct region *r, unsigned device, uint64_t used_ns, unsigned percent, uint64_t now_ns)
{
	struct ration_account *a = region_own_account(r, device);
	cap_charge(cap_words(r, device), used_ns, percent, now_ns - region_clock(r));
	if (a) /* statistics only */
		fetch_add(&a->time_used, used_ns);
}

void region_cap_in_turn(struct region *r, unsigned device, uint64_t ns) { fetch_add(&r->m->compute[device].in_turn, ns); }

void region_show_uncharged(struct region *r, unsigned device, uint64_t since_ns)
{
	struct ration_account *a = region_own_account(r, device);
	if (a)
		/* Sequentially consistent: afterwards the caller reads again what it has published. */
		__atomic_store_n(&a->uncharged, since_ns ? since_ns - region_clock(r) : 0, __ATOMIC_SEQ_CST);
}

void region_cap_settle(struct region *r, unsigned device, unsigned slot, uint64_t status)
{
	struct ration_account *a = account(r, device, slot);
	uint64_t since = load_acquire(&a->uncharged), now = now_ns(CLOCK_MONOTONIC) - region_clock(r);
	unsigned percent = region_cap(r, device);
	/* One process takes it over. If that one dies before it has charged it, it is lost. */
	if (!since || load_acquire(&a->gen) != status_gen(status) || !cas(&a->uncharged, since, 0))
		return;
	FAILPOINT(CAP_TAKEN);
	uint64_t until = now - since < RATION_UNCHARGED_NS ? now : since + RATION_UNCHARGED_NS;
	struct ration_compute *c = cap_words(r, device);
	uint64_t used = percent && since < now ? cap_claim_time(c, since, until) : 0;
	if (used)
		cap_charge(c, used, percent, now);
}

void region_cap_waited(struct region *r, unsigned device, uint64_t ns)
{
	struct ration_account *a = region_own_account(r, device);
	fetch_add(&r->m->compute[device].waited, ns);
	if (a)
		fetch_add(&a->time_waited, ns);
}
