#include "hostpid.h"

#include <stddef.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "attach.h"
#include "log.h"
#include "nvml.h"
#include "region/atomics.h"
#include "region/words.h"

/* How long to wait for a turn: as long as many contexts take one after the other where
 * the PID is wanted, and about as long as one takes where it only helps to measure. And
 * how often dead processes are looked for meanwhile. */
enum { HOSTPID_WANTED_MS = 5000, HOSTPID_MEASURE_MS = 300, HOSTPID_REAP_MS = 10 };

enum { HOSTPID_LIST = 1024 }; /* PIDs of a list that are looked at */
#define HOSTPID_MAPPED (2 * HOSTPID_LIST * sizeof(uint32_t))

/* hostpid_turn_of packs whose turn it is: slot and generation. 0 is no process's. */
static uint64_t hostpid_turn_of(unsigned slot, uint64_t status) { return status_gen(status) << 16 | (slot + 1); }

/* hostpid_turn_stale reports whether the turn's owner is gone: dead and reaped, or its
 * slot taken by another process. */
static bool hostpid_turn_stale(struct region *r, uint64_t turn)
{
	unsigned slot = (unsigned)(turn & 0xffff) - 1;
	return slot >= RATION_SLOTS || hostpid_turn_of(slot, load_acquire(&r->m->status[slot])) != turn ||
	       status_state(load_acquire(&r->m->status[slot])) == RATION_SLOT_FREE;
}

/* hostpid_take_turn waits for the turn, unless what it is needed for becomes known. A
 * process that died in its turn is found by reaping. */
static bool hostpid_take_turn(struct region *r, uint64_t mine, const struct device *d)
{
	uint64_t *word = &r->m->header.host_pid_lock;
	unsigned most = hostpid_wanted() ? HOSTPID_WANTED_MS : HOSTPID_MEASURE_MS;
	for (unsigned waited = 0; waited < most; waited++) {
		uint64_t turn = load_acquire(word);
		unsigned slots;
		if (!hostpid_wanted() && region_context_cost(r, d->index, d->uuid))
			return false;
		if (turn && waited % HOSTPID_REAP_MS == HOSTPID_REAP_MS - 1)
			region_reap(r, &slots);
		if ((!turn || hostpid_turn_stale(r, turn)) && cas(word, turn, mine))
			return true;
		nanosleep(&(struct timespec){0, 1000000}, NULL);
	}
	if (hostpid_wanted())
		log_warn("host PID: it did not become this process's turn to look for it");
	return false;
}

static void hostpid_leave_turn(struct region *r, uint64_t mine) { cas(&r->m->header.host_pid_lock, mine, 0); }

bool hostpid_wanted(void) { return attach_config()->probe && !attach_host_pid(); }

void hostpid_begin(struct hostpid_probe *p, struct device *d, bool unmeasured)
{
	struct region *r = attach_region();
	*p = (struct hostpid_probe){.has_turn = false};
	if ((!hostpid_wanted() && !unmeasured) || !nvml_start())
		return;
	p->turn = hostpid_turn_of(r->slot, load_relaxed(&r->status));
	void *mem = mmap(NULL, HOSTPID_MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return;
	p->pids = mem;
	p->has_turn = hostpid_take_turn(r, p->turn, d);
	if (p->has_turn && !nvml_pids(&d->nvml, p->pids, HOSTPID_LIST, &p->pids_before))
		hostpid_leave_turn(r, p->turn), p->has_turn = false;
	if (!p->has_turn)
		munmap(mem, HOSTPID_MAPPED);
}

static bool hostpid_among(const uint32_t *pids, unsigned n, uint32_t pid)
{
	for (unsigned i = 0; i < n; i++)
		if (pids[i] == pid)
			return true;
	return false;
}

/* hostpid_of_another reports whether a PID is another slot's. */
static bool hostpid_of_another(const struct region *r, uint32_t pid)
{
	for (unsigned i = 0; i < RATION_SLOTS; i++)
		if (i != r->slot && status_state(load_acquire(&r->m->status[i])) == RATION_SLOT_ACTIVE &&
		    host_pid_of(load_acquire(&r->m->slots[i].host_pid)) == pid)
			return true;
	return false;
}

void hostpid_end(struct hostpid_probe *p, struct device *d)
{
	struct region *r = attach_region();
	uint32_t *after = p->pids + HOSTPID_LIST, pid = 0;
	unsigned n = 0, fresh = 0;
	if (!p->has_turn)
		return;
	if (!nvml_pids(&d->nvml, after, HOSTPID_LIST, &n))
		n = 0;
	for (unsigned i = 0; i < n; i++)
		if (!hostpid_among(p->pids, p->pids_before, after[i]) && !hostpid_among(after, i, after[i]) &&
		    !hostpid_of_another(r, after[i]))
			pid = after[i], fresh++;
	/* A list that has us by getpid() is not the host's. And where the PID is not wanted, it
	 * is good enough to measure by, and no more. */
	uint64_t *word = &r->m->slots[r->slot].host_pid, was = load_acquire(word);
	if (fresh != 1)
		log_info("host PID not found in the driver's list (%u new there)", fresh);
	else if (pid == (uint32_t)getpid())
		log_info("host PID not in the driver's list: it has this PID namespace's own");
	else if (!hostpid_wanted())
		nvml_set_pid(pid);
	else if (!host_pid_of(was) && cas(word, was, make_host_pid(status_gen(load_relaxed(&r->status)), pid)))
		log_info("host PID %u, by the driver's list", pid);
}

void hostpid_leave(struct hostpid_probe *p)
{
	if (!p->has_turn)
		return;
	hostpid_leave_turn(attach_region(), p->turn);
	munmap(p->pids, HOSTPID_MAPPED);
	p->has_turn = false;
}
