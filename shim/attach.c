#include "attach.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "differs.h"
#include "log.h"
#include "region/atomics.h"
#include "region/words.h"
#include "userjob.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* For how long the end of a process waits until its lane has stopped (hooks/lane_move.c), in ms. */
enum { ATTACH_LANE_MS = 1000 };

static struct attach_page attach_cold; /* used until the page is mapped */
struct attach_page *attach_page = &attach_cold;

/* The region, and the place of a second: if a policy's user lost the job before this process joined
 * it, the new one is opened in the other place. The old one stays mapped, because other threads may
 * be reading it (attach_read_only). */
static struct region attach_regions[2] = {{.fd = -1}, {.fd = -1}};
static struct region *attach_current = &attach_regions[0];
static struct config attach_job_config;

static const uint64_t attach_not_straight = RATION_FALLING;
const uint64_t *attach_straight_word = &attach_not_straight;

/* Acquire: pairs with attach_replace. */
struct region *attach_region(void) { return __atomic_load_n(&attach_current, __ATOMIC_ACQUIRE); }
const struct config *attach_config(void) { return &attach_job_config; }

static void attach_wipe_page(void) { memset(attach_page, 0, sizeof *attach_page); }

/* attach_get_page returns the page, and maps it at the first call. It returns NULL if there is
 * no memory for it. */
