/* Many threads in one pool, at the limit, while others wait, trim and fill what is given back: the stand-in
 * driver lets a pool grow only by what it lacks, so that all growth can be foreseen, and the driver never
 * has more than the limit, at no instant. When all have returned, the count is the driver's. */
#include "stranger.h"

enum { THREADS = 6, STEPS = 4000, HELD = 6 };

static CUmemoryPool pool;
static uint32_t running = THREADS;

static uint64_t next(uint64_t *random)
{
	*random = *random * 6364136223846793005ull + 1442695040888963407ull;
	return *random >> 33;
}

/* Allocates and frees; some threads linear memory, which takes what the pool gives back. */
static CUresult walk(struct task *t)
{
	uint64_t random = t->bytes;
	bool linear = t->bytes % 3 == 0;
	CUdeviceptr p[HELD] = {0};
	CUresult r = CUDA_SUCCESS;
	for (int i = 0; i < STEPS && r == CUDA_SUCCESS; i++) {
		CUdeviceptr *at = &p[next(&random) % HELD];
		size_t size = 1 + next(&random) % (70 * MIB);
		if (*at != 0) {
			r = linear || next(&random) % 4 == 0 ? cuMemFree_v2(*at) : cuMemFreeAsync(*at, NULL);
			*at = 0;
		} else {
			r = linear ? cuMemAlloc_v2(at, size) : cuMemAllocFromPoolAsync(at, size, pool, NULL);
		}
		if (r == CUDA_ERROR_OUT_OF_MEMORY) {
			*at = 0;
			r = CUDA_SUCCESS;
		}
		if (r == CUDA_SUCCESS && next(&random) % 8 == 0)
			r = next(&random) % 2 ? cuStreamSynchronize(NULL) : cuMemPoolTrimTo(pool, 0);
	}
	for (int i = 0; i < HELD && r == CUDA_SUCCESS; i++)
		r = p[i] == 0 ? CUDA_SUCCESS : linear ? cuMemFree_v2(p[i]) : cuMemFreeAsync(p[i], NULL);
	__atomic_fetch_sub(&running, 1, __ATOMIC_RELEASE);
	return r;
}

int main(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	struct task t[THREADS];
	uint64_t most = 0;
	unsigned wrong = 0;
	CUcontext c = start();
	OK(cuMemPoolCreate(&pool, &props));
	for (unsigned i = 0; i < THREADS; i++) {
		t[i] = (struct task){.run = walk, .bytes = i + 1};
		task_begin(&t[i], c);
	}
	while (__atomic_load_n(&running, __ATOMIC_ACQUIRE) > 0) {
		uint64_t now = 0;
		wrong += fakegpu_truth(0, NULL, &now) != 0;
		most = now > most ? now : most;
	}
	for (unsigned i = 0; i < THREADS; i++) {
		JOIN(&t[i]);
		OK(t[i].result);
	}
	EQ(wrong, 0);
	CHECK(most <= limit_of(0));
	SAME(); /* what was kept for the sake of a request, the last one gave back */
	OK(cuCtxSynchronize());
	SAME();
	OK(cuMemPoolTrimTo(pool, 0));
	SAME();
	EQ(held(RATION_DATA), 0);
	return FINISH();
}
