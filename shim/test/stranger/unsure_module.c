/* A module that is loaded before NVML is up, and takes more than its own: once it is
 * unloaded, and what was taken beside it has gone too, nothing of it stays counted. */
#include "../later.h"
#include "stranger.h"

static const char large[] = PTX(BIG_100M);
static const char small[] = PTX("");

static void counted_once(void)
{
	CUlibrary l;
	CUkernel k;
	CUfunction f;
	CUmodule m;
	start();
	/* 100 MiB that come behind the library's back... */
	OK(cuLibraryLoadData(&l, large, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&k, l, "k"));
	OK(cuKernelGetFunction(&f, k));
	/* ...look like this module's. */
	OK(cuModuleLoadData(&m, small));
	BALANCED(0);
	OK(cuModuleUnload(m));
	BALANCED(0);
	OK(cuLibraryUnload(l));
	for (int i = 0; i < 3; i++) {
		later();
		OK(cuCtxSynchronize());
	}
	SAME();
	OK(cuDevicePrimaryCtxRelease_v2(0));
	SAME();
}

/* And what comes later is noticed as ever. */
static void noticed_after(void)
{
	CUlibrary l;
	CUkernel k;
	CUfunction f;
	CUmodule m;
	start();
	OK(cuModuleLoadData(&m, large));
	SAME();
	OK(cuModuleUnload(m));
	SAME();
	OK(cuLibraryLoadData(&l, large, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&k, l, "k"));
	OK(cuKernelGetFunction(&f, k));
	later();
	OK(cuCtxSynchronize());
	BALANCED(0);
	OK(cuLibraryUnload(l));
	later();
	OK(cuCtxSynchronize());
	BALANCED(0);
}

RUN_PARTS(true, {"counted once", counted_once}, {"noticed after", noticed_after})
