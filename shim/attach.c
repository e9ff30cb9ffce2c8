#include "attach.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "charge.h"
#include "region/atomics.h"
#include "device.h"
#include "overhead.h"
#include "log.h"
#include "interpose.h"
#include "region/words.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* Descriptors below this are for the program, which may count on their numbers. */
#define LOWEST_FD 100

static struct attach cold;
struct attach *attach_page = &cold;

static struct region region = {.fd = -1};
static struct config config;

struct region *attach_region(void) { return &region; }
const struct config *attach_config(void) { return &config; }

static void empty(void) { memset(attach_page, 0, sizeof *attach_page); }

/* life is the page, made when it is first needed. */
static struct attach *life(void)
{
	struct attach *l = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE), *expected = &cold;
	if (l != &cold)
		return l;
	l = mmap(NULL, RATION_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (l == MAP_FAILED)
		return NULL;
	bool wiped = madvise(l, RATION_PAGE_SIZE, MADV_WIPEONFORK) == 0;
	if (!__atomic_compare_exchange_n(&attach_page, &expected, l, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		munmap(l, RATION_PAGE_SIZE);
		return expected;
	}
	/* Kernels before 4.14; a fork that goes around the C library is lost there. */
	if (!wiped)
		pthread_atfork(NULL, NULL, empty);
	return l;
}

/* Release: pairs with attach_state. */
static void attach_set_state(struct attach *l, enum attach_state s) { __atomic_store_n(&l->state, s, __ATOMIC_RELEASE); }

/* broken is where a job cannot be joined; the reason has been logged. */
static void broken(struct attach *l)
{
	if (config.fail_open)
		log_warn("going on without limits, as RATION_FAIL=open says");
	else
		log_error("CUDA is refused to this process (RATION_FAIL=open lets it run without limits)");
	attach_set_state(l, config.fail_open ? ATTACH_OFF : ATTACH_BROKEN);
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
static bool open_region(struct attach *l)
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

static bool join(struct attach *l)
{
	if (!open_region(l))
		return false;
	charge_reset();
	overhead_reset();
	int err = region_claim(&region, program_invocation_short_name);
	if (err) {
		char buf[ERRNO_TEXT];
		log_error("region %s: %s", config.path, error_text(err, buf));
		return false;
	}
	if (attach_host_pid())
		log_info("slot %u, host PID %llu", region.slot, (unsigned long long)attach_host_pid());
	else
		log_info("slot %u, host PID not known yet (ration ps on the host fills it in)", region.slot);
	return true;
}

/* prepare decides whether there is anything to do, and reads what. */
static enum attach_state prepare(struct attach *l)
{
	enum attach_state s = ATTACH_COLD;
	mutex_lock(&l->lock);
	if (l->state == ATTACH_COLD && !l->opened) {
		if (!config_any()) {
			attach_set_state(l, ATTACH_OFF);
		} else {
			log_setup();
			if (!config_read(&config))
				broken(l);
		}
	}
	s = (enum attach_state)l->state;
	mutex_unlock(&l->lock);
	return s;
}

static void attach(struct attach *l)
{
	mutex_lock(&l->lock);
	if (l->state == ATTACH_COLD) {
		if (join(l))
			attach_set_state(l, ATTACH_ON);
		else
			broken(l);
	}
	mutex_unlock(&l->lock);
}

int cuInit(unsigned flags)
{
	struct attach *l = life();
	if (!l)
		return CUDA_ERROR_OPERATING_SYSTEM;
	/* Bad settings show before the driver spends its time, but nothing is left in
	 * the region by a process for which there is no driver. */
	enum attach_state s = prepare(l);
	if (s == ATTACH_BROKEN)
		return CUDA_ERROR_OPERATING_SYSTEM;
	int result = REAL(cuInit, flags);
	if (result != CUDA_SUCCESS || s != ATTACH_COLD)
		return result;
	attach(l);
	return attach_state() == ATTACH_BROKEN ? CUDA_ERROR_OPERATING_SYSTEM : result;
}

enum attach_verdict attach_enter(void)
{
	CUcontext current;
	enum attach_state s = attach_state();
	/* A driver that is up without our cuInit: it was reached past us. Where it is
	 * not up (the child of a fork, say) it will say so itself. */
	if (s == ATTACH_COLD && REAL(cuCtxGetCurrent, &current) == CUDA_SUCCESS) {
		struct attach *l = life();
		if (!l)
			return ATTACH_DENY;
		if (prepare(l) == ATTACH_COLD)
			attach(l);
		s = attach_state();
	}
	return s == ATTACH_ON ? ATTACH_COUNT : s == ATTACH_BROKEN ? ATTACH_DENY : ATTACH_PASS;
}

bool attach_read_only(void)
{
	struct attach *l = life();
	if (!l)
		return false;
	if (attach_state() == ATTACH_ON)
		return true;
	if (prepare(l) != ATTACH_COLD)
		return false;
	mutex_lock(&l->lock);
	bool open = !l->blind && open_region(l);
	l->blind = !open;
	mutex_unlock(&l->lock);
	return open;
}

bool attach_rejoin(uint64_t lost, bool *fresh)
{
	struct attach *l = life();
	bool good = false;
	*fresh = false;
	mutex_lock(&l->lock);
	if (l->state == ATTACH_ON) {
		good = true;
		if (load_acquire(&region.claim) == lost) {
			log_warn("this process's slot was taken away; taking another (did the program close all its files?)");
			good = region_claim(&region, program_invocation_short_name) == REGION_OK;
			*fresh = good;
		}
	}
	mutex_unlock(&l->lock);
	return good;
}

uint64_t attach_host_pid(void) { return host_pid_of(load_acquire(&region.m->slots[region.slot].host_pid)); }

/* At exit, once: nothing here waits, whichever thread was interrupted where. What
 * cannot be given back now is the next process's to take. */
__attribute__((destructor)) static void leave(void)
{
	struct attach *l = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	uint32_t on = ATTACH_ON;
	if (!__atomic_compare_exchange_n(&l->state, &on, ATTACH_LEFT, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return;
	unsigned slot = region.slot;
	int err = region_leave(&region);
	if (err)
		log_info("leaving slot %u to whoever needs it: %s", slot, region_error_text(err));
	else
		log_info("left slot %u, all bytes given back (pid %d)", slot, (int)getpid());
}