static struct attach_page *attach_get_page(void)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE), *expected = &attach_cold;
	if (p != &attach_cold)
		return p;
	p = mmap(NULL, RATION_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	bool wiped = madvise(p, RATION_PAGE_SIZE, MADV_WIPEONFORK) == 0;
	if (!__atomic_compare_exchange_n(&attach_page, &expected, p, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		munmap(p, RATION_PAGE_SIZE);
		return expected;
	}
	/* Kernels before 4.14 have no MADV_WIPEONFORK. There, a fork that bypasses the C
	 * library is not noticed. */
	if (!wiped)
		pthread_atfork(NULL, NULL, attach_wipe_page);
	return p;
}

/* Release: pairs with attach_state. */
static void attach_set_state(struct attach_page *p, enum attach_state s) { __atomic_store_n(&p->state, s, __ATOMIC_RELEASE); }

/* attach_fail sets the state of a process whose job cannot be joined. The caller has logged the
 * reason, and holds LOCK_ATTACH. */
static void attach_fail(struct attach_page *p)
{
	bool open = attach_job_config.fail_open;
	if (open)
		log_warn("going on without limits, as %s", !attach_job_config.placed ? "RATION_FAIL=open says"
							   : userjob_ruled()         ? "the policy says"
										     : "this machine's policy has been disabled");
	else /* do not advise RATION_FAIL if this process may not leave its job: it has no effect there */
		log_error("CUDA is refused to this process%s",
			  attach_job_config.placed ? "" : " (RATION_FAIL=open lets it run without limits)");
	attach_set_state(p, open ? ATTACH_OFF : ATTACH_BROKEN);
}

static const char *attach_error_text(int error, char *buf)
{
	return error == REGION_SYSTEM ? errno_text(errno, buf) : region_error_text(error);
}

/* The region calls attach_log_damage when this process finds a slot with impossible contents. */
static void attach_log_damage(unsigned slot, unsigned device)
{
	log_error("region %s: what slot %u holds of device %u cannot be; it is out of use, and its bytes stay counted "
		  "(end the job and remove the file to have them back)",
		  attach_job_config.path, slot, device);
}

static bool attach_death_asleep(const struct ration_death *death) { return death->cause & RATION_CAUSE_ASLEEP; }

/* attach_death_held returns what the process held, or had put aside if the job slept. */
static uint64_t attach_death_held(const struct ration_death *death)
{
	uint64_t held = 0;
	for (unsigned d = 0; d < RATION_DEVICES; d++)
		held += death->held[d];
	return held;
}

/* attach_death_bytes returns what the job has back: nothing if it slept. */
static uint64_t attach_death_bytes(const struct ration_death *death) { return attach_death_asleep(death) ? 0 : attach_death_held(death); }

static void attach_log_death_at(enum log_level level, const struct ration_death *death)
{
	char size[SIZE_TEXT];
	log_line(level, "process %llu (%.*s, slot %u) is dead: it %s %s (%s)", (unsigned long long)death->pid, (int)sizeof death->name - 1,
		 (const char *)death->name, death->slot, attach_death_asleep(death) ? "had put aside" : "held",
		 size_text(attach_death_held(death), size), region_cause_text(death->cause));
}

/* The region calls attach_log_death when this process has returned the bytes of a dead process. */
static void attach_log_death(const struct ration_death *death) { attach_log_death_at(LOG_WARN, death); }

/* The bytes of processes that died in a former run, and that this process returns while it
 * joins. A run that is killed leaves such processes, so this is no reason to warn. */
static struct {
	uint32_t count;
	uint64_t bytes;
} attach_found_dead; /* atomic */

static void attach_count_death(const struct ration_death *death)
{
	attach_log_death_at(LOG_DEBUG, death);
	__atomic_fetch_add(&attach_found_dead.bytes, attach_death_bytes(death), __ATOMIC_RELAXED);
	__atomic_fetch_add(&attach_found_dead.count, 1, __ATOMIC_RELAXED);
}

/* attach_log_found_dead logs one line for all of them. Deaths from now on belong to this run,
 * and each is logged on its own. */
static void attach_log_found_dead(void)
{
	char size[SIZE_TEXT];
	attach_current->on_death = attach_log_death;
	uint32_t count = __atomic_exchange_n(&attach_found_dead.count, 0, __ATOMIC_RELAXED);
	uint64_t bytes = __atomic_exchange_n(&attach_found_dead.bytes, 0, __ATOMIC_RELAXED);
	if (count)
		log_info("gave back %s of %u process%s that ended without leaving (ration inspect lists them)", size_text(bytes, size),
			 count, count == 1 ? "" : "es");
}

static void attach_log_wait(uint64_t since) { log_wait(since / 1000000, "another thread's charge of the same device"); }

static void attach_set_straight(const uint64_t *word) { __atomic_store_n(&attach_straight_word, word, __ATOMIC_RELAXED); }

/* attach_close closes a region that this process has from its parent, in a forked child: no other
 * thread reads it. */
static void attach_close(struct region *inherited)
{
	attach_set_straight(&attach_not_straight);
	region_close(inherited);
}

/* attach_open maps the job's region and returns whether it is mapped; otherwise it has logged why,
 * at a level. The caller holds LOCK_ATTACH. */
static bool attach_open(struct attach_page *p, void (*reset)(void), enum log_level level)
{
	static const char *const roles[] = {"ready, on the fast path", "ready, after waiting for its initialiser",
					    "initialised in place of a process that did not finish", "initialised by this process"};
	const struct config *c = &attach_job_config;
	struct region_limits own;
	char buf[ERRNO_TEXT];
	if (p->opened)
		return true;
	if (attach_current->fd >= 0)
		attach_close(attach_current);
	config_limits_pack(&c->limits, &own);
	if (!c->path_given && !config_make_folder(c))
		return false;
	/* The launcher made the job's region. A new one would have no limits. */
	int err = region_open_as(attach_current, c->path, &own, (c->made ? REGION_EXISTING : 0u) | (c->placed ? REGION_ANY_OWNER : 0u),
				 c->created);
	if (err) {
		const char *remedy = "";
		if (err == REGION_SYSTEM && errno == EACCES && c->path_given && !c->made && !c->placed)
			remedy = " (a job is one user's: name a path of your own in RATION_REGION or CUDA_DEVICE_MEMORY_SHARED_CACHE)";
		else if (err == REGION_SYSTEM && errno == EROFS && !strncmp(c->path, "/run/ration/", strlen("/run/ration/")))
			remedy = " (a systemd unit with ProtectSystem=strict needs ReadWritePaths=/run/ration)";
		log_line(level, "region %s: %s%s", c->path, attach_error_text(err, buf), remedy);
		return false;
	}
	attach_current->on_damage = attach_log_damage;
	attach_current->on_death = attach_count_death;
	attach_current->on_wait = attach_log_wait;
	/* If all processes of the job have ended, the limits in the file are old: replace them
	 * by ours. Limits that a launcher set are kept. */
	if (!c->made && !c->placed && (err = region_renew_limits(attach_current, &own)))
		log_warn("region %s: the limits of a job that has ended stay: %s", c->path, attach_error_text(err, buf));
	attach_log_found_dead();
	log_info("region %s: %s (pid %d)", c->path, roles[attach_current->role], (int)getpid());
	differs_log(attach_current, &attach_job_config, &own);
	config_log_meaningless(c, attach_current->role == ROLE_INITIALISER);
	reset();
	p->opened = 1;
	return true;
}

/* attach_claim takes a slot and returns whether it could; otherwise it has logged why, at a level.
 * The caller holds LOCK_ATTACH. */
static bool attach_claim(enum log_level level)
{
	unsigned reaped;
	attach_current->on_death = attach_count_death;
	int err = region_claim(attach_current, program_invocation_short_name);
	if (!err)
		region_reap(attach_current, &reaped); /* a slot that cannot be reaped now is reaped by a later request */
	attach_log_found_dead();
	if (err) {
		char buf[ERRNO_TEXT];
		if (err == REGION_LOCKED && attach_current->locked_by)
			log_line(
				level,
				"region %s: no slot can be taken: %u are free, and locked by a process that has not joined the job: pid %d "
				"(end it)",
				attach_job_config.path, attach_current->locked, attach_current->locked_by);
		else
			log_line(level, "region %s: %s", attach_job_config.path, attach_error_text(err, buf));
		return false;
	}
	if (!config_granted(&attach_job_config)) {
		log_line(level, "region %s: the job was taken back", attach_job_config.path);
		return false;
	}
	region_keep(attach_current);
	if (attach_host_pid())
		log_info("slot %u, host PID %llu", attach_current->slot, (unsigned long long)attach_host_pid());
	else
		log_info("slot %u, host PID not known yet (ration ps on the host fills it in)", attach_current->slot);
	return true;
}

/* attach_replace lets go of a region that this process could not join. */
static void attach_replace(struct attach_page *p)
{
	struct region *other = &attach_regions[attach_current == &attach_regions[0]];
	if (attach_current->claim)
		region_leave(attach_current); /* it cannot fail: nothing is charged, and no thread charges */
	if (other->fd >= 0)
		attach_close(other);
	__atomic_store_n(&attach_current, other, __ATOMIC_RELEASE); /* pairs with attach_region */
	p->opened = 0;
}

/* attach_wants_compute reports whether the job has a share, a cap or a priority other than normal, or
 * this process was given one. The region is open. */
static bool attach_wants_compute(void)
{
	const struct ration_limits *l = attach_current->limits;
	bool wants = config_environment_wants_compute() || region_priority(attach_current) != RATION_PRIORITY_NORMAL;
	for (unsigned d = 0; d < RATION_DEVICES; d++)
		wants |= percent_of(load_acquire(&l->device[d].compute)) || percent_of(load_acquire(&l->device[d].compute_max));
	return wants;
}

/* attach_enter opens the region and takes a slot, and returns whether it did; otherwise it has
 * logged why. A policy's user may have lost the job since this process found it. Then it asks for
 * the job, with a promise, and tries once more. The caller holds LOCK_ATTACH. */
static bool attach_enter(struct attach_page *p, void (*reset)(void), bool *compute)
{
	char at[64];
	/* The driver has been initialised with the devices of the job that was found first. */
	place_indexes(place_get(), at, sizeof at);
	for (bool again = false;; again = true) {
		enum log_level level = attach_job_config.users && !again ? LOG_INFO : LOG_ERROR;
		if (attach_open(p, reset, level) && attach_claim(level)) {
			*compute = attach_wants_compute();
			return true;
		}
		if (again || (!config_granted(&attach_job_config) && !config_ask_again(&attach_job_config, at)))
			return false;
		attach_replace(p);
	}
}

/* attach_find_place publishes the place of the job. If the service has taken back the job of a
 * policy's user in between, it asks for another, with a promise, and returns false if there is
 * none. The caller holds LOCK_ATTACH. */
static bool attach_find_place(void)
{
	struct place now;
	config_read_place(&attach_job_config, &now);
	if (!config_granted(&attach_job_config)) {
		if (!config_ask_again(&attach_job_config, ""))
			return false;
		config_read_place(&attach_job_config, &now);
	}
	place_set(&now);
	return true;
}

/* attach_hold_place keeps the job of a policy's user on its devices while the driver is initialised with
 * them: for a job that is gone then, there may be room on other devices only. If the service has taken
 * back the job since this process read it, it finds the job again. The caller holds LOCK_ATTACH. */
static void attach_hold_place(struct attach_page *p)
{
	if (p->state != ATTACH_COLD || !attach_job_config.users)
		return;
	if (place_get()->some)
		userjob_hold(attach_job_config.path);
	if (config_granted(&attach_job_config))
		return;
	if (p->opened)
		attach_replace(p);
	if (!attach_find_place())
		attach_fail(p);
}

enum attach_state attach_prepare(bool starts)
{
	struct attach_page *p = attach_get_page();
	if (!p)
		return ATTACH_BROKEN;
	mutex_lock(&p->lock, LOCK_ATTACH);
	userjob_let_wait(starts);
	if (starts && p->state == ATTACH_BROKEN && p->looked)
		attach_set_state(p, ATTACH_COLD); /* it did not wait for a ration when it only read */
	p->looked = 0;
	if (p->state == ATTACH_COLD && !p->opened) {
		if (!config_any()) {
			attach_set_state(p, ATTACH_OFF);
		} else {
			log_setup();
			if (!config_read(&attach_job_config) || !attach_find_place()) {
				attach_fail(p);
				p->looked = !starts && attach_job_config.users;
			}
		}
	}
	if (starts)
		attach_hold_place(p);
	enum attach_state s = (enum attach_state)p->state;
	mutex_unlock(&p->lock);
	return s;
}

bool attach_has_job(void)
{
	enum { UNKNOWN, NO, YES };
	static int answer;
	int known = __atomic_load_n(&answer, __ATOMIC_RELAXED), unknown = UNKNOWN;
	if (known != UNKNOWN)
		return known == YES;
	int saved = errno; /* the program may read it after its lookup */
	known = config_any() ? YES : NO;
	/* If two threads ask at once, the answer of the first counts for both. */
	if (!__atomic_compare_exchange_n(&answer, &unknown, known, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		known = unknown;
	errno = saved;
	return known == YES;
}

enum attach_state attach_join(void (*reset)(void))
{
	struct attach_page *p = attach_get_page();
	mutex_lock(&p->lock, LOCK_ATTACH);
	if (p->state == ATTACH_COLD) {
		bool compute;
		if (attach_enter(p, reset, &compute)) {
			__atomic_store_n(&p->compute, compute, __ATOMIC_RELEASE);
			__atomic_store_n(&p->sleep, &attach_current->m->header.sleep, __ATOMIC_RELEASE);
			__atomic_store_n(&p->counts, attach_job_config.sleep_fast, __ATOMIC_RELEASE);
			if (!compute && !attach_job_config.sleep_fast)
				attach_set_straight(&attach_current->m->header.sleep);
			attach_set_state(p, ATTACH_ON);
		} else {
			attach_fail(p);
		}
	}
	userjob_end_promise();
	if (p->state == ATTACH_ON)
		region_lock_own(attach_current); /* if the promise was userjob_hold's */
	enum attach_state s = (enum attach_state)p->state;
	mutex_unlock(&p->lock);
	return s;
}

void attach_end_promise(void)
{
	struct attach_page *p = attach_get_page();
	if (!p || !attach_job_config.users)
		return;
	mutex_lock(&p->lock, LOCK_ATTACH);
	userjob_end_promise();
	mutex_unlock(&p->lock);
}

bool attach_read_only(void (*reset)(void))
{
	if (attach_state() == ATTACH_ON)
		return true;
	if (attach_prepare(false) != ATTACH_COLD)
		return false;
	struct attach_page *p = attach_get_page();
	mutex_lock(&p->lock, LOCK_ATTACH);
	bool open = !p->unreadable && attach_open(p, reset, LOG_ERROR);
	p->unreadable = !open;
	userjob_end_promise(); /* a process that only reads keeps no job */
	mutex_unlock(&p->lock);
	return open;
}

bool attach_rejoin(uint64_t lost, void (*bring)(struct region *r))
{
	struct attach_page *p = attach_get_page();
	bool good = false;
	mutex_lock(&p->lock, LOCK_ATTACH);
	if (p->state == ATTACH_ON) {
		good = true;
		if (load_acquire(&attach_current->claim) == lost) {
			log_warn("this process's slot was taken away; taking another (did the program close all its files?)");
			good = region_claim(attach_current, program_invocation_short_name) == REGION_OK;
			if (good) {
				region_keep(attach_current);
				bring(attach_current);
			}
		}
	}
	mutex_unlock(&p->lock);
	return good;
}

void attach_wait_rejoin(void)
{
	struct attach_page *p = attach_get_page();
	mutex_lock(&p->lock, LOCK_ATTACH);
	mutex_unlock(&p->lock);
}

uint64_t attach_host_pid(void)
{
	const struct region *r = attach_current;
	return host_pid_of(load_acquire(&r->m->slots[r->slot].host_pid));
}

/* attach_leave runs once, at exit. It waits for no lock, as any thread may have been
 * interrupted anywhere. The memory of this process stays charged: the driver keeps it until the
 * kernel closes the process's files, after the last instruction of the program. The next
 * process that needs memory finds this process dead and returns its charges. */
__attribute__((destructor)) static void attach_leave(void)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	uint32_t on = ATTACH_ON;
	if (!__atomic_compare_exchange_n(&p->state, &on, ATTACH_LEFT, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return;
	attach_set_straight(&attach_not_straight);
	__atomic_store_n(&p->sleep, NULL, __ATOMIC_RELEASE);
	/* The lane stops at its next piece: it must not be in the driver when that ends. */
	for (unsigned tries = 0; tries < ATTACH_LANE_MS && __atomic_load_n(&p->moving, __ATOMIC_SEQ_CST); tries++)
		nanosleep(&(struct timespec){0, 1000000}, NULL);
	/* The driver's own calls at exit wait while the job sleeps, and cannot ask for it to be woken. */
	if (!region_awake(attach_current))
		region_ask_awake(attach_current);
	unsigned slot = attach_current->slot;
	int err = region_end(attach_current);
	if (err)
		log_info("leaving slot %u to be reaped: %s", slot, region_error_text(err));
	else
		log_info("left slot %u, which held nothing (pid %d)", slot, (int)getpid());
}
