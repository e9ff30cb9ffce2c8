/* An ordinary CUDA program: it is linked with the driver, has a context on device 0
 * and takes and returns memory as it is told. The demo and the self-test start many
 * of it. Whoever else is in the process, it has not heard of.
 *
 * It obeys lines on standard input and ends with it:
 *
 *   init [AT]                    cuInit, and the primary context of device 0; at that
 *                                nanosecond of CLOCK_MONOTONIC, together with others
 *   alloc BYTES, async BYTES     by cuMemAlloc, by cuMemAllocAsync
 *   free, freeall                the newest allocation, or all
 *   churn SEED MOST PIECE PAUSE  take and return up to PIECE bytes at a time, MOST in
 *                                all, every PAUSE microseconds, until the next line
 *   duel BYTES                   take and return these, until the next line
 *   info                         what the device has, by cuMemGetInfo
 *   quit
 *
 * Each is answered by one line: `ok` and figures, `oom` and figures, or `error`, the
 * driver's code and the call. The last figure of all is the longest call, in
 * nanoseconds; churn and duel give requests and refusals before it, info free and
 * total. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What cuda.h would declare. */
typedef int CUresult;
typedef unsigned long long CUdeviceptr;
enum { CUDA_SUCCESS = 0, CUDA_ERROR_OUT_OF_MEMORY = 2 };
CUresult cuInit(unsigned);
CUresult cuDeviceGet(int *, int);
CUresult cuDevicePrimaryCtxRetain(void **, int);
CUresult cuDevicePrimaryCtxRelease_v2(int);
CUresult cuCtxSetCurrent(void *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, void *);
CUresult cuMemFreeAsync(CUdeviceptr, void *);
CUresult cuStreamSynchronize(void *);
CUresult cuMemGetInfo_v2(size_t *, size_t *);

enum {
	UNIT = 512,
	PIECES = 4096,
	LEAST = 100, /* rounds of churn or duel before the next line counts: a machine may be crowded */
	LOOK = 16,   /* rounds between two looks at standard input, where there is no pause */
};

struct piece {
	CUdeviceptr at;
	uint64_t bytes;
	bool async;
};

