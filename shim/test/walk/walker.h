/* A walker is one thread of a random walk, with what it holds; and what all walkers of a
 * process share. Whether a step succeeds is the driver's and the job's to say; a walker
 * knows no more than what it got. */
#ifndef RATION_TEST_WALKER_H
#define RATION_TEST_WALKER_H

#include <pthread.h>

#include "../held.h"
#include "../later.h"

enum { DEVICES = 2, HELD = 24, POOLS = 4, OWN = 2, GREENS = 2, MOST_WALKERS = 4, MOST_PROCESSES = 8 };

/* What a walk may do beside its usual steps: RATION_TEST_WALK names it, with commas. */
enum also {
	GREEN = 1,       /* green contexts */
	RESET = 2,       /* a primary context is reset while other threads have memory in it */
	TWO_DEVICES = 4, /* graphs that allocate on both */
	AUTO_FREE = 8,   /* graphs that free when they are launched again */
	CANCEL = 16,     /* threads that are cancelled */
	REALTIME = 32,   /* walkers of different real-time priorities on one CPU, where that is allowed */
	CLOSE = 64       /* the library's descriptor is closed, and there is no stdin */
};

enum kind {
	NOTHING,
	LINEAR,
	PITCH,
	MANAGED,
	ASYNC,
	POOLED,
	PHYSICAL,
	ARRAY,
	ARRAY3D,
	MIPMAP, /* often */
	MODULE,
	LIBRARY,
	GRAPH,
	KINDS,
	OPENED,
	IMPORTED,
	POOL_POINTER /* another process's */
};

struct thing {
	enum kind kind;
	int device;
	CUcontext context; /* that it was made in */
	CUdeviceptr p;     /* an address; of PHYSICAL and IMPORTED where it is mapped, or 0 */
	void *handle, *other;
	CUmemGenericAllocationHandle memory;
	size_t size;
	int pool;
	int descriptor;     /* IMPORTED: of the memory, plus one; 0: none, or closed */
	bool moved;         /* MANAGED: it is on the device */
	bool again;         /* GRAPH: it can be launched again */
	CUdeviceptr second; /* GRAPH: what it allocated on another device, or 0 */
};

struct walker {
	uint64_t random;
	int process, number;
	struct thing held[HELD];
	struct {
		CUmemoryPool handle;
		unsigned live;
		bool destroyed;
		int device;
	} pool[POOLS];
	CUcontext own[OWN];
	int own_device[OWN];
	struct {
		CUgreenCtx handle;
		CUcontext context;
		int device;
	} green[GREENS];
	unsigned long wrong;
};

/* What all walkers of a process share. */
static struct {
	CUcontext primary[DEVICES];
	bool calm;     /* no contexts, no modules: nothing that is measured afterwards */
	bool trace;    /* say every call */
	unsigned also; /* of enum also */
	struct walker *walkers;
	int count;              /* of them */
	bool alone;             /* one walker: what would be a race otherwise may be done */
	_Atomic bool imported;  /* some memory was: the driver may count it for this process, and no call tells of that */
	uint64_t away[DEVICES]; /* bytes of managed memory that are charged and not on the device */
	unsigned orphans;       /* live allocations of destroyed pools */
	bool settling;          /* there were some since the last synchronisation */
	unsigned contexts[DEVICES];
	unsigned greens[DEVICES];
	int current[DEVICES]; /* the pool that is the device's, plus one; 0: its own */
	int mail[MOST_PROCESSES], processes;
	bool strict; /* contexts and modules come alone: what they take is exact by kind then */
	pthread_rwlock_t measured;
	pthread_mutex_t one; /* of them at a time */
} all = {.measured = PTHREAD_RWLOCK_INITIALIZER, .one = PTHREAD_MUTEX_INITIALIZER};

struct letter {
	enum kind kind;
	CUipcMemHandle ipc;
	CUmemPoolPtrExportData pointer;
	size_t size;
	int device;
};

static const char ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n";

