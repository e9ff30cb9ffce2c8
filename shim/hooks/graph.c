#include "overhead.h"
#include "hooks/graph.h"

#include "capture.h"
#include "charge.h"
#include "charge_wait.h"
#include "hooks/context_table.h"
#include "hooks/reserve.h"

/* The steps in which a device reserves memory for graphs. */
enum { GRAPH_CHUNK = 32 << 20 };

static bool graph_reserved(const struct reserve *r, uint64_t *bytes);

/* The bytes that each device has reserved for the graphs of this process. The graphs share
 * them: memory that one graph leaves, the next may use and keep. */
static struct graph_memory {
	struct reserve reserve; /* first, so that a pointer to it is a pointer to graph_memory */
	uint64_t moves;         /* counts launches that may have taken the memory of other graphs; atomic */
} graph_memory[RATION_DEVICES] = {
#define GRAPH_DEVICE(i) [i] = {.reserve = {.reserved = graph_reserved, .chunk = GRAPH_CHUNK, .device = (i)}}
#define GRAPH_DEVICES(i) GRAPH_DEVICE(i), GRAPH_DEVICE((i) + 1), GRAPH_DEVICE((i) + 2), GRAPH_DEVICE((i) + 3)
	GRAPH_DEVICES(0), GRAPH_DEVICES(4), GRAPH_DEVICES(8), GRAPH_DEVICES(12)};

_Static_assert(RATION_DEVICES == 16, "the table has them all");

uint32_t graph_any;

/* Events that may take an executable's memory, besides moves: frees of memory that graphs have
 * allocated, and launches of executables whose nodes are not all known. Both only count up;
 * atomic. */
static uint64_t graph_free_count, graph_unknown_launches;

/* 1: graphs may allocate or free by nodes that no hook has seen: captured ones, or those of a
 * child graph. */
static uint32_t graph_unseen; /* atomic */

/* How many bytes graphs and their executables will take of each device, as far as their nodes
 * are known. An executable that has run already has its memory, as long as no other has taken
 * it and the device has released none: `other` is the value of graph_memory_mark when it ran. */
static struct alloc_table graph_graphs[RATION_DEVICES], graph_executables[RATION_DEVICES];

/* The graph whose node allocates an address, as long as no node of the same graph frees it:
 * `other` is the graph. */
static struct alloc_table graph_addresses;

/* The ranges of addresses that a graph's nodes allocate: `other` is the graph. The driver gives
 * two nodes the same addresses, and so the same memory, if one always frees before the other
 * allocates. Ranges of one graph do not overlap. */
static struct alloc_table graph_ranges;

/* Graphs and executables whose launch may free memory that others have allocated. With
 * RECORD_UNSURE, not all that they allocate is known either. */
static struct alloc_table graph_freeing;

/* Graphs that a capture is making: `other` is the capture's number. If a capture fails, the driver may
 * destroy its graph without a call. Then the record stays, and another graph may get the handle: the
 * number of its capture, or that it has none, shows that the recorded nodes are not its own. */
static struct alloc_table graph_unfinished;

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

/* graph_memory_mark returns a number that is never 0, and stays the same while an executable
 * that ran keeps its memory. An executable that frees its memory when it is launched again
 * (auto_free) keeps it meanwhile, unless the program frees it. */
static uint64_t graph_memory_mark(struct graph_memory *m, bool auto_free)
{
	uint64_t moves = auto_free ? load_acquire(&graph_free_count) : load_acquire(&m->moves) + load_acquire(&graph_unknown_launches);
	return moves + reserve_shrinks(&m->reserve) + 1;
}

void graph_count_free(void) { fetch_add(&graph_free_count, 1); }

void graph_sync(struct device *d)
{
	if (graph_used())
		reserve_look(&graph_memory[d->index].reserve);
}

/* graph_trim makes a device release memory that no graph uses, and updates the charge. */
static void graph_trim(struct device *d)
{
	int mode = capture_relax();
	REAL(cuDeviceGraphMemTrim, d->ordinal);
	capture_restore(mode);
	reserve_look(&graph_memory[d->index].reserve);
}

/* graph_relieve trims a device's graph memory, to free room before a refusal. */
static void graph_relieve(unsigned device)
{
	struct device *d = device_at(device);
	if (d)
		graph_trim(d);
}

/* graph_before_reading updates the charge for graphs for a reading of the driver's count. It
 * returns whether it could. */
static bool graph_before_reading(unsigned device) { return !device_at(device) || reserve_look(&graph_memory[device].reserve); }

/* graph_takes_memory records that graphs of this process may allocate from now on. */
static void graph_takes_memory(void)
{
	__atomic_store_n(&graph_any, 1, __ATOMIC_RELAXED);
	charge_on_pressure(RELIEF_GRAPHS, graph_relieve);
	overhead_on_reading(READING_GRAPHS, graph_before_reading);
}

