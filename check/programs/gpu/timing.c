/* A CUDA program that times driver calls on command. The tester tells two of it in turn, one
 * alone and one with libration.so preloaded, and compares their answers.
 *
 * It reads commands from standard input, one a line, and ends with the input:
 *
 *   init [AT]           cuInit, and the primary context of device 0; at that nanosecond
 *                       of CLOCK_MONOTONIC, together with others. Answers cuInit,
 *                       cuDevicePrimaryCtxRetain and cuCtxSetCurrent together, and
 *                       CLOCK_MONOTONIC afterwards
 *   live N BYTES        have N other allocations of BYTES from now on
 *   alloc ROUNDS BYTES  cuMemAlloc and cuMemFree of BYTES. Answers the median of each,
 *                       then the mean of each
 *   async ROUNDS BYTES  the same with cuMemAllocAsync and cuMemFreeAsync, of a pool that
 *                       keeps what is freed; the stream is synchronised after each round
 *   launch ROUNDS       cuLaunchKernel of an empty kernel; the stream is synchronised after
 *                       every 100. Answers median and mean
 *   info ROUNDS         cuMemGetInfo. Answers the median
 *   pin CPU             run on that CPU, with all threads that are started from now on
 *   nvml                start NVML and ask it for the processes on device 0
 *   memory              the host memory of the process, in KiB. Answers resident,
 *                       proportional, private, and the private part of mappings with
 *                       libration, region and nvidia-ml in their path
 *   quit
 *
 * It answers each with one line: `ok` and numbers, in nanoseconds unless stated otherwise,
 * or `error`, the driver's code and the call. Every call is timed by itself. The time of
 * reading the clock is measured at the start (the median of many readings) and subtracted.
 * One round before the first is not timed, nor is any synchronisation. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <sched.h>

#include "commands.h"
#include "footprint.h"

enum { ROUNDS = 1 << 17, CALIBRATION = 10001, BATCH = 100 };

static const char ptx[] = ".version 6.4\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";

static CUfunction nothing;

static struct {
	CUdeviceptr *at;
	size_t count;
	uint64_t bytes;
} live;

/* Two series of times, in nanoseconds. They are written at the start, so that no time
 * includes a page fault. */
static uint64_t first[ROUNDS], second[ROUNDS];
static uint64_t clock_cost; /* nanoseconds */

/* TIME makes a driver call, and measures it. */
#define TIME(took, call, ...)                         \
	({                                            \
		last_call = #call;                    \
		uint64_t from_ = now();               \
		CUresult result_ = call(__VA_ARGS__); \
		(took) = now() - from_;               \
		result_;                              \
	})

