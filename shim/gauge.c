#include "gauge.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "account.h"
#include "atomics.h"
#include "hooks.h"
#include "life.h"
#include "log.h"
#include "reach.h"

/* The most processes of one device that we look for ourselves among. */
#define LIST 1024

/* How many allocations pass between two looks at the clock. */
#define TICKS 256

enum { UNTRIED, STARTED, FAILED };

/* Over readings and what is booked by them, so that no two threads charge the same
 * bytes. No call into the dynamic linker is made under it. */
static mutex lock;
static nvmlProcessInfo_t *list;

/* Our PID in the driver's list, where the host's is not known but our own turned
 * up there with our first context: then the driver's is the same. */
static uint64_t own_name;

bool gauge_ready(void)
{
	uint32_t *state = &__atomic_load_n(&ration_life, __ATOMIC_ACQUIRE)->nvml;
	uint32_t s = __atomic_load_n(state, __ATOMIC_ACQUIRE);
	if (s != UNTRIED)
		return s == STARTED;
	/* Twice does no harm: NVML counts its users. */
	bool good = ration_load_nvml() && REAL(nvmlInit_v2) == NVML_SUCCESS;
	if (!good)
		log_info("NVML cannot be used: driver overhead is not counted");
	__atomic_store_n(state, good ? STARTED : FAILED, __ATOMIC_RELEASE);
	return good;
}

static bool handle(struct device *d)
{
	if (d->nvml)
		return true;
	if (REAL(nvmlDeviceGetHandleByUUID, d->uuid, &d->nvml) == NVML_SUCCESS)
		return true;
	/* Part of a divided device. */
	char mig[sizeof d->uuid];
	__builtin_memcpy(mig, d->uuid, sizeof mig);
	__builtin_memcpy(mig, "MIG", 3);
	return REAL(nvmlDeviceGetHandleByUUID, mig, &d->nvml) == NVML_SUCCESS;
}

