#include "compute/slice.h"

#include <asm/ioctl.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "attach.h"
#include "hooks.h"
#include "interpose.h"
#include "log.h"
#include "region/abi.h"
#include "region/atomics.h"
#include "region/words.h"

/* The control call, as drivers up to 580 have it. */
struct slice_call {
	uint32_t client, object, command, flags;
	uint64_t parameter; /* an address */
	uint32_t parameter_size, status;
};
_Static_assert(sizeof(struct slice_call) == 32, "ABI");

#define SLICE_TYPE 'F'
#define SLICE_NUMBER 0x2a
#define SLICE_REQUEST _IOWR(SLICE_TYPE, SLICE_NUMBER, struct slice_call)
enum { SLICE_COMMAND_START = (int)0xa06c0101, SLICE_COMMAND_SET = (int)0xa06c0103, SLICE_COMMAND_GET = (int)0xa06c0104 };

/* A group of channels, identified by the file, client and object of the driver's call. The program
 * may close the descriptor and open another file with its number, so dev, ino and rdev identify the
 * file. */
struct slice_group {
	int fd; /* -1: no group is known */
	uint32_t client, object;
	uint64_t dev, ino, rdev;
	uint64_t native_us; /* the driver's own slice */
	uint64_t slice_us;  /* in force */
};

/* A context. place tells which thread may use the other fields: a thread changes it from READY to
 * BUSY and back, and skips an entry that is BUSY. A context that ends meanwhile makes it ENDED, and
 * the thread that had it BUSY frees it. handle, device, object, work_us, anew and paused are
 * atomic and are read without that. */
enum { PLACE_FREE, PLACE_READY, PLACE_BUSY, PLACE_ENDED };
static struct slice_context {
	uint32_t place;
	uint32_t paused; /* the driver may be ending it */
	uint32_t state;  /* RATION_SLICE_...; atomic */
	CUcontext handle;
	struct device *device;
	uint32_t object;  /* of its group; 0: not known */
	uint64_t work_us; /* when it last had work; 0: never */
	uint64_t sleeps;  /* how often the job had slept when its slice was set */
	uint64_t anew;    /* its group was made anew: the new descriptor << 32 | the new client; 0: it was not */
	struct slice_group group;
} slice_contexts[256]; /* the texts of RATION_SLICE_CROWDED contain this number */
enum { SLICE_CONTEXTS = sizeof slice_contexts / sizeof *slice_contexts };
static uint32_t slice_count; /* how many entries were ever used; atomic */

/* By the region's index of a device: not 0 if a context on it has found no free entry. Such a
 * context keeps the slice that it was made with, whatever the job changes. It gets an entry when it
 * next has work, if one is free by then. Atomic. */
static uint32_t slice_crowded[RATION_DEVICES];

/* By the region's index of a device: the slice in microseconds that the driver was last seen to have
 * for a context of this process; 0: not known. Atomic. */
static uint64_t slice_in_force[RATION_DEVICES];

/* A context that this thread is making. */
static __thread struct {
	struct device *device; /* NULL: none */
	uint64_t want;
	unsigned state;  /* the worst state of the calls that were seen */
	unsigned groups; /* how many groups are known: that of the context, and that of a green context */
	struct slice_group group[2];
} slice_making __attribute__((tls_model("initial-exec")));

static uint32_t slice_complained; /* reasons that were logged, one bit each; atomic */

void slices_reset(void)
{
	memset(slice_contexts, 0, sizeof slice_contexts);
	memset(&slice_making, 0, sizeof slice_making);
	memset(slice_crowded, 0, sizeof slice_crowded);
	memset(slice_in_force, 0, sizeof slice_in_force);
	slice_count = 0;
	slice_complained = 0;
}

/* slice_stat is fstat. By number: the function's name depends on the C library's age. */
static bool slice_stat(int fd, struct stat *st) { return syscall(SYS_fstat, fd, st) == 0; }

static bool slice_same_file(const struct slice_group *g)
{
	struct stat st;
	return slice_stat(g->fd, &st) && st.st_dev == g->dev && st.st_ino == g->ino && st.st_rdev == g->rdev;
}

/* slice_command makes a control call of our own. It returns true if it succeeded. */
static bool slice_command(ioctl_function next, const struct slice_group *g, uint32_t command, uint64_t *value)
{
	struct slice_call c = {.client = g->client,
			       .object = g->object,
			       .command = command,
			       .parameter = (uintptr_t)value,
			       .parameter_size = sizeof *value};
	return next(g->fd, SLICE_REQUEST, &c) == 0 && c.status == 0;
}

