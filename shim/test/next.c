/* Together with another preloaded library that wraps the same calls. */
#include <dlfcn.h>

#include "held.h"

int main(int argc, char **argv)
{
	int *allocs = dlsym(RTLD_DEFAULT, "wrap_allocs"), *pids = dlsym(RTLD_DEFAULT, "wrap_pids");
	CUresult (*found)(CUdeviceptr *, size_t) = NULL;
	bool wrapped_first = argc > 1 && strcmp(argv[1], "first") == 0;
	CUdeviceptr p, q;
	start();
	int before = *pids;
	CHECK(getpid() > 0);
	CHECK(*pids > before); /* its own RTLD_NEXT still finds the C library's */
	OK(cuMemAlloc_v2(&p, MIB));
	EQ(*allocs, wrapped_first ? 1 : 0);
	SAME(); /* counted once, either way */
	/* By name a program gets what it would have had without us. */
	*(void **)&found = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
	OK(found(&q, MIB));
	EQ(*allocs, wrapped_first ? 2 : 0);
	SAME();
	EQ(held(RATION_DATA), 2 * MIB);
	OK(cuMemFree_v2(p));
	OK(cuMemFree_v2(q));
	SAME();
	return FINISH();
}
