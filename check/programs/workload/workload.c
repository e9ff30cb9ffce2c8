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
 *   fill SEED, same SEED         write numbers to all allocations, and compare them
 *   use THREADS                  write to and read from all allocations with so many threads,
 *                                until the next command
 *   fork                         a child that lives as long as the program, and has no CUDA
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
#include <pthread.h>
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

/* Contents: word n of piece i, for a seed. */
enum { CHUNK = 1 << 20 };

static uint64_t word_of(uint64_t seed, size_t i, uint64_t n) { return (seed + i * 1000003 + n) * UINT64_C(0x9e3779b97f4a7c15); }

/* contents writes numbers to all pieces, or compares them: CUDA_ERROR_INVALID_VALUE if one differs. */
static CUresult contents(uint64_t seed, bool compare)
{
	static uint64_t is[CHUNK / 8], expected[CHUNK / 8];
	CUresult r = CUDA_SUCCESS;
	for (size_t i = 0; !r && i < count; i++)
		for (uint64_t at = 0; !r && at < pieces[i].bytes; at += CHUNK) {
			uint64_t bytes = pieces[i].bytes - at < CHUNK ? pieces[i].bytes - at : CHUNK;
			for (uint64_t n = 0; n < CHUNK / 8; n++)
				expected[n] = word_of(seed, i, at / 8 + n);
			r = compare ? CALL(cuMemcpyDtoH_v2, is, pieces[i].at + at, bytes)
				    : CALL(cuMemcpyHtoD_v2, pieces[i].at + at, expected, bytes);
			if (!r && compare && memcmp(is, expected, bytes)) {
				last_call = "compare";
				r = CUDA_ERROR_INVALID_VALUE;
			}
		}
	return r;
}

/* users write to their own words of all pieces, and read them back. */
enum { USERS = 16 };

static struct user {
	pthread_t thread;
	uint64_t number;
	CUcontext context;
	CUresult result;
	uint64_t rounds;
} users[USERS];
static bool users_stop; /* atomic */

static void *use(void *arg)
{
	struct user *u = arg;
	CUresult r = cuCtxSetCurrent(u->context);
	for (u->rounds = 0; !r && (u->rounds < LEAST_ROUNDS || !__atomic_load_n(&users_stop, __ATOMIC_RELAXED)); u->rounds++) {
		const struct piece *p = &pieces[u->rounds % count];
		uint64_t at = p->at + p->bytes / 8 / USERS * u->number * 8, is = 0, word = word_of(u->number, 0, u->rounds);
		r = cuMemcpyHtoD_v2(at, &word, sizeof word);
		if (!r)
			r = cuMemcpyDtoH_v2(&is, at, sizeof is);
		if (!r && is != word)
			r = CUDA_ERROR_INVALID_VALUE;
	}
	u->result = r;
	return NULL;
}

static CUresult use_all(uint64_t threads)
{
	CUcontext current;
	CUresult r = CALL(cuCtxGetCurrent, &current);
	users_stop = false;
	for (uint64_t i = 0; i < threads; i++) {
		users[i] = (struct user){.number = i, .context = current};
		pthread_create(&users[i].thread, NULL, use, &users[i]);
	}
	while (!has_input(10000))
		;
	__atomic_store_n(&users_stop, true, __ATOMIC_RELAXED);
	for (uint64_t i = 0; i < threads; i++) {
		pthread_join(users[i].thread, NULL);
		requests += users[i].rounds;
		r = r ? r : users[i].result;
	}
	last_call = "use";
	return r;
}

/* fork_child starts a process that ends with the input of this one. */
static CUresult fork_child(void)
{
	pid_t child = fork();
	if (child == 0) {
		struct pollfd end = {.fd = STDIN_FILENO};
		while (!(end.revents & (POLLHUP | POLLERR | POLLNVAL)) && getppid() != 1)
			poll(&end, 1, 100);
		_exit(0);
	}
	last_call = "fork";
	return child < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
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
	} else if (sscanf(line, "fill %" SCNu64, &a) == 1) {
		r = contents(a, false);
	} else if (sscanf(line, "same %" SCNu64, &a) == 1) {
		r = contents(a, true);
	} else if (sscanf(line, "use %" SCNu64, &a) == 1 && a > 0 && a <= USERS && count) {
		r = use_all(a);
		print_requests(numbers);
	} else if (!strcmp(line, "fork")) {
		r = fork_child();
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