/* slice_kept reads the slice back from the driver, and returns RATION_SLICE_KEPT if it is the one
 * that we set. */
static unsigned slice_kept(ioctl_function next, const struct slice_group *g)
{
	uint64_t has = 0;
	if (!slice_command(next, g, (uint32_t)SLICE_COMMAND_GET, &has))
		return RATION_SLICE_UNKNOWN;
	return has == g->slice_us ? RATION_SLICE_KEPT : RATION_SLICE_LOST;
}

uint64_t slice_of(const struct device *d) { return __atomic_load_n(&slice_in_force[d->index], __ATOMIC_RELAXED); }

static void slice_note(const struct device *d, const struct slice_group *g, unsigned state)
{
	__atomic_store_n(&slice_in_force[d->index], state == RATION_SLICE_KEPT ? g->slice_us : 0, __ATOMIC_RELAXED);
}

void slice_watch(struct device *d, uint64_t want)
{
	memset(&slice_making, 0, sizeof slice_making);
	slice_making.want = want;
	slice_making.state = RATION_SLICE_UNSEEN;
	slice_making.group[0].fd = slice_making.group[1].fd = -1;
	slice_making.device = d;
}

/* slice_remember fills in *g with the group that a call was for. It returns false if it could not. */
static bool slice_remember(struct slice_group *g, int fd, const struct slice_call *c, uint64_t native, uint64_t value)
{
	struct stat st;
	if (!slice_stat(fd, &st))
		return false;
	*g = (struct slice_group){.fd = fd,
				  .client = c->client,
				  .object = c->object,
				  .dev = st.st_dev,
				  .ino = st.st_ino,
				  .rdev = st.st_rdev,
				  .native_us = native,
				  .slice_us = value};
	return true;
}

/* slice_replace makes the control call with our value. It changes only the status in the caller's
 * memory. It returns false if the driver refused; then the caller makes the original call. */
static bool slice_replace(ioctl_function next, int fd, struct slice_call *original, uint64_t value)
{
	struct slice_call copy = *original;
	copy.parameter = (uintptr_t)&value;
	if (next(fd, SLICE_REQUEST, &copy) != 0 || copy.status != 0)
		return false;
	original->status = copy.status;
	return true;
}

/* slice_seen keeps the worst state of the control calls that were seen. */
static void slice_seen(unsigned state)
{
	if (slice_making.state == RATION_SLICE_UNSEEN || state > slice_making.state)
		slice_making.state = state;
}

/* slice_catch makes the control call that sets the slice of a new context, with our value if
 * possible. */
static int slice_catch(ioctl_function next, int fd, struct slice_call *c)
{
	struct slice_group *g = &slice_making.group[slice_making.groups];
	uint64_t native;
	memcpy(&native, (const void *)(uintptr_t)c->parameter, sizeof native);
	uint64_t want = slice_making.want ? slice_making.want : native;
	int saved = errno, result = 0;
	bool replaced = want != native && slice_replace(next, fd, c, want);
	if (!replaced) {
		errno = saved;
		result = next(fd, SLICE_REQUEST, c);
		saved = errno;
	}
	if (result != 0 || c->status != 0 || (want != native && !replaced))
		slice_seen(RATION_SLICE_REFUSED);
	else if (!slice_remember(g, fd, c, native, want))
		slice_seen(RATION_SLICE_UNKNOWN);
	else
		slice_seen(slice_kept(next, g));
	slice_making.groups += g->fd >= 0;
	slice_note(slice_making.device, g, slice_making.state);
	errno = saved;
	return result;
}

