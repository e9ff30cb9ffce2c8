/* More contexts than the library has numbers for: what is allocated in the last of them is
 * given back with it, as in the first. */
#include "stranger.h"

enum { CONTEXTS = 300 };

int main(void)
{
	static CUcontext c[CONTEXTS];
	CUcontext popped;
	CUdeviceptr p;
	CUmodule m;
	OK(cuInit(0));
	for (int i = 0; i < CONTEXTS; i++) {
		OK(cuCtxCreate_v2(&c[i], 0, 0));
		OK(cuMemAlloc_v2(&p, MIB)); /* so that the library knows it */
		OK(cuCtxPopCurrent_v2(&popped));
	}
	SAME();
	for (int i = CONTEXTS; i-- > 0;) {
		OK(cuCtxSetCurrent(c[i]));
		OK(cuMemAlloc_v2(&p, 2 * MIB));
		OK(cuModuleLoadData(&m, PTX("")));
		OK(cuCtxDestroy_v2(c[i]));
		EQ(held(RATION_DATA), truth(FAKEGPU_DATA));
	}
	SAME();
	EQ(usage_of(0).total, 0);
	return FINISH();
}
