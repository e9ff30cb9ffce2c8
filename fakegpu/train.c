/* fake-train: a small CUDA program to try ration with, where a training run would be. It
 * runs on the driver that the loader finds, the stand-in or a real one.
 *
 *   fake-train [--hold] [SIZE...]
 *
 * takes each SIZE of device memory (3g, 512m) in a step of its own, says what it got, and
 * returns all of it. With --hold it keeps what it got until it is interrupted or killed.
 * Exit status: 0; 1 if a step got no memory, 2 for bad arguments, 3 if there is no driver. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_abi.h"

enum { MAX_STEPS = 64 };

static void *train_cuda;

static void *train_need(const char *name)
{
	void *p = dlsym(train_cuda, name);
	if (p == NULL) {
		fprintf(stderr, "fake-train: finding %s: %s\n", name, dlerror());
		exit(3);
	}
	return p;
}

/* Calls a function of the driver by name, with the types of the arguments given. */
#define CALL(name, types, args) (((CUresult(*) types)train_need(#name))args)

/* train_check ends the program unless a call of the driver succeeded. */
static void train_check(const char *name, CUresult r)
{
	if (r == CUDA_SUCCESS)
		return;
	fprintf(stderr, "fake-train: %s: error %d\n", name, (int)r);
	exit(r == CUDA_ERROR_OUT_OF_MEMORY ? 1 : 3);
}

/* train_size reads a size with a suffix k, m or g. It returns 0 for anything else. */
static uint64_t train_size(const char *text)
{
	char *end;
	uint64_t n = strtoull(text, &end, 10);
	const char *suffix = *end == '\0' ? NULL : strchr("kmg", *end | 0x20);
	if (end == text || *text == '-' || suffix == NULL || end[1] != '\0')
		return 0;
	unsigned shift = *suffix == 'k' ? 10 : *suffix == 'm' ? 20 : 30;
	return n <= UINT64_MAX >> shift ? n << shift : 0;
}

static const char *train_text(uint64_t bytes)
{
	static char text[2][32];
	static int next;
	char *to = text[next = !next];
	if (bytes % (1u << 30) == 0)
		snprintf(to, sizeof text[0], "%" PRIu64 " GiB", bytes >> 30);
	else
		snprintf(to, sizeof text[0], "%" PRIu64 " MiB", bytes >> 20);
	return to;
}

/* train_start makes a context on device 0. */
static void train_start(void)
{
	CUdevice device;
	CUcontext context;

	train_cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (train_cuda == NULL) {
		fprintf(stderr,
			"fake-train: %s\nfake-train: there is no CUDA driver (start it with: ration run --fake-gpu h200 -- fake-train "
			"3g)\n",
			dlerror());
		exit(3);
	}
	train_check("cuInit", CALL(cuInit, (unsigned), (0)));
	train_check("cuDeviceGet", CALL(cuDeviceGet, (CUdevice *, int), (&device, 0)));
	train_check("cuDevicePrimaryCtxRetain", CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice), (&context, device)));
	train_check("cuCtxSetCurrent", CALL(cuCtxSetCurrent, (CUcontext), (context)));
}

int main(int argc, char **argv)
{
	static CUdeviceptr at[MAX_STEPS];
	bool hold = argc > 1 && strcmp(argv[1], "--hold") == 0;
	int first = hold ? 2 : 1, count = 0, status = 0;
	uint64_t held = 0;

	for (int i = first; i < argc; i++)
		if (train_size(argv[i]) == 0) {
			fprintf(stderr, "fake-train: %s: not a size (use 3g, or 512m)\n", argv[i]);
			return 2;
		}
	if (argc - first > MAX_STEPS) {
		fprintf(stderr, "fake-train: more than %d sizes\n", MAX_STEPS);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	train_start();
	for (int i = first; i < argc; i++) {
		uint64_t bytes = train_size(argv[i]);
		CUresult r = CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t), (&at[count], bytes));
		if (r == CUDA_ERROR_OUT_OF_MEMORY) {
			printf("step %d: asked for %s: CUDA_ERROR_OUT_OF_MEMORY\n", i - first + 1, train_text(bytes));
			status = 1;
			continue;
		}
		train_check("cuMemAlloc", r);
		count++;
		held += bytes;
		printf("step %d: asked for %s, now has %s\n", i - first + 1, train_text(bytes), train_text(held));
	}
	if (hold) {
		printf("holding %s\n", train_text(held));
		for (;;)
			pause();
	}
	while (count > 0)
		train_check("cuMemFree", CALL(cuMemFree_v2, (CUdeviceptr), (at[--count])));
	return status;
}