static bool slice_move(struct slice_context *c, uint32_t from, uint32_t to)
{
	return __atomic_compare_exchange_n(&c->place, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

static bool slice_take(struct slice_context *c) { return slice_move(c, PLACE_READY, PLACE_BUSY); }

static void slice_follow(struct slice_context *c, ioctl_function next);

/* slice_let_go makes an entry READY again, or frees it if its context has ended meanwhile. If its
 * group was made anew meanwhile, it follows that: slice_started stores the word before it tries to
 * take the entry, so one of the two sees it. */
static void slice_let_go(struct slice_context *c)
{
	while (slice_move(c, PLACE_BUSY, PLACE_READY)) {
		if (likely(!__atomic_load_n(&c->anew, __ATOMIC_SEQ_CST)) || !slice_take(c))
			return;
		slice_follow(c, (ioctl_function)interpose_ioctl());
	}
	__atomic_store_n(&c->place, PLACE_FREE, __ATOMIC_SEQ_CST); /* it was ENDED */
}

static struct slice_context *slice_find(CUcontext handle)
{
	/* Acquire: pairs with the stores of the count and of the handle in slice_add. */
	uint32_t n = __atomic_load_n(&slice_count, __ATOMIC_ACQUIRE);
	for (uint32_t i = 0; handle && i < n; i++)
		if (__atomic_load_n(&slice_contexts[i].handle, __ATOMIC_ACQUIRE) == handle)
			return &slice_contexts[i];
	return NULL;
}

/* slice_sleep returns the region's word that says whether the job sleeps. */
static uint64_t slice_sleep(void) { return load_acquire(&attach_region()->m->header.sleep); }

static bool slice_add(CUcontext handle, struct device *d, const struct slice_group *g, unsigned state)
{
	for (uint32_t i = 0; i < SLICE_CONTEXTS; i++) {
		struct slice_context *c = &slice_contexts[i];
		uint32_t place = PLACE_FREE;
		if (!__atomic_compare_exchange_n(&c->place, &place, PLACE_BUSY, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			continue;
		c->group = *g;
		c->sleeps = sleep_count(slice_sleep());
		__atomic_store_n(&c->object, g->fd < 0 ? 0 : g->object, __ATOMIC_RELAXED);
		__atomic_store_n(&c->anew, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&c->paused, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&c->work_us, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&c->state, state, __ATOMIC_RELAXED);
		__atomic_store_n(&c->device, d, __ATOMIC_RELAXED);
		__atomic_store_n(&c->handle, handle, __ATOMIC_RELEASE);
		for (uint32_t n = __atomic_load_n(&slice_count, __ATOMIC_RELAXED); n <= i;)
			if (__atomic_compare_exchange_n(&slice_count, &n, i + 1, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
				break;
		slice_let_go(c);
		return true;
	}
	__atomic_store_n(&slice_crowded[d->index], 1, __ATOMIC_RELAXED);
	return false;
}

/* slice_is_crowded returns true if a context on a device may be without an entry: one has found
 * none, and none is free yet. */
static bool slice_is_crowded(const struct device *d)
{
	uint32_t *crowded = &slice_crowded[d->index];
	if (likely(!__atomic_load_n(crowded, __ATOMIC_RELAXED)))
		return false;
	for (uint32_t i = 0; i < SLICE_CONTEXTS; i++)
		if (__atomic_load_n(&slice_contexts[i].place, __ATOMIC_RELAXED) == PLACE_FREE) {
			__atomic_store_n(crowded, 0, __ATOMIC_RELAXED);
			return false;
		}
	return true;
}

unsigned slice_made(CUcontext whole, CUcontext part)
{
	struct device *d = slice_making.device;
	unsigned state = slice_making.state, next = 0;
	slice_making.device = NULL;
	if (!d || (!whole && !part))
		return RATION_SLICE_KEPT;
	if (!whole && state == RATION_SLICE_UNSEEN)
		state = RATION_SLICE_KEPT;
	/* A primary context always has the same handle, and can be current, and so be in the list,
	 * while it is not active. */
	slice_forget(whole);
	slice_forget(part);
	if (whole && !slice_add(whole, d, &slice_making.group[next++], state))
		return RATION_SLICE_CROWDED;
	if (part && !slice_add(part, d, &slice_making.group[next], state))
		return RATION_SLICE_CROWDED;
	return state;
}

void slice_add_unseen(CUcontext handle, struct device *d)
{
	struct slice_group none = {.fd = -1};
	slice_add(handle, d, &none, RATION_SLICE_UNSEEN);
}

void slice_pause(CUcontext handle)
{
	struct slice_context *c = slice_find(handle);
	if (c)
		__atomic_store_n(&c->paused, 1, __ATOMIC_SEQ_CST);
}

void slice_resume(CUcontext handle)
{
	struct slice_context *c = slice_find(handle);
	if (c)
		__atomic_store_n(&c->paused, 0, __ATOMIC_SEQ_CST);
}

void slice_forget(CUcontext handle)
{
	struct slice_context *c = slice_find(handle);
	/* One thread of those that end the context. */
	if (!c || !__atomic_compare_exchange_n(&c->handle, &handle, NULL, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		return;
	__atomic_store_n(&c->work_us, 0, __ATOMIC_RELAXED);
	while (!slice_move(c, PLACE_READY, PLACE_FREE) && !slice_move(c, PLACE_BUSY, PLACE_ENDED))
		; /* it went from one to the other between the two */
}

struct device *slice_sign(CUcontext handle, uint64_t now_us)
{
	struct slice_context *c = slice_find(handle);
	if (!c)
		return NULL;
	struct device *d = __atomic_load_n(&c->device, __ATOMIC_RELAXED);
	if (now_us)
		__atomic_store_n(&c->work_us, now_us, __ATOMIC_RELAXED);
	return d;
}

unsigned slice_workers(const struct device *d, uint64_t since_us)
{
	unsigned workers = 0;
	uint32_t n = __atomic_load_n(&slice_count, __ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < n; i++) {
		const struct slice_context *c = &slice_contexts[i];
		uint64_t work = __atomic_load_n(&c->work_us, __ATOMIC_RELAXED);
		workers += __atomic_load_n(&c->handle, __ATOMIC_ACQUIRE) && __atomic_load_n(&c->device, __ATOMIC_RELAXED) == d && work &&
			   work >= since_us;
	}
	return workers;
}

/* slice_put sets a context's slice. The caller has the entry BUSY. */
static void slice_put(struct slice_context *c, ioctl_function next, uint64_t value, uint64_t sleep)
{
	struct slice_group *g = &c->group;
	uint64_t before = g->slice_us;
	unsigned state = RATION_SLICE_UNSEEN;
	if (slice_same_file(g)) {
		g->slice_us = value;
		state = slice_command(next, g, (uint32_t)SLICE_COMMAND_SET, &value) ? slice_kept(next, g) : RATION_SLICE_REFUSED;
	}
	/* The driver may have begun to end the context, or the job to sleep: then its answer means nothing. */
	if (state != RATION_SLICE_KEPT && (__atomic_load_n(&c->paused, __ATOMIC_SEQ_CST) ||
					   __atomic_load_n(&c->place, __ATOMIC_SEQ_CST) == PLACE_ENDED || slice_sleep() != sleep)) {
		g->slice_us = before;
		return;
	}
	c->sleeps = sleep_count(sleep);
	if (state != RATION_SLICE_KEPT)
		g->fd = -1;
	slice_note(c->device, g, state);
	__atomic_store_n(&c->state, state, __ATOMIC_RELAXED);
}

/* slice_follow moves on to the group that was made anew for a context, and gives it the slice that
 * the old one had. The caller has the entry BUSY. */
static void slice_follow(struct slice_context *c, ioctl_function next)
{
	uint64_t anew = __atomic_exchange_n(&c->anew, 0, __ATOMIC_SEQ_CST), value = c->group.slice_us, ignored;
	struct slice_group *g = &c->group;
	struct slice_call call = {.client = (uint32_t)anew, .object = g->object};
	int fd = (int)(anew >> 32);
	/* The old group exists: the new one is of another client of the driver in this process. */
	if (!anew || (g->client != call.client && slice_same_file(g) && slice_command(next, g, (uint32_t)SLICE_COMMAND_GET, &ignored)))
		return;
	if (!slice_remember(g, fd, &call, g->native_us, value))
		g->fd = -1;
	slice_put(c, next, value, slice_sleep());
}

/* slice_started is called when the driver has started a group of channels. When a job wakes, the
 * driver makes the groups of all contexts anew, by a thread of its own: on another descriptor, for
 * another client, with the same object, and with the kernel driver's slice, not libcuda's. */
static void slice_started(int fd, const struct slice_call *call)
{
	struct slice_context *found = NULL;
	uint32_t n = __atomic_load_n(&slice_count, __ATOMIC_ACQUIRE);
	int saved = errno;
	for (uint32_t i = 0; i < n; i++) {
		struct slice_context *c = &slice_contexts[i];
		if (!__atomic_load_n(&c->handle, __ATOMIC_ACQUIRE) || __atomic_load_n(&c->object, __ATOMIC_RELAXED) != call->object)
			continue;
		if (found)
			return; /* which of the two it is cannot be told */
		found = c;
	}
	if (!found)
		return;
	__atomic_store_n(&found->anew, (uint64_t)(uint32_t)fd << 32 | call->client, __ATOMIC_SEQ_CST);
	/* slice_let_go follows, here or in the thread that has the entry. */
	if (slice_take(found))
		slice_let_go(found);
	errno = saved;
}

int slice_control(ioctl_function next, int fd, unsigned long request, void *arg)
{
	struct slice_call *c = arg;
	if (likely(_IOC_TYPE(request) != SLICE_TYPE || _IOC_NR(request) != SLICE_NUMBER) || !c)
		return next(fd, request, arg);
	if (!slice_making.device) {
		int result = next(fd, request, arg);
		/* Only if it succeeded is there an argument to read. */
		if (result == 0 && request == SLICE_REQUEST && c->command == (uint32_t)SLICE_COMMAND_START && c->status == 0 && attach_on())
			slice_started(fd, c);
		return result;
	}
	if (request != SLICE_REQUEST) {
		slice_seen(RATION_SLICE_UNKNOWN); /* control calls of another layout */
		return next(fd, request, arg);
	}
	if (c->command != (uint32_t)SLICE_COMMAND_SET)
		return next(fd, request, arg);
	if (c->flags || c->parameter_size != sizeof(uint64_t) || !c->parameter || slice_making.groups == 2) {
		slice_seen(RATION_SLICE_UNKNOWN);
		return next(fd, request, arg);
	}
	return slice_catch(next, fd, c);
}

/* slice_set_one changes one context's slice, unless the job sleeps. A context that the driver has
 * brought back may have the driver's own slice. The caller has the entry BUSY. */
static void slice_set_one(struct slice_context *c, uint64_t want)
{
	struct slice_group *g = &c->group;
	ioctl_function next = (ioctl_function)interpose_ioctl();
	slice_follow(c, next);
	uint64_t value = want ? want : g->native_us, sleep = slice_sleep();
	bool known = value == g->native_us || c->sleeps == sleep_count(sleep);
	if (g->fd >= 0 && !(known && g->slice_us == value) && sleep_state(sleep) == RATION_AWAKE &&
	    !__atomic_load_n(&c->paused, __ATOMIC_SEQ_CST))
		slice_put(c, next, value, sleep);
}

unsigned slice_set(const struct device *d, uint64_t want)
{
	unsigned worst = RATION_SLICE_NONE;
	uint32_t n = __atomic_load_n(&slice_count, __ATOMIC_ACQUIRE);
	int saved = errno;
	for (uint32_t i = 0; i < n; i++) {
		struct slice_context *c = &slice_contexts[i];
		if (!__atomic_load_n(&c->handle, __ATOMIC_ACQUIRE) || __atomic_load_n(&c->device, __ATOMIC_RELAXED) != d)
			continue;
		if (slice_take(c)) {
			/* The entry may belong to another context by now. */
			if (__atomic_load_n(&c->handle, __ATOMIC_ACQUIRE) && __atomic_load_n(&c->device, __ATOMIC_RELAXED) == d)
				slice_set_one(c, want);
			slice_let_go(c);
		}
		unsigned state = __atomic_load_n(&c->state, __ATOMIC_RELAXED);
		worst = state > worst ? state : worst;
	}
	errno = saved;
	return slice_is_crowded(d) ? RATION_SLICE_CROWDED : worst;
}

const char *slice_state_text(unsigned state)
{
	switch (state) {
	case RATION_SLICE_UNSEEN: return "a context was made without the call that sets its time slice, or its file was closed";
	case RATION_SLICE_UNKNOWN: return "the driver's call that sets a time slice is not the one that is known";
	case RATION_SLICE_REFUSED: return "the driver refused to set a time slice";
	case RATION_SLICE_LOST: return "the driver took a time slice and has another";
	case RATION_SLICE_CROWDED: return "it has more than 256 contexts, and those beyond are not followed";
	default: return "no reason";
	}
}

void slice_complain(const struct device *d, unsigned state)
{
	uint32_t bit = 1u << state;
	if (state <= RATION_SLICE_KEPT || __atomic_fetch_or(&slice_complained, bit, __ATOMIC_RELAXED) & bit)
		return;
	log_warn("device %u: a share of its time or a priority is not enforced in this process: %s (ration doctor tells more)", d->index,
		 slice_state_text(state));
}
