/* Prints what a region holds, for scripts: one line for each active slot, and one
 * for each device in use, once what processes held that have left is given back. With "created"
 * after the path: when it was made. */
#include <stdio.h>

#include "../region/internal.h"

int main(int argc, char **argv)
{
	static const struct region_limits none;
	struct region r;
	if (argc < 2 || region_open(&r, argv[1], &none) != 0)
		return 1;
	if (argc > 2)
		return printf("%llu\n", (unsigned long long)load_acquire(&r.m->header.created)) < 0;
	for (unsigned i = 0; i < RATION_SLOTS; i++)
		if (region_left(&r, i, status_gen(load_acquire(&r.m->status[i]))))
			region_reap_slot(&r, i);
	for (unsigned i = 0; i < RATION_SLOTS; i++)
		if (status_state(load_acquire(&r.m->status[i])) != RATION_SLOT_FREE)
			printf("slot %u pid %llu host %llu %s\n", i, (unsigned long long)r.m->slots[i].pid,
			       (unsigned long long)host_pid_of(r.m->slots[i].host_pid), (const char *)r.m->slots[i].name);
	for (unsigned d = 0; d < RATION_DEVICES; d++)
		if (region_used(&r, d) || (d == 0 && limit_bytes(region_limit(&r, d))))
			printf("device %u used %llu limit %llu\n", d, (unsigned long long)region_used(&r, d),
			       (unsigned long long)limit_bytes(region_limit(&r, d)));
	printf("claims %llu refused %llu reaped %llu\n", (unsigned long long)r.m->header.counters.claims,
	       (unsigned long long)r.m->header.counters.refused, (unsigned long long)r.m->header.counters.reaped);
	return 0;
}