void graph_unknown(void)
{
	graph_takes_memory();
	__atomic_store_n(&graph_unseen, 1, __ATOMIC_RELAXED);
}

static bool graph_add_flags(struct alloc_record *r, void *flags)
{
	r->flags |= *(const uint8_t *)flags;
	return true;
}

/* graph_may_free records that a graph, or an executable, may free memory that others have
 * allocated. */
static void graph_may_free(const void *handle, uint8_t flags)
{
	bool added;
	if (attach_on())
		alloc_table_add(&graph_freeing, &(struct alloc_record){.key = (uintptr_t)handle, .flags = flags}, graph_add_flags, &flags,
				&added);
}

void graph_has_unseen(CUgraph graph)
{
	__atomic_store_n(&graph_unseen, 1, __ATOMIC_RELAXED);
	graph_may_free(graph, RECORD_UNSURE);
}

static bool graph_add_bytes(struct alloc_record *r, void *bytes)
{
	r->bytes += *(const uint64_t *)bytes;
	return true;
}

/* Finds how many bytes of a new node its graph does not have already. */
struct graph_range {
	uint64_t from, to;  /* the addresses of the node */
	uint64_t low, high; /* the same, joined with the ranges that overlap or touch it */
	uint64_t covered;
	uintptr_t graph;
};

/* graph_merge_range removes a range that overlaps or touches the new one, and joins it to that. */
static bool graph_merge_range(struct alloc_record *r, void *arg)
{
	struct graph_range *n = arg;
	uint64_t from = r->key, to = r->key + r->bytes;
	if (r->other != n->graph || from > n->to || to < n->from)
		return true;
	uint64_t low = from > n->from ? from : n->from, high = to < n->to ? to : n->to;
	n->covered += high - low;
	n->low = from < n->low ? from : n->low;
	n->high = to > n->high ? to : n->high;
	return false;
}

/* graph_add_range adds the range of a new node, and returns how many of its bytes no other node
 * of its graph has already. */
static uint64_t graph_add_range(CUgraph graph, CUdeviceptr at, uint64_t bytes)
{
	struct graph_range n = {at, at + bytes, at, at + bytes, 0, (uintptr_t)graph};
	alloc_table_sweep(&graph_ranges, graph_merge_range, &n);
	alloc_table_put(&graph_ranges, &(struct alloc_record){.key = n.low, .bytes = n.high - n.low, .other = n.graph});
	return bytes - n.covered;
}

static bool graph_of_another(struct alloc_record *r, void *graph) { return r->other != (uintptr_t)graph; }

static void graph_forget_addresses(CUgraph graph)
{
	alloc_table_sweep(&graph_addresses, graph_of_another, graph);
	alloc_table_sweep(&graph_ranges, graph_of_another, graph);
}

/* graph_forget_nodes removes the records of a graph's nodes. */
static void graph_forget_nodes(CUgraph graph)
{
	struct alloc_record r;
	bool any = false;
	alloc_table_take(&graph_freeing, (uintptr_t)graph, &r);
	for (unsigned i = 0; i < RATION_DEVICES; i++)
		any |= alloc_table_take(&graph_graphs[i], (uintptr_t)graph, &r);
	if (any)
		graph_forget_addresses(graph);
}

bool graph_capture_known(CUgraph graph, uint64_t number)
{
	struct alloc_record r;
	uint64_t key = (uintptr_t)graph;
	if (!graph || (alloc_table_get(&graph_freeing, key, &r) && r.flags & RECORD_UNSURE)) {
		graph_unknown();
		return false;
	}
	if (alloc_table_get(&graph_unfinished, key, &r) && r.other == number)
		return true;
	graph_forget_nodes(graph);
	return alloc_table_put(&graph_unfinished, &(struct alloc_record){.key = key, .other = number});
}

void graph_capture_made(CUgraph graph, bool made)
{
	struct alloc_record r;
	if (alloc_table_take(&graph_unfinished, (uintptr_t)graph, &r) && !made)
		graph_forget_nodes(graph);
}

/* graph_not_captured removes the records of an unfinished capture of a graph that is used without it:
 * the capture has failed, and this is another graph; or it is under way. */
static void graph_not_captured(CUgraph graph)
{
	struct alloc_record r;
	if (!alloc_table_take(&graph_unfinished, (uintptr_t)graph, &r))
		return;
	graph_forget_nodes(graph);
	graph_unknown();
}

