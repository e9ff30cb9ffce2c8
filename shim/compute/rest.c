#include "compute/rest.h"

#include <string.h>

#include "clock.h"
#include "hooks.h"

/* The period, in us, in which rests are added up, and for how long launches on a second stream count. */
#define REST_PERIOD_US UINT64_C(1000000)
#define REST_MIXED_US UINT64_C(10000000)

uint64_t rest_watched;

/* 0; or a device's index plus 1 in the lowest byte, and above it since when that device rests, in us. No
 * time: a thread waits for all launches, and none came since. Atomic. */
static uint64_t rest_word;
enum { REST_DEVICE_BITS = 8 };

static CUstream rest_stream; /* of the last launch; REST_OF_NOTHING: there was none. Atomic */
static uint64_t rest_mixed;  /* until when launches on several streams may be under way, in us. Atomic */

/* By the region's index of a device. Atomic. */
static struct {
	uint64_t since, rested; /* the period's begin and its rests, in us */
	uint64_t suffices;      /* those of the last period did */
} rest_devices[RATION_DEVICES];

void rest_reset(void)
{
	rest_watched = 0;
	rest_word = rest_mixed = 0;
	rest_stream = REST_OF_NOTHING;
	memset(rest_devices, 0, sizeof rest_devices);
}

void rest_is_none(void) { store_release(&rest_word, 0); }

void rest_watch(bool on)
{
	if (rest_measured() == on)
		return;
	rest_is_none();
	store_release(&rest_watched, on);
}

static bool rest_ends(uint64_t now)
{
	uint64_t word = __atomic_exchange_n(&rest_word, 0, __ATOMIC_RELAXED), since = word >> REST_DEVICE_BITS;
	if (!since || now < since)
		return false;
	unsigned index = (unsigned)(word & ((1u << REST_DEVICE_BITS) - 1)) - 1;
	__atomic_fetch_add(&rest_devices[index].rested, now - since, __ATOMIC_RELAXED);
	return now - since < REST_PERIOD_US;
}

bool rest_launches(CUstream stream)
{
	CUstream last = __atomic_load_n(&rest_stream, __ATOMIC_RELAXED);
	if (unlikely(last != stream)) {
		__atomic_store_n(&rest_stream, stream, __ATOMIC_RELAXED);
		if (last != REST_OF_NOTHING)
			store_release(&rest_mixed, clock_exact() / 1000 + REST_MIXED_US);
	}
	return unlikely(load_relaxed(&rest_word) != 0) && rest_ends(clock_exact() / 1000);
}

void rest_waits(const struct device *d, CUstream stream)
{
	uint64_t now = clock_exact() / 1000;
	rest_ends(now);
	/* The stream of a thread is another one in each. */
	if (stream == REST_OF_CONTEXT || (stream != CU_STREAM_PER_THREAD && now >= load_relaxed(&rest_mixed) &&
					  stream == __atomic_load_n(&rest_stream, __ATOMIC_RELAXED)))
		store_release(&rest_word, d->index + 1u);
}

void rest_waited(const struct device *d, unsigned contexts)
{
	uint64_t waits = d->index + 1u;
	if (contexts <= 1)
		cas(&rest_word, waits, clock_exact() / 1000 << REST_DEVICE_BITS | waits);
}

bool rest_suffices(const struct device *d)
{
	uint64_t now = clock_exact() / 1000, since = load_relaxed(&rest_devices[d->index].since);
	if (now - since >= REST_PERIOD_US && cas(&rest_devices[d->index].since, since, now)) {
		uint64_t rested = __atomic_exchange_n(&rest_devices[d->index].rested, 0, __ATOMIC_RELAXED);
		store_release(&rest_devices[d->index].suffices, rested * 10 >= now - since);
	}
	return load_relaxed(&rest_devices[d->index].suffices) != 0;
}
