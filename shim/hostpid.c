/* The host-PID lock: shim/PROTOCOLS.md. */
#include "hostpid.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "attach.h"
#include "log.h"
#include "nvml.h"
#include "region/atomics.h"
#include "region/failpoint.h"
#include "region/words.h"

/* A waiter checks the turn every millisecond. After so many checks without progress of the
 * holder, the waiter takes the turn away. A holder that is visible and not stopped gets as long
 * as a context takes on a busy machine, and several times that if the PID is wanted. A holder
 * that is not visible is taken to be stopped after HOSTPID_QUIET_LOOKS checks: an H200's driver
 * makes 355 ioctl calls for a context, at most 21 ms apart, or 135 ms with 16 processes at
 * once. Checks are counted instead of time, so that a waiter that was itself stopped does not
 * take the turn too early. Every HOSTPID_REAP checks the waiter looks for dead and stopped
 * processes. */
enum { HOSTPID_WANTED_LOOKS = 5000, HOSTPID_MEASURE_LOOKS = 1000, HOSTPID_QUIET_LOOKS = 200, HOSTPID_REAP = 10 };

/* For how many turns of other processes to wait. If the PID is wanted: until every process of a
 * full region has had a turn. To measure: if others had their turns and there is still no cost,
 * it cannot be measured here. */
enum { HOSTPID_WANTED_TURNS = RATION_SLOTS, HOSTPID_MEASURE_TURNS = 2 };

enum { HOSTPID_LIST = 1024 }; /* the number of PIDs of a list that are read */
#define HOSTPID_MAPPED (2 * HOSTPID_LIST * sizeof(uint32_t))

/* The word in the region: (count 16 | generation 32 | beats 5 | slot + 1, 11). Each turn has
 * its own count, so that a process that lost its turn does not confuse it with a later turn of
 * itself or of another of its threads. The holder changes the beats to show progress; they do
 * not change whose turn it is. */
enum { HOSTPID_SLOT_BITS = 11, HOSTPID_BEAT_BITS = 5 };
_Static_assert(RATION_SLOTS < 1 << HOSTPID_SLOT_BITS, "slot + 1 fits");

static unsigned hostpid_turn_slot(uint64_t word) { return (unsigned)(word & LOW_BITS(HOSTPID_SLOT_BITS)) - 1; }

static uint64_t hostpid_turn_of(uint64_t word) { return word & ~(LOW_BITS(HOSTPID_BEAT_BITS) << HOSTPID_SLOT_BITS); }

static uint64_t hostpid_turn_free(uint64_t word) { return word & ~LOW_BITS(48); }

static uint64_t hostpid_turn_after(uint64_t word, unsigned slot, uint64_t gen)
{
	return ((word >> 48) + 1) << 48 | (gen & LOW_BITS(32)) << 16 | (slot + 1);
}

/* hostpid_turn_beat returns the word with the next beat. */
static uint64_t hostpid_turn_beat(uint64_t word)
{
	return hostpid_turn_of(word) | (((word >> HOSTPID_SLOT_BITS) + 1) & LOW_BITS(HOSTPID_BEAT_BITS)) << HOSTPID_SLOT_BITS;
}

/* hostpid_turn_vacant reports whether no process has the turn, or its holder is gone: marked as
 * dead, or reaped, or its slot taken by another process. */
static bool hostpid_turn_vacant(const struct region *r, uint64_t turn)
{
	unsigned slot = hostpid_turn_slot(turn);
	if (slot >= RATION_SLOTS)
		return true;
	uint64_t status = load_acquire(&r->m->status[slot]);
	return status_state(status) != RATION_SLOT_ACTIVE || (status_gen(status) & LOW_BITS(32)) != (turn >> 16 & LOW_BITS(32));
}

/* The state of the holder of the turn, as a waiter sees it: not visible, stopped, or running. */
enum hostpid_sight { HOSTPID_UNSEEN, HOSTPID_STOPPED, HOSTPID_MOVING };

/* hostpid_look finds out whether the holder of the turn is stopped. It is visible if it is in
 * this PID namespace, and so is /proc. If another process has the PID by now, no harm is done:
 * a running process that loses its turn loses only a measurement. */
static enum hostpid_sight hostpid_look(const struct region *r, uint64_t turn)
{
	const struct ration_slot *holder = &r->m->slots[hostpid_turn_slot(turn)], *own = &r->m->slots[r->slot];
	uint64_t namespace = load_acquire(&own->pidns);
	char path[32], text[512], self[24], pid[24];
	ssize_t n = readlink("/proc/self", self, sizeof self - 1);
	self[n > 0 ? n : 0] = 0;
	snprintf(pid, sizeof pid, "%d", (int)getpid());
	if (!namespace || load_acquire(&holder->pidns) != namespace || strcmp(self, pid) != 0)
		return HOSTPID_UNSEEN;
	snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)load_acquire(&holder->pid));
	int fd = region_open_fd(path, O_RDONLY, 0);
	if (fd < 0)
		return HOSTPID_UNSEEN;
	n = read(fd, text, sizeof text - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	/* The state follows the name, which is in parentheses and may contain any character. */
	const char *state = strrchr(text, ')');
	if (!state)
		return HOSTPID_UNSEEN;
	return !strncmp(state, ") T", 3) || !strncmp(state, ") t", 3) ? HOSTPID_STOPPED : HOSTPID_MOVING;
}