void graph_add_allocation(CUgraph graph, unsigned device, CUdeviceptr at, uint64_t bytes)
{
	struct alloc_record r;
	struct alloc_table *t = &graph_graphs[device];
	graph_takes_memory();
	alloc_table_put(&graph_addresses, &(struct alloc_record){.key = at, .other = (uintptr_t)graph});
	bytes = graph_add_range(graph, at, (bytes + 511) / 512 * 512);
	if (!alloc_table_change(t, (uintptr_t)graph, graph_add_bytes, &bytes, &r))
		alloc_table_put(t, &(struct alloc_record){.key = (uintptr_t)graph, .bytes = bytes, .device = (uint8_t)device});
}

/* graph_node_added records an allocation node, for the charge at the first launch. */
static void graph_node_added(CUgraph graph, const CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	struct device *d;
	if (!attach_on())
		return;
	graph_takes_memory();
	graph_not_captured(graph);
	if (params->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE && device_of(params->poolProps.location.id, &d) == 1)
		graph_add_allocation(graph, d->index, params->dptr, params->bytesize);
}

void graph_free_added(CUgraph graph, CUdeviceptr at)
{
	struct alloc_record r;
	if (!attach_on())
		return;
	bool known = alloc_table_take(&graph_addresses, at, &r);
	if (known && r.other == (uintptr_t)graph)
		return;
	if (known)
		alloc_table_put(&graph_addresses, &r);
	graph_may_free(graph, 0);
}

/* graph_added records a node of any type. */
static void graph_added(CUgraph graph, const CUgraphNodeParams *params)
{
	switch (params->type) {
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC: graph_node_added(graph, &params->params.alloc); break;
	case CU_GRAPH_NODE_TYPE_MEM_FREE: graph_free_added(graph, params->params.frees); break;
	case CU_GRAPH_NODE_TYPE_GRAPH: graph_has_unseen(graph); break;
	}
}

int cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUdeviceptr at)
{
	int result = REAL_UNLESS(init_enter(), cuGraphAddMemFreeNode, out, graph, after, count, at);
	if (result == CUDA_SUCCESS)
		graph_free_added(graph, at);
	return result;
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
	if (result == CUDA_SUCCESS)
		graph_added(graph, params);
	return result;
}

int cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, CUgraphNodeParams *params)
{
	int result = REAL_UNLESS(init_enter(), cuGraphAddNode_v2, out, graph, after, edges, count, params);
	if (result == CUDA_SUCCESS)
		graph_added(graph, params);
	return result;
}

/* graph_instantiated copies the records of a graph to its executable, and returns result. */
static int graph_instantiated(int result, CUgraph graph, CUgraphExec *out, uint64_t flags)
{
	struct alloc_record r;
	if (graph_used())
		graph_not_captured(graph);
	for (unsigned i = 0; i < RATION_DEVICES && result == CUDA_SUCCESS && graph_used(); i++)
		if (alloc_table_get(&graph_graphs[i], (uintptr_t)graph, &r)) {
			r.key = (uintptr_t)*out;
			r.flags = flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH ? RECORD_AUTO_FREE : 0;
			alloc_table_put(&graph_executables[i], &r);
		}
	if (result == CUDA_SUCCESS && graph_used() && alloc_table_get(&graph_freeing, (uintptr_t)graph, &r))
		graph_may_free(*out, r.flags);
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

/* A launch, and the bytes that it needs of each device. */
struct graph_launch {
	CUgraphExec exec;
	bool known;         /* some of its allocation nodes are known */
	bool frees, unsure; /* it may free memory of others; it may take more than is known */
	struct graph_part {
		bool part;       /* the launch may take memory of the device */
		uint64_t bytes;  /* all bytes that it allocates there, in whole chunks; 0: not known */
		uint64_t growth; /* bytes charged for this launch */
		uint64_t mark;   /* graph_memory_mark when it began */
	} device[RATION_DEVICES];
};

/* graph_charge charges a device for all that the executable allocates there, unless it has that
 * memory already. It returns CUDA_SUCCESS, or the error that the call must return. Near the
 * limit it first trims memory that no graph uses: otherwise a graph that could use that memory
 * would be refused. */
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

/* graph_launch_end completes the charges after a launch, or returns them if nothing was
 * launched. */
static void graph_launch_end(struct graph_launch *l, bool launched)
{
	struct alloc_record r;
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		struct graph_part *p = &l->device[i];
		struct reserve *m = &graph_memory[i].reserve;
		if (!p->part)
			continue;
		/* A launch cannot be undone: unexpected growth is charged even above the limit. */
		if (launched)
			reserve_force_found(m, reserve_grown(m, p->growth));
		else
			reserve_not_grown(m, p->growth);
		reserve_unpromise(m, p->bytes);
		if (launched && p->bytes)
			alloc_table_change(&graph_executables[i], (uintptr_t)l->exec, graph_set_mark, &p->mark, &r);
	}
}