static int read_list(struct device *d, unsigned *n)
{
	if (!list) {
		void *mem = mmap(NULL, LIST * sizeof *list, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (mem == MAP_FAILED)
			return NVML_ERROR_INSUFFICIENT_SIZE;
		list = mem;
	}
	*n = LIST;
	if (ration_real(CALL_nvmlDeviceGetComputeRunningProcesses_v3))
		return REAL(nvmlDeviceGetComputeRunningProcesses_v3, d->nvml, n, list);
	return REAL(nvmlDeviceGetComputeRunningProcesses_v2, d->nvml, n, list);
}

bool gauge_pids(struct device *d, uint32_t *pids, unsigned most, unsigned *n)
{
	unsigned all;
	if (!gauge_ready())
		return false;
	mutex_lock(&lock);
	bool good = handle(d) && read_list(d, &all) == NVML_SUCCESS;
	for (*n = 0; good && *n < all && *n < most; ++*n)
		pids[*n] = list[*n].pid;
	mutex_unlock(&lock);
	return good;
}

/* listed sums up what the driver's list has under a PID: 1, or 0 where it is not
 * there, or -1 where the list could not be read, which says nothing. Under the
 * lock. */
static int listed(struct device *d, uint64_t pid, uint64_t *bytes)
{
	unsigned n;
	int found = 0;
	*bytes = 0;
	if (!handle(d) || read_list(d, &n) != NVML_SUCCESS)
		return -1;
	for (unsigned i = 0; i < n; i++)
		if (list[i].pid == pid && list[i].usedGpuMemory != NVML_VALUE_NOT_AVAILABLE) {
			*bytes += list[i].usedGpuMemory;
			found = 1;
		}
	return found;
}

/* mine is the driver's figure for this process. A process that was in the list
 * once and is no longer has nothing. Under the lock. */
static bool mine(struct device *d, uint64_t *bytes)
{
	uint64_t pid = life_host_pid();
	if (!pid)
		pid = load_relaxed(&own_name);
	*bytes = 0;
	int found = pid ? listed(d, pid, bytes) : 0;
	if (found < 0)
		return false;
	if (found)
		d->seen = true;
	if (d->seen)
		region_observe(life_region(), d->index, *bytes);
	return d->seen;
}

static bool everybody(struct device *d, uint64_t *bytes)
{
	nvmlMemory_t m;
	if (!handle(d) || REAL(nvmlDeviceGetMemoryInfo, d->nvml, &m) != NVML_SUCCESS)
		return false;
	*bytes = m.used;
	return true;
}

/* excess is what the driver says beyond what we counted, overhead included. Other
 * threads allocate and free while it is read: at every instant our count is at
 * least the driver's, but the two are not read in one. So one that is too much is
 * read again, and the least counts. Under the lock. */
static bool excess(struct device *d, uint64_t missing, uint64_t *bytes, uint64_t *figure)
{
	*bytes = UINT64_MAX;
	for (unsigned tries = 0; tries < 3 && *bytes; tries++) {
		uint64_t before = account_held_all(d->index);
		if (!mine(d, figure))
			return false;
		uint64_t after = account_held_all(d->index), counted = before > after ? before : after;
		uint64_t all = *figure + missing, more = all > counted ? all - counted : 0;
		*bytes = more < *bytes ? more : *bytes;
	}
	return true;
}

/* missing is what we counted and the driver does not have: managed memory that is
 * elsewhere, what a destroyed pool gave back. What comes must show beyond that. The
 * least of some readings, as what other threads are charging is missing as well.
 * Under the lock. */
static uint64_t missing(struct device *d)
{
	uint64_t least = account_absent(d->index), figure;
	for (unsigned tries = 0; tries < 3 && least; tries++) {
		uint64_t counted = account_held_all(d->index);
		if (!mine(d, &figure))
			return 0;
		uint64_t less = counted > figure ? counted - figure : 0;
		least = less < least ? less : least;
	}
	return least;
}

/* settle makes overhead what the driver says beyond what we counted otherwise.
 * Under the lock. */
static bool settle(struct device *d)
{
	uint64_t more, figure, overhead = account_held(d->index, RATION_OVERHEAD);
	if (!excess(d, 0, &more, &figure))
		return false;
	if (more) {
		account_book(d->index, RATION_OVERHEAD, more);
	} else if (overhead) {
		/* What other threads are charging hides some of it: the most counts. And so
		 * could what the driver need not have. */
		uint64_t left = 0;
		for (unsigned tries = 0; tries < 3 && left < overhead; tries++) {
			uint64_t counted = account_held_all(d->index) - overhead - account_absent(d->index);
			if (mine(d, &figure) && figure > counted && figure - counted > left)
				left = figure - counted;
		}
		if (left < overhead)
			account_return(d->index, RATION_OVERHEAD, overhead - left);
	}
	return true;
}

struct gauge gauge_begin(struct device *d)
{
	struct gauge g = {.device = d};
	uint64_t figure;
	if (!gauge_ready())
		return g;
	mutex_lock(&lock);
	if (!settle(d) && !d->seen) {
		g.known = everybody(d, &g.all);
		g.listed = listed(d, (uint64_t)getpid(), &figure) != 0;
	}
	g.missing = missing(d);
	mutex_unlock(&lock);
	return g;
}

int gauge_charge(const struct gauge *g, unsigned kind, uint64_t *bytes)
{
	struct device *d = g->device;
	uint64_t figure, all;
	int result = CUDA_SUCCESS;
	*bytes = 0;
	if (!gauge_ready())
		return CUDA_SUCCESS;
	mutex_lock(&lock);
	if (g->known && !g->listed && !load_relaxed(&own_name) && listed(d, (uint64_t)getpid(), &figure) == 1)
		__atomic_store_n(&own_name, (uint64_t)getpid(), __ATOMIC_RELAXED);
	if (excess(d, g->missing, bytes, &figure)) {
		if (*bytes)
			result = account_charge(d->index, kind, *bytes, true); /* no waiting for others' locks under ours */
	} else if (g->known && everybody(d, &all) && all > g->all) {
		/* What everybody has grew by: the best there is where the driver does not
		 * show us to ourselves. Another process may have part in it, so it is
		 * counted, but no reason to refuse. */
		*bytes = all - g->all;
		account_book(d->index, kind, *bytes);
	}
	mutex_unlock(&lock);
	return result;
}

void gauge_shrink(struct device *d, unsigned kind, uint64_t bytes)
{
	uint64_t figure;
	bool ready = gauge_ready();
	mutex_lock(&lock);
	uint64_t held = account_held(d->index, kind);
	uint64_t known = account_held_all(d->index) - held - account_held(d->index, RATION_OVERHEAD);
	if (ready && !account_absent(d->index) && mine(d, &figure)) {
		/* What we know of goes first; what is left is this kind's, up to what it
		 * had, and then overhead. Other threads charge meanwhile: the least that was
		 * known counts, so that too little is given back and not too much. */
		uint64_t others = account_held_all(d->index) - held - account_held(d->index, RATION_OVERHEAD);
		others = known < others ? known : others;
		uint64_t left = figure > others ? figure - others : 0;
		account_adjust(d->index, kind, held, left < held ? left : held);
		settle(d);
	} else {
		account_return(d->index, kind, bytes < held ? bytes : held);
	}
	mutex_unlock(&lock);
}

bool gauge_nothing(struct device *d)
{
	uint64_t figure;
	if (!gauge_ready())
		return false;
	mutex_lock(&lock);
	bool nothing = mine(d, &figure) && !figure;
	mutex_unlock(&lock);
	return nothing;
}

void gauge_refresh(struct device *d, bool now)
{
	static uint64_t last;
	struct timespec t;
	if (!now) {
		clock_gettime(CLOCK_MONOTONIC, &t);
		uint64_t before = load_relaxed(&last), s = (uint64_t)t.tv_sec + 1;
		if (s == before || !cas(&last, before, s))
			return;
	}
	if (!gauge_ready())
		return;
	mutex_lock(&lock);
	settle(d);
	mutex_unlock(&lock);
}

void gauge_tick(struct device *d)
{
	static uint32_t ticks;
	if (unlikely(__atomic_add_fetch(&ticks, 1, __ATOMIC_RELAXED) % TICKS == 0))
		gauge_refresh(d, false);
}
