#include "overhead.h"
#include "hooks/graph.h"

#include "capture.h"
#include "charge.h"
#include "hooks/context_table.h"
#include "hooks/reserve.h"

/* The steps in which a device reserves memory for graphs. */
enum { GRAPH_CHUNK = 32 << 20 };

static bool graph_reserved(const struct reserve *r, uint64_t *bytes);

/* What each device has reserved for the graphs of this process, which share it: what one
 * leaves the next may use, and keep. */
static struct graph_memory {
	struct reserve reserve; /* first, so that one leads to the other */
	uint64_t moves;         /* counts launches that may have parted other graphs from their memory; atomic */
} graph_memory[RATION_DEVICES] = {
#define GRAPH_DEVICE(i) [i] = {.reserve = {.reserved = graph_reserved, .chunk = GRAPH_CHUNK, .device = (i)}}
#define GRAPH_DEVICES(i) GRAPH_DEVICE(i), GRAPH_DEVICE((i) + 1), GRAPH_DEVICE((i) + 2), GRAPH_DEVICE((i) + 3)
	GRAPH_DEVICES(0), GRAPH_DEVICES(4), GRAPH_DEVICES(8), GRAPH_DEVICES(12)};

_Static_assert(RATION_DEVICES == 16, "the table has them all");

uint32_t graph_any;
uint64_t graph_frees;

/* What graphs and their executables will take of each device, as far as their nodes are
 * known. An executable that has run has its memory already, as long as no other has moved
 * into it and the device has let go of none: `other` is graph_memory_mark at which it ran. */
static struct alloc_table graph_graphs[RATION_DEVICES], graph_executables[RATION_DEVICES];

static bool graph_used(void) { return __atomic_load_n(&graph_any, __ATOMIC_RELAXED); }

static bool graph_reserved(const struct reserve *r, uint64_t *bytes)
{
	const struct device *d = device_at(r->device);
	if (!d)
		return false;
	int mode = capture_relax();
	int result = REAL(cuDeviceGetGraphMemAttribute, d->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes);
	capture_restore(mode);
	return result == CUDA_SUCCESS;
}

/* graph_memory_mark returns a number that stays the same, and is never 0, while an
 * executable that ran has its memory. One that frees when it is launched again keeps it
 * meanwhile, whatever others do, unless the program frees it. */
static uint64_t graph_memory_mark(struct graph_memory *m, bool auto_free)
{
	uint64_t moves = auto_free ? load_relaxed(&graph_frees) : load_relaxed(&m->moves);
	return moves + reserve_shrinks(&m->reserve) + 1;
}

void graph_sync(struct device *d)
{
	if (graph_used())
		reserve_look(&graph_memory[d->index].reserve);
}

/* graph_trim makes a device give back what no graph holds. */
static void graph_trim(struct device *d)
{
	int mode = capture_relax();
	REAL(cuDeviceGraphMemTrim, d->ordinal);
	capture_restore(mode);
	reserve_look(&graph_memory[d->index].reserve);
}

/* graph_relieve makes room before a refusal. */
static void graph_relieve(unsigned device, bool wait)
{
	struct device *d = device_at(device);
	(void)wait; /* its lock is held for a few instructions */
	if (d)
		graph_trim(d);
}

/* graph_before_reading is pool_before_reading for graphs. */
static bool graph_before_reading(unsigned device) { return !device_at(device) || reserve_look(&graph_memory[device].reserve); }

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
	struct alloc_table *t = &graph_graphs[d->index];
	if (!alloc_table_change(t, (uintptr_t)graph, graph_add_bytes, &bytes, &r))
		alloc_table_put(t, &(struct alloc_record){.key = (uintptr_t)graph, .bytes = bytes, .device = (uint8_t)d->index});
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

/* graph_capture_begun is for a capture that was counted before the driver was asked. */
static int graph_capture_begun(int result)
{
	if (result != CUDA_SUCCESS)
		capture_ended();
	return result;
}

int cuStreamBeginCapture(CUstream stream)
{
	capture_begun();
	return graph_capture_begun(REAL(cuStreamBeginCapture, stream));
}

int cuStreamBeginCapture_ptsz(CUstream stream)
{
	capture_begun();
	return graph_capture_begun(REAL(cuStreamBeginCapture_ptsz, stream));
}

int cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	capture_begun();
	return graph_capture_begun(REAL(cuStreamBeginCapture_v2, stream, mode));
}

int cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	capture_begun();
	return graph_capture_begun(REAL(cuStreamBeginCapture_v2_ptsz, stream, mode));
}

int cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode)
{
	capture_begun();
	return graph_capture_begun(REAL(cuStreamBeginCaptureToGraph, stream, graph, after, edges, count, mode));
}

int cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode)
{
	capture_begun();
	return graph_capture_begun(REAL(cuStreamBeginCaptureToGraph_ptsz, stream, graph, after, edges, count, mode));
}

/* However it ends: a capture that the driver broke off is over, too. */
int cuStreamEndCapture(CUstream stream, CUgraph *out)
{
	int result = REAL(cuStreamEndCapture, stream, out);
	capture_ended();
	return result;
}

int cuStreamEndCapture_ptsz(CUstream stream, CUgraph *out)
{
	int result = REAL(cuStreamEndCapture_ptsz, stream, out);
	capture_ended();
	return result;
}

/* graph_instantiated hands what the graph will take down to the executable. */
static int graph_instantiated(int result, CUgraph graph, CUgraphExec *out, uint64_t flags)
{
	struct alloc_record r;
	for (unsigned i = 0; i < RATION_DEVICES && result == CUDA_SUCCESS && graph_used(); i++)
		if (alloc_table_get(&graph_graphs[i], (uintptr_t)graph, &r)) {
			r.key = (uintptr_t)*out;
			r.flags = flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH ? RECORD_AUTO_FREE : 0;
			alloc_table_put(&graph_executables[i], &r);
		}
	return result;
}

int cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
	return graph_instantiated(REAL(cuGraphInstantiate, out, graph, error, log, size), graph, out, 0);
}

int cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
	return graph_instantiated(REAL(cuGraphInstantiate_v2, out, graph, error, log, size), graph, out, 0);
}

int cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
	return graph_instantiated(REAL(cuGraphInstantiateWithFlags, out, graph, flags), graph, out, flags);
}

/* The flags come first in the parameters, which the driver has accepted. */
int cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, void *params)
{
	int result = REAL(cuGraphInstantiateWithParams, out, graph, params);
	return graph_instantiated(result, graph, out, result == CUDA_SUCCESS ? *(const uint64_t *)params : 0);
}

int cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph, void *params)
{
	int result = REAL(cuGraphInstantiateWithParams_ptsz, out, graph, params);
	return graph_instantiated(result, graph, out, result == CUDA_SUCCESS ? *(const uint64_t *)params : 0);
}

/* A launch: what it needs of each device. */
struct graph_launch {
	CUgraphExec exec;
	struct graph_part {
		bool part;       /* the launch may take memory of the device */
		uint64_t bytes;  /* all that it allocates there, in whole chunks; 0: nothing is known */
		uint64_t growth; /* charged for it */
		uint64_t mark;   /* graph_memory_mark when it began */
	} device[RATION_DEVICES];
};

/* graph_charge charges a device for all that the executable allocates there, unless it has
 * that already: CUDA_SUCCESS, or what the call must return. Near the limit, what no graph
 * holds is given back first: a graph whose memory is still there would be refused for it
 * otherwise. */
static int graph_charge(struct graph_part *p, const struct alloc_record *r, struct device *d)
{
	struct graph_memory *m = &graph_memory[d->index];
	bool auto_free = r->flags & RECORD_AUTO_FREE;
	reserve_look(&m->reserve);
	p->bytes = (r->bytes + GRAPH_CHUNK - 1) / GRAPH_CHUNK * GRAPH_CHUNK;
	bool moves = p->bytes && r->other != graph_memory_mark(m, auto_free);
	if (moves && charge_would_refuse(d->index, p->bytes))
		graph_trim(d);
	reserve_promise(&m->reserve, p->bytes);
	if (moves) {
		fetch_add(&m->moves, 1);
		int refused = reserve_grow(&m->reserve, 0, 0, p->bytes, &p->growth);
		if (refused) {
			reserve_unpromise(&m->reserve, p->bytes);
			return refused;
		}
	}
	p->part = true;
	p->mark = graph_memory_mark(m, auto_free);
	return CUDA_SUCCESS;
}

