/* The index that a device has in the region. Processes agree on indexes by UUID, so that processes
 * that see different devices, or the same devices in another order, mean the same device by an
 * index. */
#include "internal.h"

struct device_naming {
	unsigned device;
	uint64_t uuid[2], total;
};

/* device_named returns true if an index has this UUID, or only its second half: the process that
 * wrote it may have died in between. */
static bool device_named(const struct ration_device_limits *l, const uint64_t uuid[2])
{
	uint64_t first = load_acquire(&l->uuid[0]);
	return load_acquire(&l->uuid[1]) == uuid[1] && (first == uuid[0] || first == 0);
}

static bool device_nameless(const struct ration_device_limits *l) { return !load_acquire(&l->uuid[0]) && !load_acquire(&l->uuid[1]); }

/* device_name writes a UUID to an index that has none. If two processes try, the second word of the
 * UUID decides: the loser finds another UUID there, and takes another index. */
static int device_name(struct ration_limits *page, const void *arg)
{
	const struct device_naming *n = arg;
	struct ration_device_limits *l = &page->device[n->device];
	if (!cas(&l->uuid[1], 0, n->uuid[1]) && load_acquire(&l->uuid[1]) != n->uuid[1])
		return REGION_FOREIGN;
	if (!cas(&l->uuid[0], 0, n->uuid[0]) && load_acquire(&l->uuid[0]) != n->uuid[0])
		return REGION_FOREIGN;
	cas(&l->total, 0, n->total);
	return REGION_OK;
}

int region_find_device(const struct region *r, const uint64_t uuid[2])
{
	for (unsigned d = 0; uuid[1] && d < RATION_DEVICES; d++)
		if (device_named(&r->limits->device[d], uuid))
			return (int)d;
	return -1;
}

/* device_choose returns an index without a UUID: prefer if possible, otherwise the one with the
 * strictest limit, because it is not known which device that limit was meant for. */
static int device_choose(const struct region *r, unsigned prefer, uint32_t taken)
{
	if (prefer < RATION_DEVICES && !(taken >> prefer & 1) && device_nameless(&r->limits->device[prefer]))
		return (int)prefer;
	int strictest = -1;
	for (unsigned d = 0; d < RATION_DEVICES; d++)
		if (!(taken >> d & 1) && device_nameless(&r->limits->device[d]) &&
		    (strictest < 0 || limit_ceiling(region_limit(r, d)) < limit_ceiling(region_limit(r, (unsigned)strictest))))
			strictest = (int)d;
	return strictest;
}

int region_assign_device(struct region *r, const uint64_t uuid[2], uint64_t total, unsigned prefer, uint32_t taken)
{
	for (unsigned tries = 0; tries <= RATION_DEVICES; tries++) {
		int found = region_find_device(r, uuid);
		if (found < 0)
			found = device_choose(r, prefer, taken);
		if (found < 0 || !uuid[1] || r->limits_beside)
			return found;
		struct device_naming n = {(unsigned)found, {uuid[0], uuid[1]}, total};
		int err = region_limits_with(r, device_name, &n);
		if (err != REGION_FOREIGN)
			return found;
	}
	return -1;
}

uint64_t region_context_cost(const struct region *r, unsigned device, const uint64_t uuid[2])
{
	/* No order is needed: no other word is read because of this one. */
	return context_cost_for(load_relaxed(&r->m->devices[device].context_cost), uuid);
}

void region_remember_cost(struct region *r, unsigned device, const uint64_t uuid[2], uint64_t bytes)
{
	if (uuid[1] && make_context_cost(uuid, bytes))
		store_release(&r->m->devices[device].context_cost, make_context_cost(uuid, bytes));
}

void region_forget_cost(struct region *r, unsigned device, const uint64_t uuid[2], uint64_t bytes)
{
	cas(&r->m->devices[device].context_cost, make_context_cost(uuid, bytes), 0);
}

int region_offer_limit(struct region *r, unsigned device, uint64_t limit)
{
	struct region_limits own = {.memory = {[0] = 0}};
	if (r->limits_beside || region_limit(r, device))
		return REGION_OK;
	own.memory[device] = limit;
	return region_limits_with(r, region_offer, &own);
}