static int ascending(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static double without_clock(double took) { return took > (double)clock_cost ? took - (double)clock_cost : 0; }

/* median sorts the series. */
static double median(uint64_t *series, size_t rounds)
{
	qsort(series, rounds, sizeof *series, ascending);
	return without_clock((double)(series[(rounds - 1) / 2] + series[rounds / 2]) / 2);
}

static double mean(const uint64_t *series, size_t rounds)
{
	double sum = 0;
	for (size_t i = 0; i < rounds; i++)
		sum += (double)series[i];
	return without_clock(sum / (double)rounds);
}

static void calibrate(void)
{
	memset(first, 1, sizeof first);
	memset(second, 1, sizeof second);
	for (int i = 0; i < CALIBRATION; i++) {
		uint64_t from = now();
		first[i] = now() - from;
	}
	clock_cost = (uint64_t)median(first, CALIBRATION);
}

static CUresult start(uint64_t at, uint64_t *init, uint64_t *retain)
{
	CUcontext primary;
	uint64_t set = 0;
	sleep_until(at);
	CUresult r = TIME(*init, cuInit, 0);
	*retain = 0;
	if (!r)
		r = CALL(cuDeviceGet, &device, 0);
	if (!r && !context)
		r = TIME(*retain, cuDevicePrimaryCtxRetain, &primary, device);
	if (!r && !context) {
		context = true;
		r = TIME(set, cuCtxSetCurrent, primary);
	}
	*retain += set;
	return r;
}

/* keep_live makes or frees the other allocations. */
static CUresult keep_live(size_t count, uint64_t bytes)
{
	CUresult r = CUDA_SUCCESS;
	while (!r && live.count > (bytes == live.bytes ? count : 0)) {
		r = CALL(cuMemFree_v2, live.at[live.count - 1]);
		live.count -= !r;
	}
	if (r || count <= live.count)
		return r;
	CUdeviceptr *at = realloc(live.at, count * sizeof *at);
	if (!at) {
		last_call = "realloc";
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	live.at = at;
	live.bytes = bytes;
	while (!r && live.count < count) {
		r = CALL(cuMemAlloc_v2, &live.at[live.count], bytes);
		live.count += !r;
	}
	return r;
}

/* Here as below, the first timed round overwrites the time of the one before it. */
static CUresult alloc(size_t rounds, uint64_t bytes)
{
	CUresult r = CUDA_SUCCESS;
	for (size_t i = 0; !r && i <= rounds; i++) {
		CUdeviceptr at;
		size_t n = i ? i - 1 : 0;
		r = TIME(first[n], cuMemAlloc_v2, &at, bytes);
		if (!r)
			r = TIME(second[n], cuMemFree_v2, at);
	}
	return r;
}

static CUresult async_rounds(size_t rounds, uint64_t bytes)
{
	CUresult r = CUDA_SUCCESS;
	for (size_t i = 0; !r && i <= rounds; i++) {
		CUdeviceptr at;
		size_t n = i ? i - 1 : 0;
		r = TIME(first[n], cuMemAllocAsync, &at, bytes, stream);
		if (!r)
			r = TIME(second[n], cuMemFreeAsync, at, stream);
		if (!r)
			r = CALL(cuStreamSynchronize, stream);
	}
	return r;
}

/* async leaves the pool as it found it, and empty. */
static CUresult async(size_t rounds, uint64_t bytes)
{
	CUmemoryPool pool;
	uint64_t before = 0, all = UINT64_MAX;
	CUresult r = stream ? CUDA_SUCCESS : CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	if (!r)
		r = CALL(cuDeviceGetDefaultMemPool, &pool, device);
	if (!r)
		r = CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &before);
	if (!r)
		r = CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
	if (!r)
		r = async_rounds(rounds, bytes);
	if (!r)
		r = CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &before);
	return r ? r : CALL(cuMemPoolTrimTo, pool, 0);
}