/* The code of the faults that are injected. */
#define UNKNOWN ((CUresult)999)

static unsigned below(struct walker *w, unsigned n)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return (unsigned)((w->random * 0x2545f4914f6cdd1dull >> 33) % n);
}

/* Says whether a call did what it was to do; one that may not fail like that is
 * counted, and told. */
static bool good(struct walker *w, const char *call, CUresult r, bool may_lack)
{
	if (all.trace)
		fprintf(stderr, "%d.%d %d %s\n", w->process, w->number, r, call);
	if (r == CUDA_SUCCESS)
		return true;
	if (r == UNKNOWN || (may_lack && r == CUDA_ERROR_OUT_OF_MEMORY))
		return false;
	fprintf(stderr, "process %d, walker %d: %s returned %d\n", w->process, w->number, call, r);
	w->wrong++;
	return false;
}

/* Around what is told by the driver's count before and after. A step holds the lock
 * for reading. */
static void measure(void)
{
	if (all.strict) {
		pthread_rwlock_unlock(&all.measured);
		pthread_rwlock_wrlock(&all.measured);
	} else {
		pthread_mutex_lock(&all.one);
	}
}

static void measure_end(void)
{
	if (all.strict) {
		pthread_rwlock_unlock(&all.measured);
		pthread_rwlock_rdlock(&all.measured);
	} else {
		pthread_mutex_unlock(&all.one);
	}
}

#define MADE(call) good(w, #call, call, true)
#define DONE(call) good(w, #call, call, false)

static void count(uint64_t *n, int64_t by) { __atomic_fetch_add(n, (uint64_t)by, __ATOMIC_RELAXED); }

static void away(const struct thing *t, int sign) { count(&all.away[t->device], sign * (int64_t)(units_for(t->size) * RATION_UNIT)); }

static bool also(enum also what) { return all.also & what; }

static unsigned also_read(void)
{
	static const char *const names[] = {"green", "reset", "two-devices", "auto-free", "cancel", "real-time", "close"};
	const char *list = getenv("RATION_TEST_WALK");
	unsigned found = 0;
	for (unsigned i = 0; list != NULL && i < sizeof names / sizeof *names; i++)
		for (const char *at = list; (at = strstr(at, names[i])) != NULL; at++)
			if ((at == list || at[-1] == ',') && strchr(",", at[strlen(names[i])]) != NULL)
				found |= 1u << i;
	return found;
}

/* The driver's count is read. Until it is for the first time, a module that takes just
 * what another process gives back meanwhile is not noticed. */
static void look_again(void)
{
	CUcontext current;
	OK(cuCtxGetCurrent(&current));
	OK(cuCtxSetCurrent(all.primary[0]));
	later();
	while (cuCtxSynchronize() != CUDA_SUCCESS)
		;
	OK(cuCtxSetCurrent(current));
}

/* The library does not see that a descriptor is closed: a reading tells it. */
static void close_descriptor(struct thing *t)
{
	if (t->descriptor == 0)
		return;
	close(t->descriptor - 1);
	t->descriptor = 0;
	if (all.alone)
		look_again();
}

/* Goes into one of the contexts there are; *c is the one that what is made belongs to. */
static int enter(struct walker *w, CUcontext *c)
{
	unsigned i = below(w, DEVICES + OWN);
	int device = (int)i;
	unsigned g = also(GREEN) ? below(w, 2 * GREENS) : GREENS;
	if (g < GREENS && w->green[g].handle != NULL) {
		*c = all.primary[w->green[g].device];
		DONE(cuCtxSetCurrent(w->green[g].context));
		return w->green[g].device;
	}
	if (i >= DEVICES && w->own[i - DEVICES] != NULL) {
		*c = w->own[i - DEVICES];
		device = w->own_device[i - DEVICES];
	} else {
		device = (int)(i % DEVICES);
		*c = all.primary[device];
	}
	DONE(cuCtxSetCurrent(*c));
	return device;
}

#endif