bool hostpid_wanted(void) { return attach_config()->probe && !attach_host_pid(); }

/* hostpid_needed reports whether this process still needs a turn: another process's turn may
 * have given the answer. */
static bool hostpid_needed(const struct hostpid_probe *p, const struct device *d)
{
	return hostpid_wanted() || (p->unmeasured && !nvml_pid_known() && !region_context_cost(attach_region(), d->index, d->uuid));
}

/* hostpid_grace returns how many checks without progress a holder may take before it loses its turn. */
static unsigned hostpid_grace(enum hostpid_sight sight, bool wanted)
{
	switch (sight) {
	case HOSTPID_STOPPED: return 0;
	case HOSTPID_UNSEEN: return HOSTPID_QUIET_LOOKS;
	default: return wanted ? HOSTPID_WANTED_LOOKS : HOSTPID_MEASURE_LOOKS;
	}
}

static void hostpid_log_passed(const struct region *r, uint64_t turn, enum hostpid_sight sight, unsigned looks, uint64_t since)
{
	static const char *const whys[] = {"gives no sign of life", "is stopped", "has not moved"};
	log_warn("host PID: passing over the process in slot %u (pid %llu there), which %s, after %u looks in %llu ms",
		 hostpid_turn_slot(turn), (unsigned long long)load_relaxed(&r->m->slots[hostpid_turn_slot(turn)].pid), whys[sight], looks,
		 (unsigned long long)(log_clock() - since));
}

/* hostpid_take_turn waits for the turn, as long as it is needed and turns change hands, and
 * returns whether it has it. A process that died in its turn is found by reaping. A process
 * that is stopped, or shows no progress, loses its turn. */
static bool hostpid_take_turn(struct region *r, struct hostpid_probe *p, const struct device *d)
{
	uint64_t *word = &r->m->header.host_pid_lock, last = load_acquire(word), since = log_clock();
	unsigned looks = 0, turns = 0, slots;
	enum hostpid_sight sight = HOSTPID_UNSEEN;
	bool taken = false;
	while (!taken && hostpid_needed(p, d)) {
		bool wanted = hostpid_wanted();
		uint64_t turn = load_acquire(word);
		bool vacant = hostpid_turn_vacant(r, turn);
		if (turn != last)
			looks = 0, turns += !vacant && hostpid_turn_of(turn) != hostpid_turn_of(last);
		last = turn;
		if (!vacant && looks % HOSTPID_REAP == 0)
			sight = hostpid_look(r, turn);
		if (vacant || looks >= hostpid_grace(sight, wanted)) {
			p->turn = hostpid_turn_after(turn, p->slot, p->gen);
			/* This fails if the holder has shown progress since. */
			taken = cas(word, turn, p->turn);
			if (taken && !vacant)
				hostpid_log_passed(r, turn, sight, looks, since);
			continue;
		}
		if (turns > (wanted ? HOSTPID_WANTED_TURNS : HOSTPID_MEASURE_TURNS))
			break;
		if (looks % HOSTPID_REAP == HOSTPID_REAP - 1)
			region_reap(r, &slots);
		nanosleep(&(struct timespec){0, 1000000}, NULL);
		looks++;
	}
	if (taken)
		__atomic_store_n(attach_turn(), p->turn, __ATOMIC_RELAXED);
	log_wait(since, taken ? "its turn to look for its host PID" : "a turn to look for its host PID, in vain");
	return taken;
}

void hostpid_beat(uint64_t turn)
{
	uint64_t *word = &attach_region()->m->header.host_pid_lock, now = load_acquire(word);
	if (hostpid_turn_of(now) == turn)
		cas(word, now, hostpid_turn_beat(now)); /* on failure another thread has beaten, or another process took the turn */
}

