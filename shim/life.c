#include "life.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "account.h"
#include "atomics.h"
#include "device.h"
#include "gauge.h"
#include "log.h"
#include "reach.h"
#include "words.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* Descriptors below this are for the program, which may count on their numbers. */
#define LOWEST_FD 100

static struct life cold;
struct life *ration_life = &cold;

static struct region region = {.fd = -1};
static struct config config;

struct region *life_region(void) { return &region; }
const struct config *life_config(void) { return &config; }

static void empty(void) { memset(ration_life, 0, sizeof *ration_life); }

/* life is the page, made when it is first needed. */
static struct life *life(void)
{
	struct life *l = __atomic_load_n(&ration_life, __ATOMIC_ACQUIRE), *expected = &cold;
	if (l != &cold)
		return l;
	l = mmap(NULL, RATION_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (l == MAP_FAILED)
		return NULL;
	bool wiped = madvise(l, RATION_PAGE_SIZE, MADV_WIPEONFORK) == 0;
	if (!__atomic_compare_exchange_n(&ration_life, &expected, l, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		munmap(l, RATION_PAGE_SIZE);
		return expected;
	}
	/* Kernels before 4.14; a fork that goes around the C library is lost there. */
	if (!wiped)
		pthread_atfork(NULL, NULL, empty);
	return l;
}

/* Release: pairs with life_state. */
static void settle(struct life *l, enum life_state s) { __atomic_store_n(&l->state, s, __ATOMIC_RELEASE); }

/* broken is where a job cannot be joined; the reason has been logged. */
static void broken(struct life *l)
{
	if (config.fail_open)
		log_warn("going on without limits, as RATION_FAIL=open says");
	else
		log_error("CUDA is refused to this process (RATION_FAIL=open lets it run without limits)");
	settle(l, config.fail_open ? LIFE_OFF : LIFE_BROKEN);
}

static const char *error_text(int error, char *buf) { return error == REGION_SYSTEM ? errno_text(errno, buf) : region_error_text(error); }

/* differences says where the job's limits are not the ones this process brought. */
static void differences(const struct region_limits *own)
{
	char mine[SIZE_TEXT], jobs[SIZE_TEXT];
	for (unsigned d = 0; d < RATION_DEVICES; d++) {
		uint64_t has = region_limit(&region, d);
		if (!own->memory[d] || own->memory[d] == has)
			continue;
		log_warn("device %u: this process was given a limit of %s, its job has %s, which counts (ration limit changes it)", d,
			 limit_bounds(own->memory[d]) ? size_text(limit_bytes(own->memory[d]), mine) : "none",
			 limit_bounds(has) ? size_text(limit_bytes(has), jobs) : "none");
		return;
	}
}

static void move_fd(void)
{
	int high = fcntl(region.fd, F_DUPFD_CLOEXEC, LOWEST_FD);
	if (high < 0)
		return;
	/* No locks are held yet that this could drop. */
	close(region.fd);
	region.fd = high;
}

/* open_region maps the job's region. Under the lock. */
static bool open_region(struct life *l)
{
	static const char *const roles[] = {"ready, on the fast path", "ready, after waiting for its initialiser",
					    "initialised in place of a process that did not finish", "initialised by this process"};
	struct region_limits own;
	char buf[ERRNO_TEXT];
	if (l->opened)
		return true;
	if (region.fd >= 0)
		region_close(&region); /* what a fork handed down */
	memset(&own, 0, sizeof own);
	for (unsigned d = 0; d < RATION_DEVICES; d++) {
		own.memory[d] = config_limit(&config, d, 0);
		own.compute[d] = config.compute[d].percent;
	}
	if (!config.path_given && !config_make_folder(&config))
		return false;
	/* Who launched the job made its region. A new one would have no limits. */
	const char *job = getenv("RATION_JOB");
	if (job && *job && faccessat(AT_FDCWD, config.path, F_OK, 0) != 0) {
		log_error("region %s of job %s is gone (somebody removed it; start the job again)", config.path, job);
		return false;
	}
	int err = region_open(&region, config.path, &own);
	if (err) {
		log_error("region %s: %s", config.path, error_text(err, buf));
		return false;
	}
	move_fd();
	log_info("region %s: %s (pid %d)", config.path, roles[region.role], (int)getpid());
	differences(&own);
	devices_forget();
	l->opened = 1;
	return true;
}

static bool join(struct life *l)
{
	if (!open_region(l))
		return false;
	account_forget();
	gauge_forget();
	int err = region_claim(&region, program_invocation_short_name);
	if (err) {
		char buf[ERRNO_TEXT];
		log_error("region %s: %s", config.path, error_text(err, buf));
		return false;
	}
	if (life_host_pid())
		log_info("slot %u, host PID %llu", region.slot, (unsigned long long)life_host_pid());
	else
		log_info("slot %u, host PID not known yet (ration ps on the host fills it in)", region.slot);
	return true;
}

/* prepare decides whether there is anything to do, and reads what. */
static enum life_state prepare(struct life *l)
{
	enum life_state s = LIFE_COLD;
	mutex_lock(&l->lock);
	if (l->state == LIFE_COLD && !l->opened) {
		if (!config_any()) {
			settle(l, LIFE_OFF);
		} else {
			log_setup();
			if (!config_read(&config))
				broken(l);
		}
	}
	s = (enum life_state)l->state;
	mutex_unlock(&l->lock);
	return s;
}

static void attach(struct life *l)
{
	mutex_lock(&l->lock);
	if (l->state == LIFE_COLD) {
		if (join(l))
			settle(l, LIFE_ON);
		else
			broken(l);
	}
	mutex_unlock(&l->lock);
}

int cuInit(unsigned flags)
{
	struct life *l = life();
	if (!l)
		return CUDA_ERROR_OPERATING_SYSTEM;
	/* Bad settings show before the driver spends its time, but nothing is left in
	 * the region by a process for which there is no driver. */
	enum life_state s = prepare(l);
	if (s == LIFE_BROKEN)
		return CUDA_ERROR_OPERATING_SYSTEM;
	int result = REAL(cuInit, flags);
	if (result != CUDA_SUCCESS || s != LIFE_COLD)
		return result;
	attach(l);
	return life_state() == LIFE_BROKEN ? CUDA_ERROR_OPERATING_SYSTEM : result;
}

enum life_verdict life_enter(void)
{
	CUcontext current;
	enum life_state s = life_state();
	/* A driver that is up without our cuInit: it was reached past us. Where it is
	 * not up (the child of a fork, say) it will say so itself. */
	if (s == LIFE_COLD && REAL(cuCtxGetCurrent, &current) == CUDA_SUCCESS) {
		struct life *l = life();
		if (!l)
			return LIFE_DENY;
		if (prepare(l) == LIFE_COLD)
			attach(l);
		s = life_state();
	}
	return s == LIFE_ON ? LIFE_COUNT : s == LIFE_BROKEN ? LIFE_DENY : LIFE_PASS;
}

bool life_look(void)
{
	struct life *l = life();
	if (!l)
		return false;
	if (life_state() == LIFE_ON)
		return true;
	if (prepare(l) != LIFE_COLD)
		return false;
	mutex_lock(&l->lock);
	bool open = !l->blind && open_region(l);
	l->blind = !open;
	mutex_unlock(&l->lock);
	return open;
}

bool life_rejoin(uint64_t lost, bool *fresh)
{
	struct life *l = life();
	bool good = false;
	*fresh = false;
	mutex_lock(&l->lock);
	if (l->state == LIFE_ON) {
		good = true;
		if (load_acquire(&region.place) == lost) {
			log_warn("this process's slot was taken away; taking another (did the program close all its files?)");
			good = region_claim(&region, program_invocation_short_name) == REGION_OK;
			*fresh = good;
		}
	}
	mutex_unlock(&l->lock);
	return good;
}

uint64_t life_host_pid(void) { return host_pid_of(load_acquire(&region.m->slots[region.slot].host_pid)); }

/* At exit, once: nothing here waits, whichever thread was interrupted where. What
 * cannot be given back now is the next process's to take. */
__attribute__((destructor)) static void leave(void)
{
	struct life *l = __atomic_load_n(&ration_life, __ATOMIC_ACQUIRE);
	uint32_t on = LIFE_ON;
	if (!__atomic_compare_exchange_n(&l->state, &on, LIFE_LEFT, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return;
	unsigned slot = region.slot;
	int err = region_leave(&region);
	if (err)
		log_info("leaving slot %u to whoever needs it: %s", slot, region_error_text(err));
	else
		log_info("left slot %u, all bytes given back (pid %d)", slot, (int)getpid());
}
