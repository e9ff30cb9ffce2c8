#define _GNU_SOURCE
#include "faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "knobs.h"
#include "report.h"

enum fault_kind { FAULT_FAIL, FAULT_DIE, FAULT_SLOW };

struct fault {
	char name[64];
	enum fault_kind kind;
	unsigned long number; /* the call that fails or dies, 0 for every one; of SLOW microseconds */
	unsigned long calls;  /* so far */
	CUresult code;        /* of FAIL */
	bool after;           /* of DIE and SLOW: once it has taken effect */
};

enum { MAX_FAULTS = 16 };

static struct fault faults[MAX_FAULTS];
static unsigned fault_count;
static pthread_once_t fault_once = PTHREAD_ONCE_INIT;

/* NAME:NUMBER[:EXTRA] */
static int fault_parse_one(char *text, enum fault_kind kind, struct fault *f)
{
	char *save = NULL;
	char *name = strtok_r(text, ":", &save);
	char *number = strtok_r(NULL, ":", &save);
	char *extra = strtok_r(NULL, ":", &save);
	char *end;

	if (name == NULL || number == NULL || strlen(name) >= sizeof f->name)
		return -1;
	*f = (struct fault){.kind = kind, .code = CUDA_ERROR_OUT_OF_MEMORY, .after = kind == FAULT_SLOW};
	strcpy(f->name, name);
	f->number = strtoul(number, &end, 10);
	if (end == number || *end != '\0')
		return -1;
	if (extra == NULL)
		return 0;
	if (kind != FAULT_FAIL) {
		f->after = strcmp(extra, "after") == 0;
		return f->after || strcmp(extra, "before") == 0 ? 0 : -1;
	}
	f->code = (CUresult)strtoul(extra, &end, 10);
	return *end == '\0' ? 0 : -1;
}

static void fault_parse(const char *knob, enum fault_kind kind)
{
	const char *value = getenv(knob);
	char *copy, *save = NULL;

	if (value == NULL || (copy = strdup(value)) == NULL)
		return;
	for (char *one = strtok_r(copy, ",", &save); one != NULL; one = strtok_r(NULL, ",", &save)) {
		if (fault_count == MAX_FAULTS || fault_parse_one(one, kind, &faults[fault_count]) != 0)
			report_note("%s=%s cannot be read (try cuMemAlloc:3)", knob, value);
		else
			fault_count++;
	}
	free(copy);
}

static void fault_load(void)
{
	fault_parse("FAKEGPU_FAIL", FAULT_FAIL);
	fault_parse("FAKEGPU_DIE", FAULT_DIE);
	fault_parse("FAKEGPU_SLOW", FAULT_SLOW);
	if (fault_count > 0 || knobs()->latency_us > 0 || knobs()->checkpoint)
		store_relaxed(&gates_armed, true);
}

void faults_load(void) { pthread_once(&fault_once, fault_load); }

/* A call of the kernel, for nothing, by the ioctl that libcuda would bind to. */
static void fault_call_kernel(void)
{
	int keep = errno;
	int (*call)(int, unsigned long, ...) = (int (*)(int, unsigned long, ...))dlsym(RTLD_DEFAULT, "ioctl");
	if (call != NULL)
		call(-1, 0, NULL);
	errno = keep;
}

/* A sleep is good for no less than some 60 us, so the last stretch is spun. A driver that takes
 * long calls the kernel all the while, which a preloaded library sees. */
enum { FAULT_STRETCH = 10000 };
static void fault_delay(unsigned long us)
{
	struct timespec now, end;
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_nsec += (long)(us % 1000000) * 1000;
	end.tv_sec += (time_t)(us / 1000000) + end.tv_nsec / 1000000000;
	end.tv_nsec %= 1000000000;
	for (; us > FAULT_STRETCH; us -= FAULT_STRETCH) {
		nanosleep(&(struct timespec){0, FAULT_STRETCH * 1000}, NULL);
		fault_call_kernel();
	}
	if (us > 200)
		nanosleep(&(struct timespec){0, (long)(us - 100) * 1000}, NULL);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec));
}

static void fault_die(void)
{
	kill(getpid(), SIGKILL);
	for (;;)
		pause();
}

static void fault_wait_here(const char *name, bool after)
{
	for (unsigned i = 0; i < fault_count; i++)
		if (faults[i].kind == FAULT_SLOW && faults[i].after == after && strcmp(faults[i].name, name) == 0)
			fault_delay(faults[i].number);
	gate_pass(name, after);
}

CUresult fault_before(const char *name, bool *die_after)
{
	CUresult result = CUDA_SUCCESS;
	if (knobs()->latency_us > 0)
		fault_delay(knobs()->latency_us);
	fault_wait_here(name, false);
	for (unsigned i = 0; i < fault_count; i++) {
		struct fault *f = &faults[i];
		if (f->kind == FAULT_SLOW || strcmp(f->name, name) != 0)
			continue;
		if (add_relaxed(&f->calls, 1) != f->number && f->number != 0)
			continue;
		if (f->kind == FAULT_DIE && !f->after)
			fault_die();
		if (f->kind == FAULT_DIE)
			*die_after = true;
		else
			result = f->code;
	}
	return result;
}

CUresult fault_after(const char *name, CUresult result, bool die_after)
{
	if (die_after)
		fault_die();
	fault_wait_here(name, true);
	return result;
}

void fault_inside(const char *point)
{
	int cancel;
	if (__builtin_expect(!load_relaxed(&gates_armed), 1))
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	fault_wait_here(point, true);
	pthread_setcancelstate(cancel, &cancel);
}
