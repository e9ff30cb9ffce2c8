/* No lock of the library's is held while the driver launches a graph: a launch may wait for
 * room in its stream, which another thread makes only once its own launch has come to pass. */
#include "stranger.h"

static CUstream full, other;

static CUgraphExec graph(uint64_t bytes)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
		.bytesize = bytes,
	};
	CUgraphNode a, f;
	CUgraphExec e;
	CUgraph g;
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &params));
	OK(cuGraphAddMemFreeNode(&f, g, &a, 1, params.dptr));
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	OK(cuGraphDestroy(g));
	return e;
}

static CUresult waits(struct task *t) { return cuGraphLaunch(t->exec, full); }

/* What the other thread does before it waits for the stream that is full. */
static CUresult launch(struct task *t) { return cuGraphLaunch(t->exec, other); }
static CUresult trim(struct task *t) { return (void)t, cuDeviceGraphMemTrim(0); }
static CUresult destroy(struct task *t) { return cuGraphExecDestroy(t->exec); }

/* One that is refused linear memory looks for room in graphs' memory first. */
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
	} others[] = {{"cuGraphLaunch", launch}, {"cuDeviceGraphMemTrim", trim}, {"cuMemAlloc", refused}, {"cuGraphExecDestroy", destroy}};
	CUcontext c = start();
	CUgraphExec first = graph(40 * MIB), second = graph(50 * MIB);
	OK(cuStreamCreate(&full, 1));
	OK(cuStreamCreate(&other, 1));
	for (unsigned i = 0; i < sizeof others / sizeof *others; i++) {
		struct task a = {.run = waits, .exec = first}, b = {.run = others[i].run, .exec = second};
		OK(cuGraphLaunch(first, full)); /* FAKEGPU_QUEUE: there is room for one */
		task_begin(&a, c);
		EQ(fakegpu_held("queue", 1, LONG), 1);
		task_begin(&b, c);
		if (!task_returned(&b, LONG / 5)) {
			fprintf(stderr, "%s waits for a launch of another thread\n", others[i].name);
			CHECK(!"returned");
		}
		OK(cuStreamSynchronize(full));
		JOIN(&a);
		JOIN(&b);
		OK(a.result);
		OK(b.result);
		OK(cuCtxSynchronize());
		SAME();
	}
	OK(cuDeviceGraphMemTrim(0));
	SAME();
	EQ(held(RATION_DATA), 0);
	return FINISH();
}