static bool graph_set_mark(struct alloc_record *r, void *mark)
{
	r->other = *(const uint64_t *)mark;
	return true;
}

/* graph_launch_end completes the charges, or returns them. */
static void graph_launch_end(struct graph_launch *l, bool launched)
{
	struct alloc_record r;
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		struct graph_part *p = &l->device[i];
		struct reserve *m = &graph_memory[i].reserve;
		if (!p->part)
			continue;
		/* A launch cannot be undone: what was not foreseen is charged by force. */
		if (launched)
			reserve_force_found(m, reserve_grown(m, p->growth));
		else
			reserve_not_grown(m, p->growth);
		reserve_unpromise(m, p->bytes);
		if (launched && p->bytes)
			alloc_table_change(&graph_executables[i], (uintptr_t)l->exec, graph_set_mark, &p->mark, &r);
	}
}

/* graph_launch_begin charges each device for its part: CUDA_SUCCESS, or what the call must
 * return. An executable of which nothing is known may take memory of the current device. */
static int graph_launch_begin(struct graph_launch *l)
{
	struct alloc_record r;
	struct alloc_target t;
	bool known = false;
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		struct device *d = device_at(i);
		if (!d || !alloc_table_get(&graph_executables[i], (uintptr_t)l->exec, &r))
			continue;
		known = true;
		int refused = graph_charge(&l->device[i], &r, d);
		if (refused) {
			graph_launch_end(l, false);
			return refused;
		}
	}
	if (!known && context_target(&t) == 1)
		return graph_charge(&l->device[t.device->index], &(struct alloc_record){.key = 0}, t.device);
	return CUDA_SUCCESS;
}

static int graph_call_launch(CUgraphExec exec, CUstream stream, bool per_thread)
{
	return per_thread ? REAL(cuGraphLaunch_ptsz, exec, stream) : REAL(cuGraphLaunch, exec, stream);
}

/* graph_launch runs a graph that may need memory: it is charged before, and the charge is
 * made what the devices have reserved after. The launch may wait for others of this process
 * to end, so nothing is held meanwhile. */
static int graph_launch(CUgraphExec exec, CUstream stream, bool per_thread)
{
	struct graph_launch l = {.exec = exec};
	int denied = init_enter();
	if (denied || !attach_on())
		return denied ? denied : graph_call_launch(exec, stream, per_thread);
	int result = graph_launch_begin(&l);
	if (result != CUDA_SUCCESS)
		return result;
	result = graph_call_launch(exec, stream, per_thread);
	graph_launch_end(&l, result == CUDA_SUCCESS);
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

/* graph_forget takes the records of a graph or an executable out, before the driver is
 * asked to destroy it; graph_forgotten completes that. */
static void graph_forget(struct alloc_table *tables, uint64_t key, struct alloc_record *r)
{
	for (unsigned i = 0; i < RATION_DEVICES; i++)
		r[i] = graph_used() ? context_take(&tables[i], key) : (struct alloc_record){.key = 0};
}

static int graph_forgotten(struct alloc_table *tables, const struct alloc_record *r, int result)
{
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		struct device *d = alloc_table_freed(&tables[i], &r[i], result == CUDA_SUCCESS) && attach_on() ? device_at(i) : NULL;
		if (d)
			graph_sync(d);
	}
	return result;
}

int cuGraphDestroy(CUgraph graph)
{
	struct alloc_record r[RATION_DEVICES];
	graph_forget(graph_graphs, (uintptr_t)graph, r);
	return graph_forgotten(graph_graphs, r, REAL(cuGraphDestroy, graph));
}

int cuGraphExecDestroy(CUgraphExec exec)
{
	struct alloc_record r[RATION_DEVICES];
	graph_forget(graph_executables, (uintptr_t)exec, r);
	return graph_forgotten(graph_executables, r, REAL(cuGraphExecDestroy, exec));
}

int cuDeviceGraphMemTrim(CUdevice device)
{
	struct device *d;
	int result = REAL(cuDeviceGraphMemTrim, device);
	if (attach_on() && graph_used() && device_of(device, &d) == 1)
		reserve_look(&graph_memory[d->index].reserve);
	return result;
}
