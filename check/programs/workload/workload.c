/* An ordinary CUDA program: it is linked with the driver, has a context on device 0, and
 * allocates and frees memory on command. The demo, the self-test and the GPU tests start
 * many of it. It does not know of the library that is preloaded into it.
 *
 * It reads commands from standard input, one a line, and ends with the input:
 *
 *   init [AT]                    cuInit, and the primary context of device 0; at that
 *                                nanosecond of CLOCK_MONOTONIC, together with others
 *   alloc BYTES, async BYTES     allocate by cuMemAlloc, by cuMemAllocAsync
 *   free, freeall                free the newest allocation, or all
 *   churn SEED MOST PIECE PAUSE  allocate and free up to PIECE bytes at a time, MOST in
 *                                all, every PAUSE microseconds, until the next command
 *   duel BYTES                   allocate and free BYTES, until the next command
 *   time COUNT BYTES             allocate and free BYTES, and ask cuMemGetInfo, COUNT times
 *   info                         cuMemGetInfo
 *   quit                         free all, and end
 *
 * It answers each with one line: `ok` and numbers, `oom` and numbers, or `error`, the
 * driver's code and the call. The last number is the time of the longest driver call, in
 * nanoseconds; before it, churn and duel have requests and refusals, info has free and
 * total bytes, and time the median nanoseconds of cuMemAlloc, cuMemFree and cuMemGetInfo. */
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

#include "cuda_api.h"

enum {
	UNIT = 512,
	PIECES = 4096,
	LEAST_ROUNDS = 100, /* of churn or duel, also if the next command is there at once */
	POLL_ROUNDS = 16,   /* between two polls of standard input, if there is no pause */
};

struct piece {
	CUdeviceptr at;
	uint64_t bytes;
	bool async;
};

