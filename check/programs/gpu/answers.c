/* What the driver answers where its documentation does not say, for the tester to print, and to
 * compare with what it answers in a job:
 *
 *   answers graph|context|mipmap|library [fill]
 *
 * With fill the program takes all memory that it is granted before the calls that count. The steps
 * are named after what was done; their values are results of calls, or bytes.
 *
 *   graph    a graph of allocations and frees in a chain: 64 MiB, 96 MiB, 64 MiB, each freed
 *            before the next; then the same three without edges between them. added, instantiated,
 *            launched, trimmed: what is reserved and used for graphs. offsets are addresses less the
 *            lowest one
 *   context  calls in a context that is alive; that was destroyed while it was current; and in one whose
 *            kernel has failed
 *   mipmap   mipmapped arrays of too many levels
 *   library  a library with a variable of 96 MiB: loaded, asked (for its address), unloaded */
#include "driver.h"

#include <pthread.h>
#include <string.h>

#define KERNEL_TEXT                                                                                                            \
	".version 6.4\n.target sm_50\n.address_size 64\n"                                                                      \
	".visible .entry crash()\n{\n\t.reg .u64 a;\n\t.reg .u32 v;\n\tmov.u64 a, 16;\n\tmov.u32 v, 1;\n\tst.global.u32 [a], " \
	"v;\n\tret;\n}\n"

static const char variable[] = ".version 6.4\n.target sm_50\n.address_size 64\n.visible .global .align 16 .b8 large[100663296];\n";

/* Of CUDA 12.0. */
__attribute__((weak)) CUresult cuLibraryLoadData(CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned);
__attribute__((weak)) CUresult cuLibraryGetGlobal(CUdeviceptr *, size_t *, CUlibrary, const char *);
__attribute__((weak)) CUresult cuLibraryUnload(CUlibrary);

static CUdevice device;
static bool full;

/* fill_run takes memory in ever smaller pieces until there is none to be had. */
static void *fill_run(void *context)
{
	CUdeviceptr p;
	MUST(cuCtxSetCurrent, context);
	for (size_t bytes = 64 << 20; bytes >= 2 << 20; bytes /= 2)
		while (cuMemAlloc_v2(&p, bytes) == CUDA_SUCCESS)
			continue;
	return NULL;
}

/* fill does that in a thread of its own: the current context may be dead. */
static void fill(void)
{
	pthread_t thread;
	CUcontext primary;
	if (!full)
		return;
	MUST(cuDevicePrimaryCtxRetain, &primary, device);
	if (pthread_create(&thread, NULL, fill_run, primary) || pthread_join(thread, NULL))
		fail("pthread_create: no thread");
}

static uint64_t graph_attribute(int which)
{
	uint64_t bytes = 0;
	CAN(cuDeviceGetGraphMemAttribute, device, which, &bytes);
	return bytes;
}

static void graph_step(const char *shape, const char *name)
{
	step("%s-%s reserved=%llu used=%llu", shape, name, (unsigned long long)graph_attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT),
	     (unsigned long long)graph_attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
}

static void graph_play(const char *shape, bool chain)
{
	static const uint64_t sizes[] = {64 << 20, 96 << 20, 64 << 20};
	CUdeviceptr at[3], lowest = UINT64_MAX;
	CUgraphNode last = NULL, node;
	CUgraphExec exec;
	CUgraph g;
	MUST(cuGraphCreate, &g, 0);
	for (int i = 0; i < 3; i++) {
		CUDA_MEM_ALLOC_NODE_PARAMS params = {
			.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}},
			.bytesize = sizes[i],
		};
		CAN(cuGraphAddMemAllocNode, &node, g, &last, chain && last ? 1 : 0, &params);
		at[i] = params.dptr;
		lowest = at[i] < lowest ? at[i] : lowest;
		MUST(cuGraphAddMemFreeNode, &last, g, &node, 1, at[i]);
	}
	step("%s-addresses offsets=%llu,%llu,%llu", shape, (unsigned long long)(at[0] - lowest), (unsigned long long)(at[1] - lowest),
	     (unsigned long long)(at[2] - lowest));
	graph_step(shape, "added");
	MUST(cuGraphInstantiateWithFlags, &exec, g, 0);
	graph_step(shape, "instantiated");
	CUresult result = cuGraphLaunch(exec, NULL);
	MUST(cuCtxSynchronize, );
	step("%s-launch result=%d", shape, result);
	graph_step(shape, "launched");
	MUST(cuDeviceGraphMemTrim, device);
	graph_step(shape, "trimmed");
	MUST(cuGraphExecDestroy, exec);
	MUST(cuGraphDestroy, g);
	MUST(cuDeviceGraphMemTrim, device);
	graph_step(shape, "destroyed");
}