static void hostpid_leave_turn(struct region *r, const struct hostpid_probe *p)
{
	uint64_t *word = &r->m->header.host_pid_lock, turn = p->turn, now;
	/* Another thread may have stored its own turn by now. */
	__atomic_compare_exchange_n(attach_turn(), &turn, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	/* Release: the next holder of the turn sees everything that was learnt in this one. */
	do
		now = load_acquire(word);
	while (hostpid_turn_of(now) == p->turn && !cas(word, now, hostpid_turn_free(now)));
	FAILPOINT(HOSTPID_LEFT);
}

/* hostpid_only_context reports whether this process has no other context on the device and
 * makes none: then the driver's list does not have this process yet. contexts_making must be
 * read first: a context counts as alive before it stops counting as being made. */
static bool hostpid_only_context(const struct device *d)
{
	return __atomic_load_n(&d->contexts_making, __ATOMIC_ACQUIRE) == 1 && !__atomic_load_n(&d->contexts_alive, __ATOMIC_ACQUIRE);
}

void hostpid_begin(struct hostpid_probe *p, struct device *d, bool unmeasured)
{
	struct region *r = attach_region();
	uint64_t claim = load_acquire(&r->claim);
	*p = (struct hostpid_probe){.unmeasured = unmeasured,
				    .slot = (unsigned)(claim & LOW_BITS(RATION_WORD_SLOT_BITS)),
				    .gen = status_gen(claim >> RATION_WORD_SLOT_BITS)};
	if (!claim || !hostpid_only_context(d) || !hostpid_needed(p, d) || !nvml_start())
		return;
	void *mem = mmap(NULL, HOSTPID_MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return;
	p->pids = mem;
	p->has_turn = hostpid_take_turn(r, p, d);
	if (p->has_turn)
		FAILPOINT(HOSTPID_TAKEN);
	if (p->has_turn && hostpid_only_context(d) && nvml_pids(&d->nvml, p->pids, HOSTPID_LIST, &p->pids_before))
		FAILPOINT(HOSTPID_LISTED);
	else
		hostpid_leave(p);
}

static bool hostpid_among(const uint32_t *pids, unsigned n, uint32_t pid)
{
	for (unsigned i = 0; i < n; i++)
		if (pids[i] == pid)
			return true;
	return false;
}

/* hostpid_of_another reports whether a PID belongs to another slot. */
static bool hostpid_of_another(const struct region *r, unsigned own, uint32_t pid)
{
	for (unsigned i = 0; i < RATION_SLOTS; i++)
		if (i != own && status_state(load_acquire(&r->m->status[i])) == RATION_SLOT_ACTIVE &&
		    host_pid_of(load_acquire(&r->m->slots[i].host_pid)) == pid)
			return true;
	return false;
}

/* hostpid_new returns how many PIDs are new in the list and not known to belong to other
 * processes; *pid gets one of them. This process must be among the new ones: it had no context
 * before, and has one now. So if there is only one, it is this process's PID. */
static unsigned hostpid_new(struct region *r, const struct hostpid_probe *p, const uint32_t *after, unsigned n, uint32_t *pid)
{
	unsigned gained = 0, slots;
	for (int others = 0; gained != 1 && others < 2; others++) {
		/* A PID that belonged to a dead process may be ours by now. */
		if (others)
			region_reap(r, &slots);
		gained = 0;
		for (unsigned i = 0; i < n; i++)
			if (!hostpid_among(p->pids, p->pids_before, after[i]) && !hostpid_among(after, i, after[i]) &&
			    !(others && hostpid_of_another(r, p->slot, after[i])))
				*pid = after[i], gained++;
	}
	return gained;
}

/* hostpid_found records this process's PID in the driver's list. */
static void hostpid_found(struct region *r, const struct hostpid_probe *p, uint32_t pid)
{
	/* If the list shows us by getpid(), it does not use host PIDs. If the host PID is not
	 * wanted, the PID is used for measurements only. */
	if (pid == (uint32_t)getpid())
		log_info("host PID not in the driver's list: it has this PID namespace's own");
	else if (!hostpid_wanted())
		nvml_set_pid(pid);
	/* Replace only our own unknown value: the slot may belong to another process by now. */
	else if (cas(&r->m->slots[p->slot].host_pid, make_host_pid(p->gen, 0), make_host_pid(p->gen, pid)))
		log_info("host PID %u, by the driver's list", pid);
}

void hostpid_end(struct hostpid_probe *p, struct device *d, bool made)
{
	struct region *r = attach_region();
	uint32_t *after = p->pids + HOSTPID_LIST, pid = 0;
	unsigned n = 0;
	if (!p->has_turn || !made)
		return;
	bool listed = nvml_pids(&d->nvml, after, HOSTPID_LIST, &n);
	FAILPOINT(HOSTPID_READ);
	/* Check the turn after reading the list, and before using the result: if another
	 * process has taken the turn, the new PID may be that process's. */
	if (hostpid_turn_of(load_acquire(&r->m->header.host_pid_lock)) != p->turn) {
		log_warn("host PID: this process was passed over in its turn to look for it, and takes no notice of what it found");
		return;
	}
	FAILPOINT(HOSTPID_CHECKED);
	unsigned gained = listed ? hostpid_new(r, p, after, n, &pid) : 0;
	if (gained == 1)
		hostpid_found(r, p, pid);
	else
		log_info("host PID not found in the driver's list (%u new there)", gained);
	FAILPOINT(HOSTPID_FOUND);
}

void hostpid_leave(struct hostpid_probe *p)
{
	if (p->has_turn)
		hostpid_leave_turn(attach_region(), p);
	if (p->pids)
		munmap(p->pids, HOSTPID_MAPPED);
	p->has_turn = false;
	p->pids = NULL;
}
