/* Kernels that take time, for the tests of one process (time.c) and of several (turns.c). In most the clock
 * stands still but for what they add to it (FAKEGPU_CLOCK=0), and in none does the result depend on how fast
 * the machine is. */
#ifndef FAKEGPU_TEST_KERNELS_H
#define FAKEGPU_TEST_KERNELS_H

#include "check.h"

enum { LONG = 20000, MAX = 256 };

#define US 1000ull /* in ns */
#define MS (1000 * US)

static CUfunction kernel(const char *name)
{
	static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry short_one() { ret; }\n"
				  ".visible .entry long_one() { ret; }\n.visible .entry wide() { ret; }\n";
	CUmodule m = NULL;
	CUfunction f = NULL;
	OK(cuModuleLoadData(&m, ptx));
	OK(cuModuleGetFunction(&f, m, name));
	return f;
}

static CUresult launch(CUfunction f, unsigned blocks, CUstream s) { return cuLaunchKernel(f, blocks, 1, 1, 1, 1, 1, 0, s, NULL, NULL); }

static void later(uint64_t ns) { CHECK(fakegpu_clock(ns) >= 0); }

static struct fakegpu_engine_context books(uint32_t pid, unsigned which)
{
	static struct fakegpu_engine_context list[MAX];
	int n = fakegpu_engine(0, NULL, list, MAX);
	for (int i = 0; i < n && i < MAX; i++)
		if (list[i].pid == pid && which-- == 0)
			return list[i];
	CHECK(!"a context of the process");
	return (struct fakegpu_engine_context){0};
}

static void *synchronizes(void *arg)
{
	cuCtxSetCurrent(arg);
	cuCtxSynchronize();
	return NULL;
}

struct role {
	const char *name;
	int (*run)(void);
};

/* Runs the role that the first argument names. It returns -1 if there is none: the program was started by
 * itself, and its machine is made. */
static int run_role(const struct role *roles, size_t count, int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < count; i++)
		if (strcmp(argv[1], roles[i].name) == 0)
			return roles[i].run();
	setenv("FAKEGPU", "h200", 1);
	setenv("FAKEGPU_CLOCK", "0", 1);
	setenv("FAKEGPU_KERNEL", "short_one:1000,wide:10/block,*:10000", 1);
	return -1;
}

#define RUN_ROLE(roles, argc, argv) run_role(roles, sizeof(roles) / sizeof *(roles), argc, argv)

#endif
