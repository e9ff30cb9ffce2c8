/* A CUDA program for tests of jobs that sleep. It fills device memory with words that it can tell, and
 * compares them later.
 *
 * It reads commands from standard input, one a line, and ends with the input:
 *
 *   init              cuInit, the primary context of device 0, and the code. Answers its PID
 *   hold BYTES SEED   allocates BYTES, fills them, and compares them at once. Answers how many words
 *                     differ: all, if nothing is in this device's memory (the stand-in's)
 *   compare           compares all that it holds. Answers how many words differ
 *   count             launches kernels that add 1 to a number in device memory, one after the other,
 *                     until the next command. Answers how many, the number, and the nanoseconds of the
 *                     longest launch
 *   mix THREADS       threads allocate, free, copy, launch, capture streams, and make contexts, until the
 *                     next command. Answers how often
 *   managed BYTES     allocates managed memory
 *   export            makes an IPC handle of what it holds
 *   capture, release  begins the capture of a stream; ends it
 *   free              frees all
 *   leave             ends at once, and frees nothing
 *   quit              frees all, and ends
 *
 * It answers each with one line: `ok` and numbers, or `error`, the driver's code and the call. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "commands.h"

CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
CUresult cuStreamBeginCapture_v2(CUstream, int mode);
CUresult cuStreamEndCapture(CUstream, CUgraph *);

enum { THREADS = 64, PIECES = 64, BLOCK = 16 << 20, WORDS = BLOCK / sizeof(uint32_t) };

static const char ptx[] = ".version 6.4\n.target sm_50\n.address_size 64\n"
			  ".visible .entry count(.param .u64 at)\n"
			  "{\n"
			  "	.reg .u64 %a, %n;\n"
			  "	ld.param.u64 %a, [at];\n"
			  "	ld.global.u64 %n, [%a];\n"
			  "	add.u64 %n, %n, 1;\n"
			  "	st.global.u64 [%a], %n;\n"
			  "	ret;\n"
			  "}\n";

static struct {
	CUdeviceptr at;
	uint64_t bytes;
	uint32_t seed;
	bool managed;
} held[PIECES];
static size_t held_count;

static uint32_t block[WORDS];
static CUfunction count_one;
static CUdeviceptr counter;

static CUresult prepare(void)
{
	uint64_t none = 0;
	CUresult r = load_code(ptx, "count", &count_one);
	if (!r)
		r = CALL(cuMemAlloc_v2, &counter, 4096);
	return r ? r : CALL(cuMemcpyHtoD_v2, counter, &none, sizeof none);
}

/* word returns what is at word i of block b. */
static uint32_t word(uint32_t seed, uint64_t b, uint64_t i) { return (uint32_t)(i * 2654435761u) ^ (seed + (uint32_t)b * 40503u); }

static uint64_t block_words(uint64_t bytes, uint64_t b)
{
	uint64_t left = bytes / sizeof(uint32_t) - b * WORDS;
	return left < WORDS ? left : WORDS;
}

/* compare adds to *wrong how many words of a piece differ. */
static CUresult compare(size_t piece, uint64_t *wrong)
{
	CUresult r = CUDA_SUCCESS;
	for (uint64_t b = 0; !r && b * BLOCK < held[piece].bytes; b++) {
		uint64_t n = block_words(held[piece].bytes, b);
		memset(block, 0, sizeof block);
		r = CALL(cuMemcpyDtoH_v2, block, held[piece].at + b * BLOCK, n * sizeof(uint32_t));
		for (uint64_t i = 0; !r && i < n; i++)
			*wrong += block[i] != word(held[piece].seed, b, i);
	}
	return r;
}

static CUresult compare_all(uint64_t *wrong)
{
	CUresult r = CUDA_SUCCESS;
	for (size_t i = 0; !r && i < held_count; i++)
		if (!held[i].managed)
			r = compare(i, wrong);
	return r;
}

