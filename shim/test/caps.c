/* The word of a job's cap: a device's time that was used at a cap of so many per cent is due so many
 * times later, and what was not used is lost but for 50 ms. */
#include "../region/internal.h"
#include "held.h"

#define MS UINT64_C(1000000)

int main(void)
{
	struct region *r = region_here();
	uint64_t now = 100000 * MS;
	/* Credit first: 10 ms that began 10 ms ago, and 50 ms before that. */
	region_cap_charge(r, 0, 10 * MS, 50, now);
	EQ(region_cap_due(r, 0, 50, now), now - 60 * MS + 20 * MS);
	for (uint64_t i = 1; i <= 5; i++) {
		region_cap_charge(r, 0, 10 * MS, 50, now);
		EQ(region_cap_due(r, 0, 50, now), now - 40 * MS + i * 20 * MS);
	}
	/* A debt at another cap is as much of it: 60 ms at 50 % are 150 ms at 20 %. */
	EQ(region_cap_due(r, 0, 20, now), now + 150 * MS);
	/* None of more than an hour. */
	region_cap_charge(r, 0, 100 * 3600 * 1000 * MS, 1, now);
	EQ(region_cap_due(r, 0, 1, now), now + 3600 * 1000 * MS);
	EQ(r->m->compute[0].used, 60 * MS + 100 * 3600 * 1000 * MS);
	return FINISH();
}
