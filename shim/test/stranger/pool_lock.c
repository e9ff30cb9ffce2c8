/* No lock of the library's is held while the driver allocates from a pool: a thread that
 * waits for its stream, frees or allocates does not wait for that one. */
#include "stranger.h"

static CUresult allocate(struct task *t) { return cuMemAllocAsync(&t->p, 10 * MIB, NULL); }
static CUresult release(struct task *t) { return cuMemFreeAsync(t->p, NULL); }
static CUresult synchronise(struct task *t) { return (void)t, cuStreamSynchronize(NULL); }
static CUresult synchronise_all(struct task *t) { return (void)t, cuCtxSynchronize(); }

static CUresult trim(struct task *t)
{
	CUmemoryPool pool;
	CUresult r = cuDeviceGetDefaultMemPool(&pool, 0);
	(void)t;
	return r == CUDA_SUCCESS ? cuMemPoolTrimTo(pool, 0) : r;
}

/* One that is refused linear memory looks for room in pools first. */
static CUresult refused(struct task *t)
{
	CUresult r = cuMemAlloc_v2(&t->p, 2000 * MIB);
	return r == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : r;
}

int main(void)
{
	static const struct {
		const char *name;
		CUresult (*run)(struct task *t);
	} others[] = {{"cuStreamSynchronize", synchronise},
		      {"cuCtxSynchronize", synchronise_all},
		      {"cuMemFreeAsync", release},
		      {"cuMemAllocAsync", allocate},
		      {"cuMemPoolTrimTo", trim},
		      {"cuMemAlloc", refused}};
	CUcontext c = start();
	for (unsigned i = 0; i < sizeof others / sizeof *others; i++) {
		struct task a = {.run = allocate}, b = {.run = others[i].run};
		CUdeviceptr p, q;
		/* So that there is something to do at a synchronisation, and to free. */
		OK(cuMemAllocAsync(&p, 40 * MIB, NULL));
		OK(cuMemAllocAsync(&q, 10 * MIB, NULL));
		OK(cuMemFreeAsync(p, NULL));
		b.p = q;
		fakegpu_hold("cuMemAllocFromPoolAsync", 1);
		task_begin(&a, c);
		EQ(fakegpu_held("cuMemAllocFromPoolAsync", 1, LONG), 1);
		task_begin(&b, c);
		if (!task_returned(&b, LONG / 5)) {
			fprintf(stderr, "%s waits for an allocation of another thread\n", others[i].name);
			CHECK(!"returned");
		}
		fakegpu_open("cuMemAllocFromPoolAsync");
		JOIN(&a);
		JOIN(&b);
		OK(a.result);
		OK(b.result);
		OK(cuMemFreeAsync(a.p, NULL));
		if (b.run != release)
			OK(cuMemFreeAsync(q, NULL));
		if (b.run == allocate)
			OK(cuMemFreeAsync(b.p, NULL));
		OK(cuCtxSynchronize());
		SAME();
		EQ(held(RATION_DATA), 0);
	}
	return FINISH();
}
