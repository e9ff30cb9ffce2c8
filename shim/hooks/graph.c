#include "overhead.h"
#include "hooks/graph.h"

#include "capture.h"
#include "charge.h"
#include "hooks/context_table.h"

/* The steps in which a device reserves memory for graphs. */
static const uint64_t GRAPH_CHUNK = 32 << 20;

/* What each device has reserved for the graphs of this process, which share it: what one
 * leaves the next may use, and keep. */
static struct graph_memory {
	mutex lock;       /* LOCK_GRAPH, over the rest; held across the driver's calls */
	uint64_t charged; /* bytes */
	uint64_t moves;   /* counts what may have parted a graph from its memory: launches of others, and a smaller reserve */
} graph_memory[RATION_DEVICES];

static uint32_t graph_any; /* graphs of this process may allocate; atomic */

/* What graphs and their executables will take, as far as their nodes are known. An
 * executable that has run since its device's last move has its memory already: `other` is
 * the count of moves at which it ran, plus one. */
static struct alloc_table graph_graphs, graph_executables;

static bool graph_used(void) { return __atomic_load_n(&graph_any, __ATOMIC_RELAXED); }

/* graph_sync_charge goes from what is charged to what is reserved. Under the lock. */
static void graph_sync_charge(struct device *d, uint64_t charged)
{
	struct graph_memory *m = &graph_memory[d->index];
	uint64_t now = charged;
	if (REAL(cuDeviceGetGraphMemAttribute, d->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now) != CUDA_SUCCESS)
		now = charged;
	charge_resize(d->index, RATION_DATA, charged, now);
	if (now < m->charged)
		m->moves++;
	m->charged = now;
}

void graph_sync(struct device *d)
{
	struct graph_memory *m = &graph_memory[d->index];
	if (!graph_used())
		return;
	mutex_lock(&m->lock, LOCK_GRAPH);
	graph_sync_charge(d, m->charged);
	mutex_unlock(&m->lock);
}

/* graph_trim makes a device give back what no graph holds. Under the lock. */
static void graph_trim(struct device *d)
{
	int mode = capture_relax();
	REAL(cuDeviceGraphMemTrim, d->ordinal);
	capture_restore(mode);
	graph_sync_charge(d, graph_memory[d->index].charged);
}

/* graph_relieve makes room before a refusal. */
static void graph_relieve(unsigned device, bool wait)
{
	struct graph_memory *m = &graph_memory[device];
	struct device *d = device_at(device);
	if (!d)
		return;
	if (wait)
		mutex_lock(&m->lock, LOCK_GRAPH);
	else if (!mutex_try(&m->lock, LOCK_GRAPH))
		return;
	graph_trim(d);
	mutex_unlock(&m->lock);
}

/* graph_before_reading is pool_before_reading for graphs. */
static bool graph_before_reading(unsigned device)
{
	struct graph_memory *m = &graph_memory[device];
	struct device *d = device_at(device);
	if (!d || !mutex_try(&m->lock, LOCK_GRAPH))
		return !d;
	graph_sync_charge(d, m->charged);
	mutex_unlock(&m->lock);
	return true;
}

void graph_takes_memory(void)
{
	__atomic_store_n(&graph_any, 1, __ATOMIC_RELAXED);
	charge_on_pressure(RELIEF_GRAPHS, graph_relieve);
	overhead_on_reading(READING_GRAPHS, graph_before_reading);
}

static bool graph_add_bytes(struct alloc_record *r, void *bytes)
{
	r->bytes += *(const uint64_t *)bytes;
	return true;
}

/* graph_node_added remembers an allocation node for the first launch. */
static void graph_node_added(CUgraph graph, const CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	struct alloc_record r;
	struct device *d;
	uint64_t bytes = (params->bytesize + 511) / 512 * 512;
	if (!attach_on())
		return;
	graph_takes_memory();
	if (params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || device_of(params->poolProps.location.id, &d) != 1)
		return;
	if (!alloc_table_change(&graph_graphs, (uintptr_t)graph, graph_add_bytes, &bytes, &r))
		alloc_table_put(&graph_graphs,
				&(struct alloc_record){.key = (uintptr_t)graph, .bytes = bytes, .device = (uint8_t)d->index});
}

int cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	int result = REAL_UNLESS(init_enter(), cuGraphAddMemAllocNode, out, graph, after, count, params);
	if (result == CUDA_SUCCESS)
		graph_node_added(graph, params);
	return result;
}

int cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *params)
{
	int result = REAL_UNLESS(init_enter(), cuGraphAddNode, out, graph, after, count, params);
	if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		graph_node_added(graph, &params->params.alloc);
	return result;
}

int cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, CUgraphNodeParams *params)
{
	int result = REAL_UNLESS(init_enter(), cuGraphAddNode_v2, out, graph, after, edges, count, params);
	if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		graph_node_added(graph, &params->params.alloc);
	return result;
}

int cuStreamBeginCapture(CUstream stream)
{
	capture_begun();
	return REAL(cuStreamBeginCapture, stream);
}

int cuStreamBeginCapture_ptsz(CUstream stream)
{
	capture_begun();
	return REAL(cuStreamBeginCapture_ptsz, stream);
}

int cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	capture_begun();
	return REAL(cuStreamBeginCapture_v2, stream, mode);
}

int cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	capture_begun();
	return REAL(cuStreamBeginCapture_v2_ptsz, stream, mode);
}

int cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode)
{
	capture_begun();
	return REAL(cuStreamBeginCaptureToGraph, stream, graph, after, edges, count, mode);
}

int cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode)
{
	capture_begun();
	return REAL(cuStreamBeginCaptureToGraph_ptsz, stream, graph, after, edges, count, mode);
}

/* graph_instantiated hands what the graph will take down to the executable. */
static int graph_instantiated(int result, CUgraph graph, CUgraphExec *out)
{
	struct alloc_record r;
	if (result == CUDA_SUCCESS && graph_used() && alloc_table_get(&graph_graphs, (uintptr_t)graph, &r)) {
		r.key = (uintptr_t)*out;
		r.other = 0;
		alloc_table_put(&graph_executables, &r);
	}
	return result;
}

int cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
	return graph_instantiated(REAL(cuGraphInstantiate, out, graph, error, log, size), graph, out);
}

int cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
	return graph_instantiated(REAL(cuGraphInstantiate_v2, out, graph, error, log, size), graph, out);
}

int cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
	return graph_instantiated(REAL(cuGraphInstantiateWithFlags, out, graph, flags), graph, out);
}

int cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, void *params)
{
	return graph_instantiated(REAL(cuGraphInstantiateWithParams, out, graph, params), graph, out);
}

int cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph, void *params)
{
	return graph_instantiated(REAL(cuGraphInstantiateWithParams_ptsz, out, graph, params), graph, out);
}

static bool graph_set_run_at(struct alloc_record *r, void *moves)
{
	r->other = *(const uint64_t *)moves;
	return true;
}

static int graph_call_launch(CUgraphExec exec, CUstream stream, bool per_thread)
{
	return per_thread ? REAL(cuGraphLaunch_ptsz, exec, stream) : REAL(cuGraphLaunch, exec, stream);
}

/* graph_launch runs a graph. One that may need memory is charged for all its nodes
 * before, and the charge is made what the device has reserved after. Near the limit, what
 * no graph holds is given back first: a graph whose memory is still there would be refused
 * for it otherwise. */
static int graph_launch(CUgraphExec exec, CUstream stream, bool per_thread)
{
	struct alloc_record r = {.bytes = 0};
	struct alloc_target t;
	uint64_t more = 0;
	int result = init_enter();
	if (result)
		return result;
	bool on = attach_on(), known = on && alloc_table_get(&graph_executables, (uintptr_t)exec, &r);
	struct device *d = known ? device_at(r.device) : on && context_target(&t) == 1 ? t.device : NULL;
	if (!d)
		return graph_call_launch(exec, stream, per_thread);
	struct graph_memory *m = &graph_memory[d->index];
	mutex_lock(&m->lock, LOCK_GRAPH);
	graph_sync_charge(d, m->charged);
	if (r.other != m->moves + 1) {
		more = (r.bytes + GRAPH_CHUNK - 1) / GRAPH_CHUNK * GRAPH_CHUNK;
		if (more && charge_would_refuse(d->index, more))
			graph_trim(d);
		m->moves++;
	}
	uint64_t run_at = m->moves + 1;
	result = more ? charge_add(d->index, RATION_DATA, more, true) : CUDA_SUCCESS;
	if (result == CUDA_SUCCESS) {
		result = graph_call_launch(exec, stream, per_thread);
		if (result == CUDA_SUCCESS)
			charge_arrived(d->index, more);
		else
			charge_return(d->index, RATION_DATA, more);
		graph_sync_charge(d, m->charged + (result == CUDA_SUCCESS ? more : 0));
	}
	mutex_unlock(&m->lock);
	if (known && result == CUDA_SUCCESS)
		alloc_table_change(&graph_executables, (uintptr_t)exec, graph_set_run_at, &run_at, &r);
	return result;
}

int cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	return likely(!graph_used()) ? REAL(cuGraphLaunch, exec, stream) : graph_launch(exec, stream, false);
}

int cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	return likely(!graph_used()) ? REAL(cuGraphLaunch_ptsz, exec, stream) : graph_launch(exec, stream, true);
}

/* graph_destroyed completes what began with context_take. */
static int graph_destroyed(struct alloc_table *t, const struct alloc_record *r, int result)
{
	struct device *d = alloc_table_freed(t, r, result == CUDA_SUCCESS) && attach_on() ? device_at(r->device) : NULL;
	if (d)
		graph_sync(d);
	return result;
}

int cuGraphDestroy(CUgraph graph)
{
	struct alloc_record r = context_take(&graph_graphs, (uintptr_t)graph);
	return graph_destroyed(&graph_graphs, &r, REAL(cuGraphDestroy, graph));
}

int cuGraphExecDestroy(CUgraphExec exec)
{
	struct alloc_record r = context_take(&graph_executables, (uintptr_t)exec);
	return graph_destroyed(&graph_executables, &r, REAL(cuGraphExecDestroy, exec));
}

int cuDeviceGraphMemTrim(CUdevice device)
{
	struct device *d;
	if (!attach_on() || !graph_used() || device_of(device, &d) != 1)
		return REAL(cuDeviceGraphMemTrim, device);
	struct graph_memory *m = &graph_memory[d->index];
	mutex_lock(&m->lock, LOCK_GRAPH);
	int result = REAL(cuDeviceGraphMemTrim, device);
	graph_sync_charge(d, m->charged);
	mutex_unlock(&m->lock);
	return result;
}