static struct piece pieces[PIECES];
static size_t count;
static uint64_t longest, requests, refusals; /* of the present command; longest in nanoseconds */
static bool context;                         /* there is one, and it is current */
static const char *last_call;

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* CALL makes a driver call and records its time. */
#define CALL(call, ...)                              \
	({                                           \
		uint64_t from = now();               \
		CUresult result = call(__VA_ARGS__); \
		timed(from, result, #call);          \
	})

static CUresult timed(uint64_t from, CUresult result, const char *name)
{
	uint64_t took = now() - from;
	if (took > longest)
		longest = took;
	last_call = name;
	return result;
}

static CUresult start(uint64_t at)
{
	struct timespec t = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
	CUresult r = CALL(cuInit, 0);
	CUdevice device;
	CUcontext primary;
	if (!r)
		r = CALL(cuDeviceGet, &device, 0);
	if (!r && !context)
		r = CALL(cuDevicePrimaryCtxRetain, &primary, device);
	if (!r && !context)
		r = CALL(cuCtxSetCurrent, primary);
	context = context || !r;
	return r;
}

static CUresult allocate(uint64_t bytes, bool async)
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

/* free_newest frees the newest piece. */
static CUresult free_newest(void)
{
	struct piece p = pieces[--count];
	if (!p.async)
		return CALL(cuMemFree_v2, p.at);
	CUresult r = CALL(cuMemFreeAsync, p.at, NULL);
	/* A pool keeps what was freed until the stream is synchronised. */
	return r ? r : CALL(cuStreamSynchronize, NULL);
}

/* free_down_to frees pieces until so many are left. */
static CUresult free_down_to(size_t left)
{
	CUresult r = CUDA_SUCCESS;
	while (!r && count > left)
		r = free_newest();
	return r;
}

static char input[4096];
static size_t filled;

/* has_input waits for so many microseconds, and returns whether there is a next line, or
 * the input has ended. */
static bool has_input(long pause)
{
	struct pollfd fd = {.fd = STDIN_FILENO, .events = POLLIN};
	struct timespec t = {pause / 1000000, pause % 1000000 * 1000};
	return memchr(input, '\n', filled) || ppoll(&fd, 1, &t, NULL) > 0;
}

/* next_line reads a line. It returns false at the end of the input. */
static bool next_line(char *line)
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

/* interrupted returns whether churn or duel must end. It makes the pause between rounds. */
static bool interrupted(uint64_t round, long pause)
{
	if (pause)
		return has_input(pause);
	return round >= LEAST_ROUNDS && round % POLL_ROUNDS == 0 && has_input(0);
}

/* churn allocates up to a random goal, frees down to another one, and so on, beside the
 * pieces that were there before. A refusal is no error. */
static CUresult churn(uint64_t seed, uint64_t most, uint64_t piece, long pause)
{
	uint64_t held = 0, goal = 0, random = seed * 2 + 1, before = count;
	CUresult r = CUDA_SUCCESS;
	for (uint64_t round = 1; !r && !interrupted(round, pause); round++) {
		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		uint64_t bytes = (1 + random / 64 % (piece / UNIT)) * UNIT;
		if (random % 8 == 0 && piece > goal - held)
			bytes = goal - held; /* exactly what is left to the goal */
		if (held < goal && bytes && held + bytes <= goal && count < PIECES) {
			r = allocate(bytes, false); /* a pool would reserve more than is asked for */
			held += r ? 0 : bytes;
			if (r == CUDA_ERROR_OUT_OF_MEMORY) {
				r = CUDA_SUCCESS;
				goal = held / 2;
			}
		} else if (held > goal && count > before) {
			held -= pieces[count - 1].bytes;
			r = free_newest();
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
	for (uint64_t round = 1; !r && !interrupted(round, 0); round++) {
		size_t before = count;
		r = allocate(bytes, false);
		if (r == CUDA_ERROR_OUT_OF_MEMORY)
			r = CUDA_SUCCESS;
		else if (!r)
			r = free_down_to(before);
	}
	return r;
}

enum { NUMBERS = 64 /* bytes of text */, SAMPLES = 4096 };

/* calls is the times of one kind of call, in nanoseconds. */
struct calls {
	uint64_t sample[SAMPLES];
};

static int compare_times(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static uint64_t median(struct calls *c, size_t n)
{
	qsort(c->sample, n, sizeof c->sample[0], compare_times);
	return c->sample[n / 2];
}

/* time_calls times n calls of each kind, one by one. */
static CUresult time_calls(size_t n, uint64_t bytes, char numbers[NUMBERS])
{
	static struct calls alloc, back, info;
	CUresult r = CUDA_SUCCESS;
	for (size_t i = 0; !r && i < n; i++) {
		CUdeviceptr at;
		size_t available, total;
		uint64_t from = now(), allocated, freed;
		r = cuMemAlloc_v2(&at, bytes);
		allocated = now();
		last_call = "cuMemAlloc_v2";
		if (r)
			break;
		r = cuMemFree_v2(at);
		freed = now();
		last_call = "cuMemFree_v2";
		if (!r)
			r = CALL(cuMemGetInfo_v2, &available, &total);
		info.sample[i] = now() - freed;
		alloc.sample[i] = allocated - from;
		back.sample[i] = freed - allocated;
	}
	if (!r)
		snprintf(numbers, NUMBERS, " %" PRIu64 " %" PRIu64 " %" PRIu64, median(&alloc, n), median(&back, n), median(&info, n));
	return r;
}

static void print_requests(char numbers[NUMBERS]) { snprintf(numbers, NUMBERS, " %" PRIu64 " %" PRIu64, requests, refusals); }

static void answer(CUresult r, const char *numbers)
{
	if (r && r != CUDA_ERROR_OUT_OF_MEMORY)
		printf("error %d %s\n", r, last_call);
	else
		printf("%s%s %" PRIu64 "\n", r ? "oom" : "ok", numbers, longest);
	fflush(stdout);
}

/* carry_out carries out a command. It returns false if there is no such command. */
static bool carry_out(const char *line)
{
	char numbers[NUMBERS] = "";
	uint64_t a, b, c;
	long pause;
	CUresult r;
	longest = requests = refusals = 0;
	if (!strcmp(line, "init")) {
		r = start(0);
	} else if (sscanf(line, "init %" SCNu64, &a) == 1) {
		r = start(a);
	} else if (sscanf(line, "alloc %" SCNu64, &a) == 1) {
		r = allocate(a, false);
	} else if (sscanf(line, "async %" SCNu64, &a) == 1) {
		r = allocate(a, true);
	} else if (!strcmp(line, "free")) {
		r = count ? free_newest() : CUDA_SUCCESS;
	} else if (!strcmp(line, "freeall")) {
		r = free_down_to(0);
	} else if (sscanf(line, "churn %" SCNu64 " %" SCNu64 " %" SCNu64 " %ld", &a, &b, &c, &pause) == 4 && c >= UNIT) {
		r = churn(a, b, c, pause);
		print_requests(numbers);
	} else if (sscanf(line, "duel %" SCNu64, &a) == 1) {
		r = duel(a);
		print_requests(numbers);
	} else if (sscanf(line, "time %" SCNu64 " %" SCNu64, &a, &b) == 2 && a > 0 && a <= SAMPLES) {
		r = time_calls((size_t)a, b, numbers);
	} else if (!strcmp(line, "info")) {
		size_t available = 0, total = 0;
		r = CALL(cuMemGetInfo_v2, &available, &total);
		snprintf(numbers, NUMBERS, " %zu %zu", available, total);
	} else if (!strcmp(line, "quit")) {
		r = free_down_to(0);
		if (!r && context)
			r = CALL(cuDevicePrimaryCtxRelease_v2, 0);
	} else {
		return false;
	}
	answer(r, numbers);
	return true;
}

int main(void)
{
	char line[sizeof input];
	while (next_line(line)) {
		if (!carry_out(line)) {
			fprintf(stderr, "workload: %s: no such command\n", line);
			return 2;
		}
		if (!strcmp(line, "quit"))
			break;
	}
	return 0;
}