static CUresult hold(uint64_t bytes, uint32_t seed, bool managed, uint64_t *wrong)
{
	CUdeviceptr at = 0;
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	if (held_count == PIECES)
		return r;
	if (managed)
		r = CALL(cuMemAllocManaged, &at, bytes, 1);
	else
		r = CALL(cuMemAlloc_v2, &at, bytes);
	if (r)
		return r;
	held[held_count].at = at;
	held[held_count].bytes = bytes;
	held[held_count].seed = seed;
	held[held_count++].managed = managed;
	for (uint64_t b = 0; !managed && !r && b * BLOCK < bytes; b++) {
		uint64_t n = block_words(bytes, b);
		for (uint64_t i = 0; i < n; i++)
			block[i] = word(seed, b, i);
		r = CALL(cuMemcpyHtoD_v2, at + b * BLOCK, block, n * sizeof(uint32_t));
	}
	return r || managed ? r : compare(held_count - 1, wrong);
}

static CUresult free_all(void)
{
	CUresult r = CUDA_SUCCESS;
	while (!r && held_count)
		r = CALL(cuMemFree_v2, held[--held_count].at);
	return r;
}

static bool has_command(void) { return poll(&(struct pollfd){.fd = STDIN_FILENO, .events = POLLIN}, 1, 0) != 0; }

