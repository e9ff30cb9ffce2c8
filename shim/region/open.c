/* Attaching, and initialisation: docs/protocols.md, *Initialisation*. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static int open_init_limits(struct ration_limits *page, const void *own)
{
	cas32(&page->version, 0, RATION_VERSION);
	cas(&page->size, 0, sizeof *page);
	cas(&page->magic, 0, RATION_LIMITS_MAGIC);
	return region_offer(page, own);
}

/* open_complete writes all that initialisation writes. It sets each field only if no process has
 * set it, so it does not matter which process does this, how often, or how late. */
static int open_complete(struct region *r, const struct region_limits *own)
{
	struct ration_header *h = &r->m->header;
	if (load_acquire(&h->state) == RATION_STATE_COMPLETE)
		return REGION_OK;
	uint32_t where;
	int err = region_limits_find(r, &where);
	if (err)
		return err;
	cas32(&h->flags, 0, where);
	if (load32_acquire(&h->flags) == RATION_LIMITS_INSIDE) {
		err = region_limits_with(r, open_init_limits, own);
		if (err)
			return err;
	}
	cas(&r->m->tail.magic, 0, RATION_TAIL_MAGIC);
	cas(&h->created, 0, now_ns(CLOCK_REALTIME));
	cas32(&h->devices, 0, RATION_DEVICES);
	cas32(&h->slots, 0, RATION_SLOTS);
	cas(&h->size, 0, sizeof(struct ration_region));
	cas32(&h->version, 0, RATION_VERSION);
	cas(&h->magic, 0, RATION_MAGIC);
	FAILPOINT(INIT_FIELDS);
	/* Release: pairs with every load of state that finds it complete. */
	cas(&h->state, RATION_STATE_IN_PROGRESS, RATION_STATE_COMPLETE);
	FAILPOINT(INIT_DONE);
	return REGION_OK;
}

/* open_initialise brings the region from a new file to COMPLETE, or waits up to
 * RATION_INIT_TIMEOUT_NS while another process does, and then finishes it itself. */
static int open_initialise(struct region *r, const struct region_limits *own)
{
	uint64_t *state = &r->m->header.state;
	if (!r->made && load_acquire(state) == RATION_STATE_UNINIT) {
		int err = region_file_empty(r);
		if (err && load_acquire(state) == RATION_STATE_UNINIT)
			return err; /* the content is not from a process that is initialising it */
	}
	if (cas(state, RATION_STATE_UNINIT, RATION_STATE_IN_PROGRESS)) {
		FAILPOINT(INIT_WON);
		r->role = ROLE_INITIALISER;
		return open_complete(r, own);
	}
	uint64_t start = now_ns(CLOCK_MONOTONIC);
	long pause = 50000;
	for (;;) {
		/* Acquire: pairs with the swap in open_complete. */
		if (load_acquire(state) == RATION_STATE_COMPLETE) {
			r->role = ROLE_WAITED;
			return REGION_OK;
		}
		if (now_ns(CLOCK_MONOTONIC) - start > RATION_INIT_TIMEOUT_NS) {
			int err = open_complete(r, own);
			if (err)
				return err;
			fetch_add(&r->m->header.counters.helped, 1);
			r->role = ROLE_HELPED;
			return REGION_OK;
		}
		nanosleep(&(struct timespec){0, pause}, NULL);
		pause = pause < 500000 ? 2 * pause : 1000000;
	}
}