static struct piece pieces[PIECES];
static size_t count;
static uint64_t longest, requests, refusals;
static bool context;
static const char *failed; /* the call that gave the latest result */

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* CALL makes a call of the driver and sees how long it takes. */
#define CALL(call, ...)                             \
	({                                          \
		uint64_t from = now();              \
		CUresult result = call(__VA_ARGS__); \
		timed(from, result, #call);         \
	})

static CUresult timed(uint64_t from, CUresult result, const char *name)
{
	uint64_t took = now() - from;
	if (took > longest)
		longest = took;
	failed = name;
	return result;
}

static CUresult start(uint64_t at)
{
	struct timespec t = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
	CUresult r = CALL(cuInit, 0);
	int device;
	void *primary;
	if (!r)
		r = CALL(cuDeviceGet, &device, 0);
	if (!r && !context)
		r = CALL(cuDevicePrimaryCtxRetain, &primary, device);
	if (!r && !context)
		r = CALL(cuCtxSetCurrent, primary);
	context = context || !r;
	return r;
}

static CUresult take(uint64_t bytes, bool async)
{
	struct piece p = {.bytes = bytes, .async = async};
	if (count == PIECES)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = async ? CALL(cuMemAllocAsync, &p.at, bytes, NULL) : CALL(cuMemAlloc_v2, &p.at, bytes);
	requests++;
	refusals += r == CUDA_ERROR_OUT_OF_MEMORY;
	if (!r)
		pieces[count++] = p;
	return r;
}

/* give_back returns the newest piece. */
static CUresult give_back(void)
{
	struct piece p = pieces[--count];
	if (!p.async)
		return CALL(cuMemFree_v2, p.at);
	CUresult r = CALL(cuMemFreeAsync, p.at, NULL);
	/* A pool keeps what was freed until somebody waits. */
	return r ? r : CALL(cuStreamSynchronize, NULL);
}

static CUresult give_back_to(size_t left)
{
	CUresult r = CUDA_SUCCESS;
	while (!r && count > left)
		r = give_back();
	return r;
}

static char input[4096];
static size_t filled;

/* waiting says whether there is a next line, or none will come, at the latest after
 * so many microseconds. */
static bool waiting(long pause)
{
	struct pollfd fd = {.fd = STDIN_FILENO, .events = POLLIN};
	struct timespec t = {pause / 1000000, pause % 1000000 * 1000};
	return memchr(input, '\n', filled) || ppoll(&fd, 1, &t, NULL) > 0;
}

/* next reads a line, or says that there is none. */
static bool next(char *line)
{
	char *end;
	while (!(end = memchr(input, '\n', filled))) {
		ssize_t n = read(STDIN_FILENO, input + filled, sizeof input - filled);
		if (n <= 0)
			return false;
		filled += (size_t)n;
	}
	size_t length = (size_t)(end - input);
	memcpy(line, input, length);
	line[length] = '\0';
	filled -= length + 1;
	memmove(input, end + 1, filled);
	return true;
}

static bool over(uint64_t round, long pause)
{
	if (pause)
		return waiting(pause);
	return round >= LEAST && round % LOOK == 0 && waiting(0);
}

/* churn goes up to some figure and down to another, and so on, with what it holds
 * beyond what was there before. What it is refused it does without. */
static CUresult churn(uint64_t seed, uint64_t most, uint64_t piece, long pause)
{
	uint64_t held = 0, goal = 0, random = seed * 2 + 1, before = count;
	CUresult r = CUDA_SUCCESS;
	for (uint64_t round = 1; !r && !over(round, pause); round++) {
		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		uint64_t bytes = (1 + random / 64 % (piece / UNIT)) * UNIT;
		if (random % 8 == 0 && piece > goal - held)
			bytes = goal - held; /* all that is left, to the byte */
		if (held < goal && bytes && held + bytes <= goal && count < PIECES) {
			r = take(bytes, false); /* a pool would take more than it is asked for */
			held += r ? 0 : bytes;
			if (r == CUDA_ERROR_OUT_OF_MEMORY) {
				r = CUDA_SUCCESS;
				goal = held / 2;
			}
		} else if (held > goal && count > before) {
			held -= pieces[count - 1].bytes;
			r = give_back();
		} else {
			goal = random / 64 % (most / UNIT + 1) * UNIT;
			if (random % 5 == 2)
				goal = most;
		}
	}
	return r;
}

static CUresult duel(uint64_t bytes)
{
	CUresult r = CUDA_SUCCESS;
	for (uint64_t round = 1; !r && !over(round, 0); round++) {
		size_t before = count;
		r = take(bytes, false);
		if (r == CUDA_ERROR_OUT_OF_MEMORY)
			r = CUDA_SUCCESS;
		else if (!r)
			r = give_back_to(before);
	}
	return r;
}

enum { FIGURES = 64 };

static void tally(char figures[FIGURES]) { snprintf(figures, FIGURES, " %" PRIu64 " %" PRIu64, requests, refusals); }

static void answer(CUresult r, const char *figures)
{
	if (r && r != CUDA_ERROR_OUT_OF_MEMORY)
		printf("error %d %s\n", r, failed);
	else
		printf("%s%s %" PRIu64 "\n", r ? "oom" : "ok", figures, longest);
	fflush(stdout);
}

/* obey does what a line says, and says whether it could be understood. */
static bool obey(const char *line)
{
	char figures[FIGURES] = "";
	uint64_t a, b, c;
	long pause;
	CUresult r;
	longest = requests = refusals = 0;
	if (!strcmp(line, "init")) {
		r = start(0);
	} else if (sscanf(line, "init %" SCNu64, &a) == 1) {
		r = start(a);
	} else if (sscanf(line, "alloc %" SCNu64, &a) == 1) {
		r = take(a, false);
	} else if (sscanf(line, "async %" SCNu64, &a) == 1) {
		r = take(a, true);
	} else if (!strcmp(line, "free")) {
		r = count ? give_back() : CUDA_SUCCESS;
	} else if (!strcmp(line, "freeall")) {
		r = give_back_to(0);
	} else if (sscanf(line, "churn %" SCNu64 " %" SCNu64 " %" SCNu64 " %ld", &a, &b, &c, &pause) == 4 && c >= UNIT) {
		r = churn(a, b, c, pause);
		tally(figures);
	} else if (sscanf(line, "duel %" SCNu64, &a) == 1) {
		r = duel(a);
		tally(figures);
	} else if (!strcmp(line, "info")) {
		size_t available = 0, total = 0;
		r = CALL(cuMemGetInfo_v2, &available, &total);
		snprintf(figures, FIGURES, " %zu %zu", available, total);
	} else if (!strcmp(line, "quit")) {
		r = give_back_to(0);
		if (!r && context)
			r = CALL(cuDevicePrimaryCtxRelease_v2, 0);
	} else {
		return false;
	}
	answer(r, figures);
	return true;
}

int main(void)
{
	char line[sizeof input];
	while (next(line)) {
		if (!obey(line)) {
			fprintf(stderr, "workload: %s: not a line I know\n", line);
			return 2;
		}
		if (!strcmp(line, "quit"))
			break;
	}
	return 0;
}