static CUresult launch(size_t rounds)
{
	CUresult r = stream ? CUDA_SUCCESS : CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	if (!r && !code)
		r = CALL(cuModuleLoadData, &code, ptx);
	if (!r && !nothing)
		r = CALL(cuModuleGetFunction, &nothing, code, "nothing");
	for (size_t i = 0; !r && i <= rounds; i++) {
		r = TIME(first[i ? i - 1 : 0], cuLaunchKernel, nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
		if (!r && (i % BATCH == 0 || i == rounds))
			r = CALL(cuStreamSynchronize, stream);
	}
	return r;
}

static CUresult info(size_t rounds)
{
	CUresult r = CUDA_SUCCESS;
	size_t available, total;
	for (size_t i = 0; !r && i <= rounds; i++)
		r = TIME(first[i ? i - 1 : 0], cuMemGetInfo_v2, &available, &total);
	return r;
}

static CUresult pin(int cpu)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	last_call = "sched_setaffinity";
	return sched_setaffinity(0, sizeof one, &one) ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

/* nvml makes the calls that a library needs to ask NVML about its process. */
static CUresult nvml(void)
{
	enum { PROCESSES = 1024 };
	static nvmlProcessInfo_t list[PROCESSES];
	unsigned count = PROCESSES;
	nvmlDevice_t handle = NULL;
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	last_call = "nvml";
	if (!lib)
		return CUDA_ERROR_NOT_FOUND;
	typedef nvmlReturn_t (*init_call)(void);
	typedef nvmlReturn_t (*handle_call)(unsigned, nvmlDevice_t *);
	typedef nvmlReturn_t (*processes_call)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
	init_call init = (init_call)dlsym(lib, "nvmlInit_v2");
	handle_call get = (handle_call)dlsym(lib, "nvmlDeviceGetHandleByIndex_v2");
	processes_call processes = (processes_call)dlsym(lib, "nvmlDeviceGetComputeRunningProcesses_v3");
	if (!init || !get || !processes || init() || get(0, &handle) || processes(handle, &count, list))
		return CUDA_ERROR_NOT_FOUND;
	return CUDA_SUCCESS;
}

static CUresult stop(void)
{
	CUresult r = keep_live(0, live.bytes);
	if (!r && code)
		r = CALL(cuModuleUnload, code);
	if (!r && stream)
		r = CALL(cuStreamDestroy_v2, stream);
	if (!r && context)
		r = CALL(cuDevicePrimaryCtxRelease_v2, device);
	return r;
}

enum { NUMBERS = 160 /* bytes of text */ };

/* carry_out carries out a command. It returns false if there is no such command. */
static bool carry_out(const char *line)
{
	char numbers[NUMBERS] = "";
	uint64_t init, retain, bytes, at = 0;
	size_t n;
	CUresult r;
	if (!strcmp(line, "init") || sscanf(line, "init %" SCNu64, &at) == 1) {
		r = start(at, &init, &retain);
		snprintf(numbers, NUMBERS, " %" PRIu64 " %" PRIu64 " %" PRIu64, init, retain, now());
	} else if (sscanf(line, "live %zu %" SCNu64, &n, &bytes) == 2) {
		r = keep_live(n, bytes);
	} else if (sscanf(line, "alloc %zu %" SCNu64, &n, &bytes) == 2 && n > 0 && n <= ROUNDS) {
		r = alloc(n, bytes);
		snprintf(numbers, NUMBERS, " %.1f %.1f %.1f %.1f", median(first, n), median(second, n), mean(first, n), mean(second, n));
	} else if (sscanf(line, "async %zu %" SCNu64, &n, &bytes) == 2 && n > 0 && n <= ROUNDS) {
		r = async(n, bytes);
		snprintf(numbers, NUMBERS, " %.1f %.1f %.1f %.1f", median(first, n), median(second, n), mean(first, n), mean(second, n));
	} else if (sscanf(line, "launch %zu", &n) == 1 && n > 0 && n <= ROUNDS) {
		r = launch(n);
		snprintf(numbers, NUMBERS, " %.1f %.1f", median(first, n), mean(first, n));
	} else if (sscanf(line, "info %zu", &n) == 1 && n > 0 && n <= ROUNDS) {
		r = info(n);
		snprintf(numbers, NUMBERS, " %.1f", median(first, n));
	} else if (sscanf(line, "pin %zu", &n) == 1 && n < CPU_SETSIZE) {
		r = pin((int)n);
	} else if (!strcmp(line, "nvml")) {
		r = nvml();
	} else if (!strcmp(line, "memory")) {
		struct footprint f;
		last_call = "smaps";
		r = footprint_read(&f) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
		snprintf(numbers, NUMBERS, " %lu %lu %lu %lu %lu %lu", f.rss, f.pss, f.private, f.library, f.region, f.nvml);
	} else if (!strcmp(line, "quit")) {
		r = stop();
	} else {
		return false;
	}
	say(r, "%s", numbers);
	return true;
}

int main(void)
{
	calibrate();
	int status = follow_commands(carry_out);
	free(live.at);
	return status;
}