/* count counts launches in device memory and here, until the next command. */
static CUresult count(uint64_t numbers[3])
{
	static uint64_t launched;
	uint64_t longest = 0;
	CUresult r = CUDA_SUCCESS;
	do {
		void *parameters[] = {&counter};
		uint64_t from = now();
		r = CALL(cuLaunchKernel, count_one, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
		launched += !r;
		if (now() - from > longest)
			longest = now() - from;
		if (!r && launched % 16 == 0)
			r = CALL(cuStreamSynchronize, stream);
	} while (!r && !has_command());
	if (!r)
		r = CALL(cuStreamSynchronize, stream);
	numbers[0] = launched;
	numbers[2] = longest;
	return r ? r : CALL(cuMemcpyDtoH_v2, &numbers[1], counter, sizeof numbers[1]);
}

static struct {
	atomic_bool stop;
	atomic_ulong done;
	atomic_int result;
	_Atomic(const char *) call; /* that failed */
} mix;

static void mix_end(CUresult r, const char *call)
{
	int none = 0;
	if (r && atomic_compare_exchange_strong(&mix.result, &none, (int)r))
		mix.call = call;
	if (r)
		mix.stop = true;
}

/* MIX makes a call, unless one has failed. */
#define MIX(call, ...)                                     \
	do {                                               \
		if (!mix.result)                           \
			mix_end(call(__VA_ARGS__), #call); \
	} while (0)

static void mix_linear(size_t bytes)
{
	CUdeviceptr at = 0;
	MIX(cuMemAlloc_v2, &at, bytes);
	MIX(cuMemsetD8_v2, at, 7, bytes);
	MIX(cuMemFree_v2, at);
}

static void mix_pool(CUstream own, size_t bytes)
{
	CUdeviceptr at = 0;
	MIX(cuMemAllocAsync, &at, bytes, own);
	MIX(cuMemsetD8Async, at, 7, bytes, own);
	MIX(cuMemFreeAsync, at, own);
	MIX(cuStreamSynchronize, own);
}

static void mix_launch(CUstream own, CUdeviceptr at)
{
	void *parameters[] = {&at};
	MIX(cuLaunchKernel, count_one, 1, 1, 1, 1, 1, 1, 0, own, parameters, NULL);
	MIX(cuStreamSynchronize, own);
}

static void mix_capture(CUstream own, CUdeviceptr at)
{
	void *parameters[] = {&at};
	CUgraph graph = NULL;
	MIX(cuStreamBeginCapture_v2, own, 1); /* of this thread only */
	MIX(cuLaunchKernel, count_one, 1, 1, 1, 1, 1, 1, 0, own, parameters, NULL);
	MIX(cuStreamEndCapture, own, &graph);
	MIX(cuGraphDestroy, graph);
}

static void mix_context(void)
{
	CUcontext primary = NULL, other = NULL;
	MIX(cuCtxGetCurrent, &primary);
	MIX(cuCtxCreate_v2, &other, 0, device);
	MIX(cuCtxDestroy_v2, other);
	MIX(cuCtxSetCurrent, primary);
}

static void *mix_thread(void *seed)
{
	unsigned random = (unsigned)(uintptr_t)seed;
	CUcontext primary = NULL;
	CUstream own = NULL;
	CUdeviceptr at = 0;
	size_t available, total;
	MIX(cuDevicePrimaryCtxRetain, &primary, device);
	MIX(cuCtxSetCurrent, primary);
	MIX(cuStreamCreate, &own, CU_STREAM_NON_BLOCKING);
	MIX(cuMemAlloc_v2, &at, 4096);
	for (; !mix.stop; mix.done++) {
		size_t bytes = (size_t)(1 + rand_r(&random) % 16) << 18;
		switch (rand_r(&random) % 32) {
		case 0: mix_context(); break;
		case 1: mix_capture(own, at); break;
		case 2: MIX(cuMemGetInfo_v2, &available, &total); break;
		case 3 ... 8: mix_linear(bytes); break;
		case 9 ... 14: mix_pool(own, bytes); break;
		default: mix_launch(own, at);
		}
	}
	MIX(cuMemFree_v2, at);
	MIX(cuStreamDestroy_v2, own);
	MIX(cuDevicePrimaryCtxRelease_v2, device);
	return NULL;
}

static CUresult mix_until_next(unsigned threads, uint64_t *done)
{
	pthread_t all[THREADS];
	unsigned n = 0;
	mix.stop = false;
	for (; n < threads && n < THREADS; n++)
		if (pthread_create(&all[n], NULL, mix_thread, (void *)(uintptr_t)(n + 1)))
			break;
	while (!has_command() && !mix.stop)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	mix.stop = true;
	while (n > 0)
		pthread_join(all[--n], NULL);
	last_call = mix.call;
	*done = mix.done;
	return (CUresult)mix.result;
}

static CUresult release(void)
{
	CUgraph graph = NULL;
	CUresult r = CALL(cuStreamEndCapture, stream, &graph);
	return r || !graph ? r : CALL(cuGraphDestroy, graph);
}

/* carry_out carries out a command. It returns false if there is no such command. */
static bool carry_out(const char *line)
{
	uint64_t bytes, n[3] = {0};
	uint32_t seed = 0;
	CUresult r;
	if (!strcmp(line, "leave"))
		exit(0);
	if (!strcmp(line, "init")) {
		say(start_driver(prepare), " %d", (int)getpid());
	} else if (sscanf(line, "hold %" SCNu64 " %" SCNu32, &bytes, &seed) == 2) {
		r = hold(bytes, seed, false, n);
		say(r, " %" PRIu64, n[0]);
	} else if (!strcmp(line, "compare")) {
		r = compare_all(n);
		say(r, " %" PRIu64, n[0]);
	} else if (!strcmp(line, "count")) {
		r = count(n);
		say(r, " %" PRIu64 " %" PRIu64 " %" PRIu64, n[0], n[1], n[2]);
	} else if (sscanf(line, "mix %" SCNu32, &seed) == 1) {
		r = mix_until_next(seed, n);
		say(r, " %" PRIu64, n[0]);
	} else {
		if (sscanf(line, "managed %" SCNu64, &bytes) == 1)
			r = hold(bytes, 0, true, n);
		else if (!strcmp(line, "export"))
			r = CALL(cuIpcGetMemHandle, &(CUipcMemHandle){{0}}, held[0].at);
		else if (!strcmp(line, "capture"))
			r = CALL(cuStreamBeginCapture_v2, stream, 2);
		else if (!strcmp(line, "release"))
			r = release();
		else if (!strcmp(line, "free") || !strcmp(line, "quit"))
			r = free_all();
		else
			return false;
		say(r, "%s", "");
	}
	return true;
}

int main(void)
{
	setvbuf(stdin, NULL, _IONBF, 0); /* count looks for the next command by poll */
	return follow_commands(carry_out);
}
