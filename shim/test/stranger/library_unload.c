/* A library is forgotten before the driver is asked to unload it: its handle may be another
 * thread's library as soon as it has, and what that one loaded stays counted. */
#include "stranger.h"

static const char large[] = PTX(BIG_100M);

static CUresult unload(struct task *t) { return cuLibraryUnload(t->library); }

int main(void)
{
	struct task t = {.run = unload};
	CUlibrary other = NULL;
	CUmodule m;
	CUcontext c = start();
	OK(cuLibraryLoadData(&t.library, large, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetModule(&m, t.library));
	SAME();
	fakegpu_hold("cuLibraryUnload", 1);
	task_begin(&t, c);
	EQ(fakegpu_held("cuLibraryUnload", 1, LONG), 1);
	OK(cuLibraryLoadData(&other, large, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(other == t.library); /* or nothing is shown here */
	OK(cuLibraryGetModule(&m, other));
	fakegpu_open("cuLibraryUnload");
	JOIN(&t);
	OK(t.result);
	SAME();
	CHECK(held(RATION_MODULE) > 0);
	OK(cuLibraryUnload(other));
	SAME();
	return FINISH();
}
