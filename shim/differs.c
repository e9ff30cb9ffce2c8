#include "differs.h"

#include <stdio.h>
#include <string.h>

#include "log.h"
#include "region/atomics.h"
#include "region/words.h"

/* A limit that this process was started with, and the limit of its job, both as text. Both are
 * empty if the two agree. */
struct difference {
	char mine[SIZE_TEXT + 32], jobs[SIZE_TEXT + 32];
};

/* differs_memory_text formats a memory limit that is packed as in the region. */
static void differs_memory_text(char *out, size_t size, uint64_t limit)
{
	char bytes[SIZE_TEXT];
	snprintf(out, size, "%s", limit_bounds(limit) ? size_text(limit_bytes(limit), bytes) : "none");
}

static void differs_compare_memory(unsigned device, const struct region *r, const struct region_limits *own, struct difference *d)
{
	uint64_t has = region_limit(r, device);
	if (!own->memory[device] || own->memory[device] == has)
		return;
	differs_memory_text(d->mine, sizeof d->mine, own->memory[device]);
	differs_memory_text(d->jobs, sizeof d->jobs, has);
}

/* differs_compute_text formats a share or a cap, in percent. */
static void differs_compute_text(char *out, size_t size, uint64_t percent, const char *of)
{
	if (percent_of(percent))
		snprintf(out, size, "%llu %% of %s", (unsigned long long)percent, of);
	else
		snprintf(out, size, "all of %s", of);
}

static void differs_compare_percent(uint64_t mine, uint64_t has, const char *of, struct difference *d)
{
	if (!mine || mine == has || (mine == RATION_COMPUTE_NONE && !percent_of(has)))
		return;
	differs_compute_text(d->mine, sizeof d->mine, mine, of);
	differs_compute_text(d->jobs, sizeof d->jobs, has, of);
}

static void differs_compare_compute(unsigned device, const struct region *r, const struct region_limits *own, struct difference *d)
{
	differs_compare_percent(own->compute[device], load_acquire(&r->limits->device[device].compute), "compute", d);
}

static void differs_compare_compute_max(unsigned device, const struct region *r, const struct region_limits *own, struct difference *d)
{
	differs_compare_percent(own->compute_max[device], load_acquire(&r->limits->device[device].compute_max), "compute at most", d);
}

const char *differs_advice(const struct config *c, const char *flags, char out[DIFFERS_ADVICE])
{
	if (c->ruled)
		snprintf(out, DIFFERS_ADVICE, "by this machine's policy; ration run %s gives a command its own part", flags);
	else
		strcpy(out, "ration limit changes it");
	return out;
}

/* differs_sees reports whether the job can have a device. A policy's service names all devices that the machine has; elsewhere
 * a device has a name when a process has used it. */
static bool differs_sees(const struct region *r, const struct config *c, unsigned device)
{
	const struct ration_device_limits *all = r->limits->device;
	bool named = load_acquire(&all[device].uuid[1]) || !load_acquire(&all[0].uuid[1]);
	return !load_acquire(&all[device].hidden) && (named || !c->ruled);
}

void differs_log(const struct region *r, const struct config *c, const struct region_limits *own)
{
	static void (*const compare[])(unsigned, const struct region *, const struct region_limits *, struct difference *) = {
		differs_compare_memory, differs_compare_compute, differs_compare_compute_max};
	static const char *const flags[] = {"--mem", "--mem --compute", "--mem --compute-max"};
	char advice[DIFFERS_ADVICE];
	for (unsigned kind = 0; kind < sizeof compare / sizeof *compare; kind++) {
		struct difference now = {"", ""}, next;
		unsigned first = 0;
		for (unsigned device = 0; device <= RATION_DEVICES; device++) {
			next = (struct difference){"", ""};
			if (device < RATION_DEVICES && differs_sees(r, c, device))
				compare[kind](device, r, own, &next);
			if (!strcmp(next.mine, now.mine) && !strcmp(next.jobs, now.jobs))
				continue;
			char to[16] = "";
			if (device - 1 > first)
				snprintf(to, sizeof to, " to %u", device - 1);
			if (*now.mine)
				log_warn("device%s %u%s: this process was given a limit of %s, its job has %s, which counts (%s)",
					 *to ? "s" : "", first, to, now.mine, now.jobs, differs_advice(c, flags[kind], advice));
			now = next;
			first = device;
		}
	}
	uint64_t round = region_round(r);
	if (own->round && own->round != round)
		log_warn("this process was given a round of %llu us, its job has %llu us, which counts", (unsigned long long)own->round,
			 (unsigned long long)round);
	if (own->priority && own->priority != region_priority(r))
		log_warn("this process was given another priority than its job has, which counts (%s)",
			 differs_advice(c, "--mem --priority", advice));
	if (own->wait_alloc && wait_alloc_of(own->wait_alloc) != region_wait_alloc(r))
		log_warn("this process was given another time to wait for memory than its job has, which counts (%s)",
			 c->ruled ? "by this machine's policy no request waits" : "ration limit --wait-alloc changes it");
}
