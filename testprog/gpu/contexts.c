/* Contexts beside the primary one, with memory in each that nobody frees: it ends
 * with its context. */
#include "allocpaths.h"

enum { OTHERS = FIRST - 1 };

static CUdeviceptr take(void)
{
	CUdeviceptr at;
	MUST(cuMemAlloc_v2, &at, piece);
	driver_use(at, piece);
	return at;
}

static void say(const char *name, uint64_t count) { step("%s data=%llu", name, (unsigned long long)(count * piece)); }

static void play(void)
{
	static const char *const names[OTHERS] = {"one", "two", "three"};
	CUcontext others[OTHERS];
	CUdeviceptr primarys;
	say("empty", 0);
	primarys = take();
	for (int i = 0; i < OTHERS; i++) {
		CUcontext popped;
		MUST(cuCtxCreate_v2, &others[i], 0, device);
		take();
		MUST(cuCtxPopCurrent_v2, &popped);
	}
	say("held", FIRST);
	for (int i = 0; i < OTHERS; i++) {
		MUST(cuCtxDestroy_v2, others[i]);
		say(names[i], (uint64_t)(FIRST - 1 - i));
	}
	MUST(cuMemFree_v2, primarys);
	say("freed", 0);
	primarys = take();
	say("again", 1);
	MUST(cuMemFree_v2, primarys);
}

const struct allocpath contexts = {.name = "contexts", .play = play};
