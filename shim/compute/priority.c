#include "compute/priority.h"

#include <string.h>

#include "attach.h"
#include "compute/claims.h"
#include "region/atomics.h"
#include "region/words.h"

/* How long a claim counts, in ms, after the process last had work: that of low priority for about a
 * lease of work, and that of high priority for "a while", so that the slices of others do not change
 * between two requests. A process whose thread waits for the device cannot renew its claim. */
#define PRIORITY_LOW_MS UINT64_C(200)
#define PRIORITY_HIGH_MS UINT64_C(10000)
#define PRIORITY_WAIT_MS (CLAIMS_MOST_MS / 2)

/* Slices, in microseconds. Of a switch between contexts 180 are lost, and the first 40 of a slice.
 * With SHORT and HIGH, a context of low priority gets 1 % beside one of high priority that never
 * pauses: (100 - 40) / (100 + 5000 + 2 * 180). Each further one of high priority lengthens SHORT by
 * STEP, which keeps that. SEVERAL: what contexts of low priority need to do 82 % of the work
 * together. */
#define PRIORITY_HIGH 5000
#define PRIORITY_SHORT 100
#define PRIORITY_STEP 55
#define PRIORITY_SEVERAL 1000
#define PRIORITY_LEAST 100

/* What this process claims of each device, by the region's index: a kind in the highest bits, and
 * until when. Atomic. */
static uint64_t priority_claims[RATION_DEVICES];
enum { PRIORITY_TIME_BITS = 56 };

void priority_reset(void)
{
	memset(priority_claims, 0, sizeof priority_claims);
	claims_reset();
}

static enum claims_kind priority_kind(void)
{
	switch (region_priority(attach_region())) {
	case RATION_PRIORITY_HIGH: return CLAIMS_HIGH;
	case RATION_PRIORITY_LOW: return CLAIMS_LOW;
	default: return CLAIMS_SEAT; /* which stands for none here */
	}
}

static void priority_claim(const struct device *d, enum claims_kind kind, uint64_t until)
{
	claims_hold(d->uuid, kind, until);
	store_release(&priority_claims[d->index], until ? (uint64_t)kind << PRIORITY_TIME_BITS | until : 0);
}

void priority_show(const struct device *d, unsigned contexts, bool waits, bool again)
{
	enum claims_kind kind = priority_kind();
	uint64_t claim = load_acquire(&priority_claims[d->index]), until = claim & LOW_BITS(PRIORITY_TIME_BITS);
	if (kind == CLAIMS_SEAT && !claim)
		return;
	uint64_t now = claims_now(), lease = kind == CLAIMS_HIGH ? PRIORITY_HIGH_MS : PRIORITY_LOW_MS;
	/* The job's priority was changed. */
	if (claim && claim >> PRIORITY_TIME_BITS != kind) {
		priority_claim(d, (enum claims_kind)(claim >> PRIORITY_TIME_BITS), 0);
		until = 0;
	}
	if (kind == CLAIMS_SEAT || (!contexts && until <= now + lease))
		return;
	if (!contexts)
		priority_claim(d, kind, 0);
	else if (again || until < now + (waits ? PRIORITY_WAIT_MS : lease) / 2 || (!waits && until > now + lease))
		priority_claim(d, kind, now + (waits ? PRIORITY_WAIT_MS : lease));
}

uint64_t priority_slice(const struct device *d, unsigned own, unsigned all, uint64_t slice)
{
	enum claims_kind kind = priority_kind();
	if (kind == CLAIMS_HIGH && !slice) {
		slice = PRIORITY_HIGH / (all ? all : 1);
		return slice < PRIORITY_LEAST ? PRIORITY_LEAST : slice;
	}
	if (kind != CLAIMS_LOW)
		return slice;
	uint64_t now = claims_now();
	unsigned high = claims_others(d->uuid, CLAIMS_HIGH, now);
	if (!high || high == CLAIMS_MANY)
		return slice;
	return own > 1 || claims_others(d->uuid, CLAIMS_LOW, now) ? PRIORITY_SEVERAL : PRIORITY_SHORT + (high - 1) * PRIORITY_STEP;
}