/* open_map maps the file. The limits are mapped read-only, so that a stray write cannot raise one. */
static int open_map(struct region *r)
{
	void *mem = mmap(NULL, sizeof *r->m, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
	if (mem == MAP_FAILED)
		return REGION_SYSTEM;
	r->m = mem;
	/* Pages are used in no order: reading ahead would cost the first process most of a
	 * millisecond. */
	madvise(mem, sizeof *r->m, MADV_RANDOM);
	/* A machine with larger pages (arm64) has other, writable data in the same page: there the
	 * limits stay writable. */
	if (sysconf(_SC_PAGESIZE) > RATION_PAGE_SIZE)
		return REGION_OK;
	return mprotect(&r->m->limits, sizeof r->m->limits, PROT_READ) == 0 ? REGION_OK : REGION_SYSTEM;
}

static int open_check(const struct region *r)
{
	const struct ration_header *h = &r->m->header;
	if (load_acquire(&h->state) != RATION_STATE_COMPLETE || load_acquire(&h->magic) != RATION_MAGIC ||
	    load32_acquire(&h->version) != RATION_VERSION || load_acquire(&h->size) != sizeof *r->m ||
	    load32_acquire(&h->devices) != RATION_DEVICES || load32_acquire(&h->slots) != RATION_SLOTS || !region_whole(r))
		return REGION_DAMAGED;
	return REGION_OK;
}

/* open_lacks returns true if own has a limit that no process has set yet. */
static bool open_lacks(const struct region *r, const struct region_limits *own)
{
	for (unsigned d = 0; d < RATION_DEVICES; d++)
		if ((own->memory[d] && !load_acquire(&r->limits->device[d].memory)) ||
		    (own->compute[d] && !load_acquire(&r->limits->device[d].compute)) ||
		    (own->compute_max[d] && !load_acquire(&r->limits->device[d].compute_max)))
			return true;
	return (own->round && !load_acquire(&r->limits->round)) || (own->priority && !load_acquire(&r->limits->priority)) ||
	       (own->wait_alloc && !load_acquire(&r->limits->wait_alloc));
}

/* open_words copies the limits of a page to *to. */
static void open_words(struct region_limits *to, const struct ration_limits *page)
{
	for (unsigned d = 0; d < RATION_DEVICES; d++) {
		to->memory[d] = load_acquire(&page->device[d].memory);
		to->compute[d] = load_acquire(&page->device[d].compute);
		to->compute_max[d] = load_acquire(&page->device[d].compute_max);
	}
	to->round = load_acquire(&page->round);
	to->priority = load_acquire(&page->priority);
	to->wait_alloc = load_acquire(&page->wait_alloc);
}

/* Arguments of open_renew: the new limits, and the old ones that they replace. */
struct open_renewal {
	const struct region_limits *own;
	struct region_limits has;
};

/* open_renew replaces each limit that still has its old value. */
static int open_renew(struct ration_limits *page, const void *arg)
{
	const struct open_renewal *n = arg;
	for (unsigned d = 0; d < RATION_DEVICES; d++) {
		cas(&page->device[d].memory, n->has.memory[d], n->own->memory[d]);
		cas(&page->device[d].compute, n->has.compute[d], n->own->compute[d]);
		cas(&page->device[d].compute_max, n->has.compute_max[d], n->own->compute_max[d]);
	}
	cas(&page->round, n->has.round, n->own->round);
	cas(&page->priority, n->has.priority, n->own->priority);
	cas(&page->wait_alloc, n->has.wait_alloc, n->own->wait_alloc);
	FAILPOINT(LIMIT_SET);
	fetch_add(&page->changes, 1);
	return REGION_OK;
}

/* open_in_use returns true if a living process has a slot. It reaps dead processes first. */
static bool open_in_use(struct region *r)
{
	unsigned reaped;
	if (region_reap(r, &reaped))
		return true; /* unknown: assume that it is in use */
	for (unsigned slot = 0; slot < region_high_water(r); slot++) {
		unsigned state = status_state(load_acquire(&r->m->status[slot]));
		if (state != RATION_SLOT_FREE && state != RATION_SLOT_DAMAGED && state != RATION_SLOT_LENT)
			return true;
	}
	return false;
}

int region_renew_limits(struct region *r, const struct region_limits *own)
{
	static const struct region_limits none;
	struct open_renewal n = {.own = own};
	if (r->limits_beside || !memcmp(own, &none, sizeof none))
		return REGION_OK;
	/* Read the limits first, then look for processes: a limit that changes in between was set
	 * by a process that has just joined, and the swap leaves it alone. */
	open_words(&n.has, r->limits);
	if (!memcmp(&n.has, own, sizeof n.has) || open_in_use(r))
		return REGION_OK;
	return region_limits_with(r, open_renew, &n);
}

static int open_attach(struct region *r, const struct region_limits *own, unsigned flags, uint64_t created)
{
	bool fresh;
	int err;
	if ((err = region_file_open(r, flags)))
		return err;
	FAILPOINT(INIT_OPENED);
	if ((err = region_file_inspect(r, &fresh)))
		return err;
	if (fresh && flags & REGION_EXISTING)
		return REGION_GONE;
	if (fresh && (err = region_file_allocate(r)))
		return err;
	if ((err = open_map(r)))
		return err;
	if (fresh) {
		FAILPOINT(INIT_MAPPED);
		if ((err = open_initialise(r, own)))
			return err;
	}
	if ((err = open_check(r)))
		return err;
	if (created && load_acquire(&r->m->header.created) != created)
		return REGION_GONE;
	if ((err = region_limits_open(r)))
		return err;
	if (!r->limits_beside && open_lacks(r, own))
		return region_limits_with(r, region_offer, own);
	return REGION_OK;
}

int region_open(struct region *r, const char *path, const struct region_limits *own) { return region_open_as(r, path, own, 0, 0); }

int region_open_as(struct region *r, const char *path, const struct region_limits *own, unsigned flags, uint64_t created)
{
	memset(r, 0, sizeof *r);
	r->fd = -1;
	r->path = path;
	r->any_owner = flags & REGION_ANY_OWNER;
	int err = open_attach(r, own, flags, created);
	if (err) {
		int saved = errno;
		region_close(r);
		errno = saved;
	}
	return err;
}

void region_close(struct region *r)
{
	/* This also runs in a forked child, which has inherited r but has no slot. */
	if (r->claim)
		region_let_go(claim_slot(r->claim), status_gen(claim_status(r->claim)));
	if (r->limits_beside)
		munmap((void *)r->limits, sizeof *r->limits);
	if (r->m)
		munmap(r->m, sizeof *r->m);
	region_file_close(r);
	/* The mapping of region_keep stays, because in a forked child the driver's files stay, too. */
	memset(r, 0, sizeof *r);
	r->fd = -1;
}

const char *region_cause_text(unsigned cause)
{
	static const char *const text[] = {
		[RATION_CAUSE_UNKNOWN] = "condemned by a process that died",
		[RATION_CAUSE_UNSEEN] = "its lock was gone, and its PID means nothing here",
		[RATION_CAUSE_EXEC] = "it became another program",
		[RATION_CAUSE_ENDED] = "no process has its PID",
		[RATION_CAUSE_REUSED] = "its PID is another process's",
		[RATION_CAUSE_ZOMBIE] = "a zombie",
		[RATION_CAUSE_UNMAPPED] = "it no longer maps the region",
		[RATION_CAUSE_JOINING] = "it died while it joined",
	};
	cause &= ~RATION_CAUSE_ASLEEP;
	return cause < sizeof text / sizeof *text ? text[cause] : "unknown";
}

const char *region_error_text(int error)
{
	static const char *const text[] = {
		[REGION_OK] = "all is well",
		[REGION_FOREIGN] = "not a ration region (choose another path, or remove the file if nobody needs it)",
		[REGION_VERSION] =
			"region of another version (end the job's processes and remove the file, or use the ration that made it)",
		[REGION_SIZE] = "region has the wrong size (it was cut short or overwritten; end the job's processes and remove it)",
		[REGION_SYMLINK] = "region path is a symbolic link (name the file itself)",
		[REGION_NOT_REGULAR] = "region path is not a regular file (name a file, or a path where one can be made)",
		[REGION_OWNER] = "region belongs to another user (use a path of your own)",
		[REGION_NO_SPACE] = "no space for the region (free some, or choose another path)",
		[REGION_LIMITS] = "limits beside the region cannot be used (an operator put them there; have them written again)",
		[REGION_SYSTEM] = "system call",
		[REGION_FULL] = "all slots are taken (start fewer processes in one job)",
		[REGION_REFUSED] = "out of rationed memory",
		[REGION_NOT_HELD] = "returning more than is held",
		[REGION_EVICTED] = "slot was taken away (its lock was lost: did the program close all its files?)",
		[REGION_DAMAGED] = "region is damaged (end the job and remove the file)",
		[REGION_BUSY] = "another thread is changing what this process holds",
		[REGION_GONE] =
			"the job's region is gone: it was removed or emptied, or its name is another job's now (start the job again)",
		[REGION_HELD] = "the driver has what this process holds until it has ended",
		[REGION_LOCKED] = "no slot can be taken: those that are free are locked by a process that has not joined the job (end it)",
	};
	return error >= 0 && error < (int)(sizeof text / sizeof *text) ? text[error] : "unknown error";
}
