/* Contexts besides the primary one. The program does not free the memory in them: it ends
 * with its context. */
#include "allocpaths.h"

enum { OTHERS = FIRST - 1 };

static CUdeviceptr contexts_take(void)
{
	CUdeviceptr at;
	MUST(cuMemAlloc_v2, &at, piece);
	driver_use(at, piece);
	return at;
}

static void contexts_say(const char *name, uint64_t count) { step("%s data=%llu", name, (unsigned long long)(count * piece)); }

static void contexts_play(void)
{
	static const char *const names[OTHERS] = {"one", "two", "three"};
	CUcontext others[OTHERS];
	CUdeviceptr in_primary;
	contexts_say("empty", 0);
	in_primary = contexts_take();
	for (int i = 0; i < OTHERS; i++) {
		CUcontext popped;
		MUST(cuCtxCreate_v2, &others[i], 0, device);
		contexts_take();
		MUST(cuCtxPopCurrent_v2, &popped);
	}
	contexts_say("held", FIRST);
	for (int i = 0; i < OTHERS; i++) {
		MUST(cuCtxDestroy_v2, others[i]);
		contexts_say(names[i], (uint64_t)(FIRST - 1 - i));
	}
	MUST(cuMemFree_v2, in_primary);
	contexts_say("freed", 0);
	in_primary = contexts_take();
	contexts_say("again", 1);
	MUST(cuMemFree_v2, in_primary);
}

const struct allocpath contexts = {.name = "contexts", .play = contexts_play};