/* graph_launch_begin charges each device for its part. It returns CUDA_SUCCESS, or the error
 * that the call must return. An executable without known nodes may take memory of the current
 * device. */
static int graph_launch_begin(struct graph_launch *l)
{
	*l = (struct graph_launch){.exec = l->exec};
	struct alloc_record r;
	struct alloc_target t;
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		struct device *d = device_at(i);
		if (!d || !alloc_table_get(&graph_executables[i], (uintptr_t)l->exec, &r))
			continue;
		l->known = true;
		int refused = graph_charge(&l->device[i], &r, d);
		if (refused) {
			graph_launch_end(l, false);
			return refused;
		}
	}
	l->frees = alloc_table_get(&graph_freeing, (uintptr_t)l->exec, &r);
	l->unsure = l->frees && r.flags & RECORD_UNSURE;
	if (!l->known && __atomic_load_n(&graph_unseen, __ATOMIC_RELAXED))
		l->frees = l->unsure = true;
	if (!l->known && context_target(&t) == 1)
		return graph_charge(&l->device[t.device->index], &(struct alloc_record){.key = 0}, t.device);
	return CUDA_SUCCESS;
}

/* graph_part_others counts that the launch may take the memory of other executables. Call it
 * before and after the launch, for the reason given at graph_frees. */
static void graph_part_others(const struct graph_launch *l)
{
	if (l->frees)
		fetch_add(&graph_free_count, 1);
	if (l->unsure)
		fetch_add(&graph_unknown_launches, 1);
}

static int graph_call_launch(CUgraphExec exec, CUstream stream, bool per_thread)
{
	return per_thread ? REAL(cuGraphLaunch_ptsz, exec, stream) : REAL(cuGraphLaunch, exec, stream);
}

/* graph_launch launches a graph that may need memory: the charge is made before, and set to the
 * reserved bytes of the devices after. The launch may wait for other launches of this process,
 * so no lock is held. It returns the result of the hooked call. */
static int graph_launch(CUgraphExec exec, CUstream stream, bool per_thread)
{
	struct graph_launch l = {.exec = exec};
	int denied = init_enter();
	if (denied || !attach_on())
		return denied ? denied : graph_call_launch(exec, stream, per_thread);
	int result = charge_waiting(graph_launch_begin(&l));
	/* Leave a bad stream to the driver. */
	if (result != CUDA_SUCCESS)
		return capture_stream_valid(stream, per_thread) ? result : graph_call_launch(exec, stream, per_thread);
	graph_part_others(&l);
	result = graph_call_launch(exec, stream, per_thread);
	graph_part_others(&l);
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

/* The records of a graph or an executable while the driver is asked to destroy it. */
struct graph_end {
	struct alloc_record device[RATION_DEVICES], freeing;
};

/* graph_forget removes the records before the driver is asked: as soon as the object is
 * destroyed, its handle may belong to another one. It returns whether there are any.
 * graph_forgotten must follow: it puts the records back if the driver did not destroy the
 * object, and returns result. */
static bool graph_forget(struct alloc_table *tables, uint64_t key, struct graph_end *e)
{
	bool any = false;
	*e = (struct graph_end){.freeing = {.key = 0}};
	if (!graph_used())
		return false;
	e->freeing = context_take(&graph_freeing, key);
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		e->device[i] = context_take(&tables[i], key);
		any |= e->device[i].key != 0;
	}
	return any;
}

static int graph_forgotten(struct alloc_table *tables, const struct graph_end *e, int result)
{
	alloc_table_freed(&graph_freeing, &e->freeing, result == CUDA_SUCCESS);
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		struct device *d =
			alloc_table_freed(&tables[i], &e->device[i], result == CUDA_SUCCESS) && attach_on() ? device_at(i) : NULL;
		if (d)
			graph_sync(d);
	}
	return result;
}

int cuGraphDestroy(CUgraph graph)
{
	struct graph_end e;
	if (graph_forget(graph_graphs, (uintptr_t)graph, &e))
		graph_forget_addresses(graph);
	return graph_forgotten(graph_graphs, &e, REAL(cuGraphDestroy, graph));
}

int cuGraphExecDestroy(CUgraphExec exec)
{
	struct graph_end e;
	graph_forget(graph_executables, (uintptr_t)exec, &e);
	return graph_forgotten(graph_executables, &e, REAL(cuGraphExecDestroy, exec));
}

int cuDeviceGraphMemTrim(CUdevice device)
{
	struct device *d;
	int result = REAL(cuDeviceGraphMemTrim, device);
	if (attach_on() && graph_used() && device_of(device, &d) == 1)
		reserve_look(&graph_memory[d->index].reserve);
	return result;
}