static void answer_graph(void)
{
	graph_play("chain", true);
	graph_play("apart", false);
}

/* Calls that a library could ask to find out whether the current context is alive. */
static void context_step(const char *name)
{
	size_t limit = 0, available, total;
	CUdeviceptr p = 0, a = 0;
	CUcontext current = NULL;
	CUdevice on = -1;
	unsigned version = 0;
	CUresult get_current = cuCtxGetCurrent(&current), get_device = cuCtxGetDevice(&on),
		 get_limit = cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE), get_version = cuCtxGetApiVersion(current, &version),
		 info = cuMemGetInfo_v2(&available, &total), alloc = cuMemAlloc_v2(&p, 4096), async = cuMemAllocAsync(&a, 4096, NULL),
		 synchronize = cuCtxSynchronize();
	step("%s current=%d device=%d limit=%d version=%d info=%d alloc=%d async=%d synchronize=%d", name, get_current, get_device,
	     get_limit, get_version, info, alloc, async, synchronize);
	if (alloc == CUDA_SUCCESS)
		cuMemFree_v2(p);
	if (async == CUDA_SUCCESS)
		cuMemFreeAsync(a, NULL);
}

static void answer_context(void)
{
	CUcontext other, popped;
	CUmodule module;
	CUfunction crash;
	context_step("alive");
	MUST(cuModuleLoadData, &module, KERNEL_TEXT);
	MUST(cuModuleGetFunction, &crash, module, "crash");
	MUST(cuCtxCreate_v2, &other, 0, device);
	MUST(cuCtxPushCurrent_v2, other); /* so that it stays current when it is destroyed */
	MUST(cuCtxDestroy_v2, other);
	context_step("destroyed");
	fill();
	context_step("destroyed-full");
	MUST(cuCtxPopCurrent_v2, &popped);
	cuLaunchKernel(crash, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	cuCtxSynchronize();
	context_step("failed");
	exit(0); /* nothing can be released in it */
}

static void answer_mipmap(void)
{
	static const unsigned levels[] = {11, 12, 13, 1000, 4000000000u, 0};
	CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
	fill();
	for (unsigned i = 0; i < sizeof levels / sizeof *levels; i++) {
		CUmipmappedArray array;
		CUresult result = cuMipmappedArrayCreate(&array, &shape, levels[i]);
		step("levels-%u result=%d", levels[i], result);
		if (result == CUDA_SUCCESS)
			MUST(cuMipmappedArrayDestroy, array);
	}
}

static void answer_library(void)
{
	CUdeviceptr at = 0;
	CUlibrary library;
	size_t bytes = 0;
	if (!cuLibraryLoadData || !cuLibraryGetGlobal || !cuLibraryUnload)
		skip("cuLibraryLoadData: the driver is older than CUDA 12");
	CUresult result = cuLibraryLoadData(&library, variable, NULL, NULL, 0, NULL, NULL, 0);
	step("loaded result=%d", result);
	if (result != CUDA_SUCCESS)
		return;
	result = cuLibraryGetGlobal(&at, &bytes, library, "large");
	step("asked result=%d bytes=%zu", result, bytes);
	result = cuLibraryGetGlobal(&at, &bytes, library, "large");
	step("again result=%d bytes=%zu", result, bytes);
	MUST(cuLibraryUnload, library);
	step("unloaded");
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*answer)(void);
	} all[] = {{"graph", answer_graph}, {"context", answer_context}, {"mipmap", answer_mipmap}, {"library", answer_library}};
	full = count == 3 && !strcmp(arguments[2], "fill");
	for (size_t i = 0; (count == 2 || full) && i < sizeof all / sizeof *all; i++) {
		if (strcmp(all[i].name, arguments[1]) != 0)
			continue;
		device = driver_start();
		MUST(cuCtxSynchronize, );
		step("ready");
		all[i].answer();
		return 0;
	}
	fprintf(stderr, "usage: answers graph|context|mipmap|library [fill]\n");
	return STEPS_USAGE;
}
