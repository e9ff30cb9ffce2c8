/* An ordinary program of the CUDA runtime, as nvcc makes them:
 *
 *   plain BACKEND PIECE MOST
 *
 * BACKEND is malloc, async or managed: cudaMalloc, cudaMallocAsync of the device's default
 * pool, cudaMallocManaged. A kernel writes to all memory that is allocated. The steps are
 * those that all paths of allocpaths.c have: empty, held, full, freed, again. A full device
 * does not refuse managed memory: MOST must be less than what is free.
 *
 * Needs nvcc: `make plain` builds it, and the tester does if there is an nvcc. */
#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>

#include "steps.h"

enum { FIRST = 4, PIECES = 8192, BLOCKS = 1024, THREADS = 256 };

static void *pieces[PIECES];
static size_t count;
static uint64_t piece;

__global__ void touch(unsigned char *at, size_t bytes)
{
	size_t stride = (size_t)gridDim.x * blockDim.x;
	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += stride)
		at[i] = 0xa5;
}

static void must(cudaError_t result, const char *call)
{
	if (result == cudaErrorNotSupported)
		skip("%s: not supported here (%d)", call, (int)result);
	if (result != cudaSuccess)
		fail("%s: %d", call, (int)result);
}

static void use(void *at, size_t bytes)
{
	touch<<<BLOCKS, THREADS>>>((unsigned char *)at, bytes);
	must(cudaGetLastError(), "touch");
	must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

/* The backends: each allocates one piece, and frees one. */

static cudaError_t take_malloc(void **at) { return cudaMalloc(at, piece); }
static cudaError_t take_async(void **at) { return cudaMallocAsync(at, piece, 0); }
static cudaError_t take_managed(void **at) { return cudaMallocManaged(at, piece, cudaMemAttachGlobal); }
static cudaError_t free_plain(void *at) { return cudaFree(at); }
static cudaError_t free_async(void *at) { return cudaFreeAsync(at, 0); }

struct backend {
	const char *name;
	const char *call;
	cudaError_t (*take)(void **at);
	cudaError_t (*give)(void *at);
	int pooled;
};

static const struct backend backends[] = {
	{"malloc", "cudaMalloc", take_malloc, free_plain, 0},
	{"async", "cudaMallocAsync", take_async, free_async, 1},
	{"managed", "cudaMallocManaged", take_managed, free_plain, 0},
};

static const struct backend *backend;
static cudaMemPool_t pool;

/* data returns the bytes that ration should count as data: of a pool, what it has reserved. */
static unsigned long long data(void)
{
	uint64_t reserved = 0;
	if (!backend->pooled)
		return (unsigned long long)(count * piece);
	must(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved), "cudaMemPoolGetAttribute");
	return (unsigned long long)reserved;
}

/* take allocates one more piece. It returns 0 if out of memory. */
static int take(void)
{
	void *at = NULL;
	cudaError_t result = backend->take(&at);
	if (result == cudaErrorMemoryAllocation) {
		cudaGetLastError(); /* resets the error that the runtime remembers */
		return 0;
	}
	must(result, backend->call);
	pieces[count++] = at;
	use(at, piece);
	return 1;
}

static void give_back(void)
{
	while (count > 0)
		must(backend->give(pieces[--count]), "freeing");
	must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	if (backend->pooled)
		must(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
}

static void play(uint64_t most)
{
	int refused = 0;
	must(cudaSetDevice(0), "cudaSetDevice");
	use(NULL, 0); /* the context and the kernel's code, which are not data */
	if (backend->pooled)
		must(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
	step("empty data=%llu", data());
	for (int i = 0; i < FIRST; i++)
		if (!take())
			fail("%s: %d, piece %d of the first %d", backend->call, (int)cudaErrorMemoryAllocation, i + 1, FIRST);
	step("held data=%llu", data());
	while (!refused && data() + piece <= most)
		refused = take() ? 0 : (int)cudaErrorMemoryAllocation;
	step("full data=%llu refused=%d", data(), refused);
	give_back();
	step("freed data=%llu", data());
	if (!take())
		fail("%s: %d, after all was freed", backend->call, (int)cudaErrorMemoryAllocation);
	step("again data=%llu", data());
	give_back();
}

int main(int argc, char **argv)
{
	uint64_t most = argc == 4 ? steps_size(argv[3]) : 0;
	piece = argc == 4 ? steps_size(argv[2]) : 0;
	for (size_t i = 0; argc == 4 && i < sizeof backends / sizeof *backends; i++)
		if (!strcmp(backends[i].name, argv[1]))
			backend = &backends[i];
	if (!backend || !piece || most / FIRST < piece || most / piece > PIECES) {
		fprintf(stderr, "usage: plain malloc|async|managed PIECE MOST (%d to %d pieces)\n", (int)FIRST, (int)PIECES);
		return STEPS_USAGE;
	}
	play(most);
	return 0;
}
