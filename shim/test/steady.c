/* usage: steady CALL ROUNDS
 *
 * Makes a driver's call again and again after a time of warming up, between marks that tools find,
 * so that they count what one costs in the long run: system calls between two marks of
 * marks.h, instructions and memory between two stores to the word at MARK_AT. */
#include <sys/mman.h>

#include "../../check/programs/gpu/marks.h"
#include "check.h"

/* count.sh looks for this address. */
#define MARK_AT 0x524100000000ull

enum { WARM = 1000 };

static CUfunction kernel;

static CUresult nothing(void) { return CUDA_SUCCESS; }

static CUresult linear(void)
{
	CUdeviceptr p;
	CUresult r = cuMemAlloc_v2(&p, 512);
	return r == CUDA_SUCCESS ? cuMemFree_v2(p) : r;
}

static CUresult pool(void)
{
	CUdeviceptr p;
	CUresult r = cuMemAllocAsync(&p, 512, NULL);
	return r == CUDA_SUCCESS ? cuMemFreeAsync(p, NULL) : r;
}

static CUresult launch(void) { return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL); }

static CUresult info(void)
{
	size_t free_bytes, total;
	return cuMemGetInfo_v2(&free_bytes, &total);
}

static const struct {
	const char *name;
	CUresult (*call)(void);
} calls[] = {
	{"nothing", nothing},   {"cuMemAlloc+cuMemFree", linear}, {"cuMemAllocAsync+cuMemFreeAsync", pool},
	{"cuMemGetInfo", info}, {"cuLaunchKernel", launch},
};

/* The empty statement keeps the compiler from moving anything across the stores. */
#define BARRIER() __asm__ volatile("" ::: "memory")

static void repeat(CUresult (*call)(void), unsigned n, volatile uint64_t *word)
{
	for (unsigned i = 0; i < n; i++) {
		*word = 1;
		BARRIER();
		CUresult r = call();
		BARRIER();
		*word = 0;
		if (r != CUDA_SUCCESS)
			exit(1);
	}
}

int main(int argc, char **argv)
{
	uint64_t warm = 0,
		 *word = mmap((void *)MARK_AT, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	CUresult (*call)(void) = NULL;
	CUdeviceptr kept;
	CUmodule m;
	for (unsigned i = 0; argc == 3 && i < sizeof calls / sizeof *calls; i++)
		if (!strcmp(argv[1], calls[i].name))
			call = calls[i].call;
	if (call == NULL) {
		for (unsigned i = 0; argc == 1 && i < sizeof calls / sizeof *calls; i++)
			puts(calls[i].name);
		return argc == 1 ? 0 : 64;
	}
	if (word != (void *)MARK_AT)
		exit(1);
	start();
	/* With one kept, a pool need not grow. */
	if (cuModuleLoadData(&m, ".version 7.0 .target sm_50 .visible .entry nothing() { ret; }") != CUDA_SUCCESS ||
	    cuModuleGetFunction(&kernel, m, "nothing") != CUDA_SUCCESS || cuMemAllocAsync(&kept, 512, NULL) != CUDA_SUCCESS)
		exit(1);
	/* The library looks for what the driver has taken when the program first waits, and 50 ms
	 * after a context was made. */
	if (cuCtxSynchronize() != CUDA_SUCCESS)
		exit(1);
	usleep(100000);
	repeat(call, WARM, &warm);
	mark(1, NULL);
	repeat(call, (unsigned)atoi(argv[2]), word);
	mark(0, NULL);
	return checks_failed > 0;
}
