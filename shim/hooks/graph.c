#include "hooks/graph.h"

#include "charge.h"
#include "hooks/context.h"
#include "attach.h"
#include "log.h"
#include "hooks/pool.h"

static const uint64_t CHUNK = 32 << 20;

/* What each device has reserved for our graphs, as charged. All of them share it: what one
 * leaves the next may use, and keep. moves counts what may have come between a graph and
 * its memory: others' launches, and that there is less than there was. */
static struct {
	mutex lock;
	uint64_t charged;
	uint64_t moves;
} reserved[RATION_DEVICES];

static uint32_t any;   /* some graph may allocate */
static uint32_t captures; /* some stream was captured */

/* What graphs and their executables will take, as far as their nodes were seen.
 * An executable that has run since the device's last move has its memory already: its
 * other is the count of moves it ran at, plus one. */
static struct alloc_table graphs, executables;

void graph_takes_memory(void)
{
	__atomic_store_n(&any, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&pools_any, 1, __ATOMIC_RELAXED);
}

bool graph_captures(void) { return __atomic_load_n(&captures, __ATOMIC_RELAXED); }

static bool used(void) { return __atomic_load_n(&any, __ATOMIC_RELAXED); }

/* graph_sync_charge goes from what is charged to what is reserved. Under the lock. */
static void graph_sync_charge(struct device *d, uint64_t charged)
{
	uint64_t now = charged;
	if (REAL(cuDeviceGetGraphMemAttribute, d->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now) != CUDA_SUCCESS)
		now = charged;
	charge_adjust(d->index, RATION_DATA, charged, now);
	if (now < reserved[d->index].charged)
		reserved[d->index].moves++;
	reserved[d->index].charged = now;
}

void graph_sync(struct device *d)
{
	if (!used())
		return;
	mutex_lock(&reserved[d->index].lock);
	graph_sync_charge(d, reserved[d->index].charged);
	mutex_unlock(&reserved[d->index].lock);
}

int graph_relax(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	return graph_captures() && REAL(cuThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS ? mode : -1;
}

void graph_unrelax(int mode)
{
	if (mode >= 0)
		REAL(cuThreadExchangeStreamCaptureMode, &mode);
}

/* let_go makes a device give back what no graph holds. Under the lock. */
static void let_go(struct device *d)
{
	int mode = graph_relax();
	REAL(cuDeviceGraphMemTrim, d->ordinal);
	graph_unrelax(mode);
	graph_sync_charge(d, reserved[d->index].charged);
}

void graph_relieve(unsigned device, bool wait)
{
	struct device *d = used() ? device_at(device) : NULL;
	if (!d)
		return;
	if (wait)
		mutex_lock(&reserved[device].lock);
	else if (!mutex_try(&reserved[device].lock))
		return;
	let_go(d);
	mutex_unlock(&reserved[device].lock);
}

static bool same(struct alloc_record *r, void *arg)
{
	(void)r, (void)arg;
	return true;
}

static bool grow(struct alloc_record *r, void *arg)
{
	r->bytes += *(const uint64_t *)arg;
	return true;
}

/* node remembers an allocation node. */
static void node(CUgraph graph, const CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	struct alloc_record r;
	struct device *d;
	uint64_t bytes = (params->bytesize + 511) / 512 * 512;
	graph_takes_memory();
	if (params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || device_of(params->poolProps.location.id, &d) != 1)
		return;
	if (!alloc_table_change(&graphs, (uintptr_t)graph, grow, &bytes, &r))
		alloc_table_put(&graphs, &(struct alloc_record){.key = (uintptr_t)graph, .bytes = bytes, .device = (uint8_t)d->index});
}

int cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	ENTER(cuGraphAddMemAllocNode, out, graph, after, count, params);
	int result = REAL(cuGraphAddMemAllocNode, out, graph, after, count, params);
	if (result == CUDA_SUCCESS)
		node(graph, params);
	return result;
}

#define ADD_NODE(symbol, ...)                                                                                          \
	do {                                                                                                           \
		ENTER(symbol, __VA_ARGS__);                                                                            \
		int result = REAL(symbol, __VA_ARGS__);                                                                \
		if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)                            \
			node(graph, &params->params.alloc);                                                            \
		return result;                                                                                         \
	} while (0)

int cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *params)
{
	ADD_NODE(cuGraphAddNode, out, graph, after, count, params);
}

int cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
		      CUgraphNodeParams *params)
{
	ADD_NODE(cuGraphAddNode_v2, out, graph, after, edges, count, params);
}

#define CAPTURE(symbol, ...)                                                                                           \
	do {                                                                                                           \
		__atomic_store_n(&captures, 1, __ATOMIC_RELAXED);                                                      \
		return REAL(symbol, __VA_ARGS__);                                                                      \
	} while (0)

int cuStreamBeginCapture(CUstream stream) { CAPTURE(cuStreamBeginCapture, stream); }
int cuStreamBeginCapture_ptsz(CUstream stream) { CAPTURE(cuStreamBeginCapture_ptsz, stream); }
int cuStreamBeginCapture_v2(CUstream stream, int mode) { CAPTURE(cuStreamBeginCapture_v2, stream, mode); }
int cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) { CAPTURE(cuStreamBeginCapture_v2_ptsz, stream, mode); }

int cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode)
{
	CAPTURE(cuStreamBeginCaptureToGraph, stream, graph, after, edges, count, mode);
}

int cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode)
{
	CAPTURE(cuStreamBeginCaptureToGraph_ptsz, stream, graph, after, edges, count, mode);
}

/* INSTANTIATE hands what the graph will take down to the executable. */
#define INSTANTIATE(symbol, ...)                                                                                       \
	do {                                                                                                           \
		struct alloc_record r;                                                                                       \
		int result = REAL(symbol, __VA_ARGS__);                                                                \
		if (result == CUDA_SUCCESS && used() && alloc_table_change(&graphs, (uintptr_t)graph, same, NULL, &r)) {   \
			r.key = (uintptr_t)*out;                                                                       \
			r.other = 0;                                                                                   \
			alloc_table_put(&executables, &r);                                                                 \
		}                                                                                                      \
		return result;                                                                                         \
	} while (0)

int cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
	INSTANTIATE(cuGraphInstantiate, out, graph, error, log, size);
}

int cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
	INSTANTIATE(cuGraphInstantiate_v2, out, graph, error, log, size);
}

int cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
	INSTANTIATE(cuGraphInstantiateWithFlags, out, graph, flags);
}

int cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, void *params)
{
	INSTANTIATE(cuGraphInstantiateWithParams, out, graph, params);
}

int cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph, void *params)
{
	INSTANTIATE(cuGraphInstantiateWithParams_ptsz, out, graph, params);
}

static bool ran(struct alloc_record *r, void *at)
{
	r->other = *(const uint64_t *)at;
	return true;
}

/* launch runs a graph. One that may need memory is charged for all its nodes before, and
 * what it came to is settled after. Near the limit, what no graph holds goes first: a graph
 * whose memory is still there would be refused for it otherwise. */
static int launch(CUgraphExec exec, CUstream stream, bool per_thread)
{
	struct alloc_record r = {.bytes = 0};
	struct alloc_target at;
	uint64_t more = 0;
	bool known = alloc_table_change(&executables, (uintptr_t)exec, same, NULL, &r);
	struct device *d = known ? device_at(r.device) : context_target(&at) == 1 ? at.device : NULL;
	if (!d)
		return per_thread ? REAL(cuGraphLaunch_ptsz, exec, stream) : REAL(cuGraphLaunch, exec, stream);
	mutex_lock(&reserved[d->index].lock);
	graph_sync_charge(d, reserved[d->index].charged);
	if (r.other != reserved[d->index].moves + 1) {
		more = (r.bytes + CHUNK - 1) / CHUNK * CHUNK;
		if (more && charge_would_refuse(d->index, more))
			let_go(d);
		reserved[d->index].moves++;
	}
	uint64_t at_move = reserved[d->index].moves + 1;
	int result = more ? charge_add(d->index, RATION_DATA, more, true) : CUDA_SUCCESS;
	if (result == CUDA_SUCCESS) {
		result = per_thread ? REAL(cuGraphLaunch_ptsz, exec, stream) : REAL(cuGraphLaunch, exec, stream);
		graph_sync_charge(d, reserved[d->index].charged + more);
	}
	mutex_unlock(&reserved[d->index].lock);
	if (known && result == CUDA_SUCCESS)
		alloc_table_change(&executables, (uintptr_t)exec, ran, &at_move, &r);
	return result;
}

int cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	if (likely(!used()))
		return REAL(cuGraphLaunch, exec, stream);
	ENTER(cuGraphLaunch, exec, stream);
	return launch(exec, stream, false);
}

int cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	if (likely(!used()))
		return REAL(cuGraphLaunch_ptsz, exec, stream);
	ENTER(cuGraphLaunch_ptsz, exec, stream);
	return launch(exec, stream, true);
}

/* GONE forgets a graph or an executable, and looks at what is reserved. */
#define GONE(table, handle, symbol)                                                                                    \
	do {                                                                                                           \
		struct alloc_record r;                                                                                       \
		bool known = used() && alloc_table_take(&table, (uintptr_t)(handle), &r);                                  \
		int result = REAL(symbol, handle);                                                                     \
		if (known && result != CUDA_SUCCESS)                                                                   \
			alloc_table_put(&table, &r);                                                                       \
		else if (known && attach_state() == ATTACH_ON && device_at(r.device))                                      \
			graph_sync(device_at(r.device));                                                               \
		return result;                                                                                         \
	} while (0)

int cuGraphDestroy(CUgraph graph) { GONE(graphs, graph, cuGraphDestroy); }
int cuGraphExecDestroy(CUgraphExec exec) { GONE(executables, exec, cuGraphExecDestroy); }

int cuDeviceGraphMemTrim(CUdevice device)
{
	struct device *d;
	LEAVE_ALONE(cuDeviceGraphMemTrim, device);
	if (!used() || device_of(device, &d) != 1)
		return REAL(cuDeviceGraphMemTrim, device);
	mutex_lock(&reserved[d->index].lock);
	int result = REAL(cuDeviceGraphMemTrim, device);
	graph_sync_charge(d, reserved[d->index].charged);
	mutex_unlock(&reserved[d->index].lock);
	return result;
}
