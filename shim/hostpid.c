#include "hostpid.h"

#include <stddef.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "region/atomics.h"
#include "nvml.h"
#include "attach.h"
#include "log.h"
#include "region/words.h"

/* How long to wait for a turn: as long as many contexts take one after the other where
 * the PID was asked for, and about as long as one takes where it only helps to measure. */
enum { MOST = 1024, PATIENCE_MS = 5000, LITTLE_MS = 300, LOOK_MS = 10 };

/* The word: whose turn it is, by slot and generation; 0 for nobody's. */
static uint64_t word_of(unsigned slot, uint64_t status) { return status_gen(status) << 16 | (slot + 1); }

/* stale says whether the turn's owner is gone: dead and reaped, or its slot taken
 * by another. */
static bool stale(struct region *r, uint64_t word)
{
	unsigned slot = (unsigned)(word & 0xffff) - 1;
	return slot >= RATION_SLOTS || word_of(slot, load_acquire(&r->m->status[slot])) != word ||
	       status_state(load_acquire(&r->m->status[slot])) == RATION_SLOT_FREE;
}

/* take_turn waits for the turn, unless what it is wanted for is known meanwhile.
 * Whoever died in his is found by reaping. */
static bool take_turn(struct region *r, uint64_t mine, const struct device *d)
{
	uint64_t *probe = &r->m->header.host_pid_lock;
	unsigned patience = hostpid_wanted() ? PATIENCE_MS : LITTLE_MS;
	for (unsigned waited = 0; waited < patience; waited++) {
		uint64_t w = load_acquire(probe);
		unsigned slots;
		if (!hostpid_wanted() && region_context_cost(r, d->index, d->id))
			return false;
		if (w && waited % LOOK_MS == LOOK_MS - 1)
			region_reap(r, &slots);
		if ((!w || stale(r, w)) && cas(probe, w, mine))
			return true;
		nanosleep(&(struct timespec){0, 1000000}, NULL);
	}
	if (hostpid_wanted())
		log_warn("host PID: it did not become this process's turn to look for it");
	return false;
}

static void leave_turn(struct region *r, uint64_t mine) { cas(&r->m->header.host_pid_lock, mine, 0); }

bool hostpid_wanted(void) { return attach_config()->probe && !attach_host_pid(); }

void hostpid_begin(struct hostpid *h, struct device *d, bool unmeasured)
{
	struct region *r = attach_region();
	*h = (struct hostpid){.turn = false};
	if ((!hostpid_wanted() && !unmeasured) || !nvml_start())
		return;
	h->word = word_of(r->slot, load_relaxed(&r->status));
	void *mem = mmap(NULL, 2 * MOST * sizeof *h->before, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return;
	h->before = mem;
	h->turn = take_turn(r, h->word, d);
	if (h->turn && !nvml_pids(d, h->before, MOST, &h->n))
		leave_turn(r, h->word), h->turn = false;
	if (!h->turn)
		munmap(mem, 2 * MOST * sizeof *h->before);
}

static bool among(const uint32_t *pids, unsigned n, uint32_t pid)
{
	for (unsigned i = 0; i < n; i++)
		if (pids[i] == pid)
			return true;
	return false;
}

/* known says whether a PID is another slot's. */
static bool known(const struct region *r, uint32_t pid)
{
	for (unsigned i = 0; i < RATION_SLOTS; i++)
		if (i != r->slot && status_state(load_acquire(&r->m->status[i])) == RATION_SLOT_ACTIVE &&
		    host_pid_of(load_acquire(&r->m->slots[i].host_pid)) == pid)
			return true;
	return false;
}

void hostpid_end(struct hostpid *h, struct device *d)
{
	struct region *r = attach_region();
	uint32_t *after = h->before + MOST, pid = 0;
	unsigned n = 0, fresh = 0;
	if (!h->turn)
		return;
	if (!nvml_pids(d, after, MOST, &n))
		n = 0;
	for (unsigned i = 0; i < n; i++)
		if (!among(h->before, h->n, after[i]) && !among(after, i, after[i]) && !known(r, after[i]))
			pid = after[i], fresh++;
	/* A list that has us by the PID we call ourselves is not the host's. And where nobody
	 * asked for it, it is good enough to measure by, and no more. */
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

void hostpid_leave(struct hostpid *h)
{
	if (!h->turn)
		return;
	leave_turn(attach_region(), h->word);
	munmap(h->before, 2 * MOST * sizeof *h->before);
	h->turn = false;
}
