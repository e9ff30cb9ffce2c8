#include "graph.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "graphpool.h"
#include "space.h"

enum { AUTO_FREE_ON_LAUNCH = 1 };

enum node_type { NODE_EMPTY, NODE_ALLOC, NODE_FREE, NODE_KERNEL };

struct graph_node {
	struct handle handle;
	enum node_type type;
	CUDA_MEM_ALLOC_NODE_PARAMS params; /* an allocation's */
	unsigned device;
	bool live;           /* launched, and not freed since */
	CUdeviceptr frees;   /* a free node's pointer */
	bool frees_other;    /* which another graph allocated */
	uint64_t ns;         /* duration of a kernel */
	struct graph *graph; /* NULL once that is gone, while the allocation lives on */
	struct graph_node *next;
	struct graph_node **after; /* the nodes that it comes after */
	size_t after_count;
	unsigned long visit; /* the latest graph_comes_after that came here */
	/* An allocation may have the address of one that an earlier node of the graph has freed. */
	struct graph_node *root;  /* the first with this address; NULL where that is this one */
	struct graph_node *last;  /* a root's: the last one with its address; NULL where that is the root */
	struct graph_node *freer; /* the node of the same graph that frees it */
	bool kept;                /* a root whose graph is gone, while the last one lives */
};

struct graph {
	struct handle handle;
	struct graph_node *nodes;
	unsigned long references; /* its handle and its executables */
	bool destroyed;
};

struct graph_exec {
	struct handle handle;
	struct graph *graph;
	unsigned long long flags;
	uint64_t ns; /* duration of its kernels when it was made */
};

static pthread_mutex_t graph_lock = PTHREAD_MUTEX_INITIALIZER; /* over all of the above */

static struct graph *graph_get(CUgraph handle, const char *call)
{
	struct graph *g = handle_want(handle, HANDLE_GRAPH, call);
	return g != NULL && !g->destroyed ? g : NULL;
}

/* Under the lock. */
static void graph_node_free(struct graph_node *n)
{
	struct block b;
	if (n->type == NODE_ALLOC && n->root == NULL)
		space_remove(n->params.dptr, 1u << BLOCK_GRAPH, &b);
	free(n->after);
	handle_drop(n);
}

/* Of an allocation that has outlived its graph. Under the lock. */
static void graph_node_drop(struct graph_node *n)
{
	struct graph_node *root = n->root;
	graph_node_free(n);
	if (root != NULL && root->kept)
		graph_node_free(root);
}

/* Under the lock. An allocation that was launched and not freed outlives its graph. */
static void graph_drop(struct graph *g)
{
	struct graph_node *next;
	if (--g->references > 0)
		return;
	for (struct graph_node *n = g->nodes; n != NULL; n = n->next)
		if (n->live && n->root != NULL)
			n->root->kept = true;
	for (struct graph_node *n = g->nodes; n != NULL; n = next) {
		next = n->next;
		n->graph = NULL;
		if (!n->live && !n->kept)
			graph_node_free(n);
	}
	handle_drop(g);
}

CUresult graph_create(CUgraph *out)
{
	struct graph *g = handle_new(sizeof *g, HANDLE_GRAPH, NULL);
	if (g == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	g->references = 1;
	*out = g;
	return CUDA_SUCCESS;
}

API cuGraphCreate(CUgraph *out, unsigned flags)
{
	TRY(driver_ready());
	return out == NULL || flags != 0 ? CUDA_ERROR_INVALID_VALUE : graph_create(out);
}

CUresult graph_destroy(CUgraph handle)
{
	struct graph *g;
	TRY(driver_ready());
	pthread_mutex_lock(&graph_lock);
	g = graph_get(handle, "cuGraphDestroy");
	if (g != NULL) {
		g->destroyed = true;
		graph_drop(g);
	}
	pthread_mutex_unlock(&graph_lock);
	return g == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuGraphDestroy(CUgraph g) { ENTRY(cuGraphDestroy, graph_destroy(g)); }

static CUresult graph_add(CUgraphNode *out, CUgraph handle, const struct graph_node *like, struct graph_after after, const char *call)
{
	struct graph_node *n, **copy = NULL;
	struct graph *g;

	if (after.count > 0 && (after.nodes == NULL || (copy = malloc(after.count * sizeof(struct graph_node *))) == NULL))
		return CUDA_ERROR_INVALID_VALUE;
	if (copy != NULL)
		memcpy(copy, after.nodes, after.count * sizeof(struct graph_node *));
	pthread_mutex_lock(&graph_lock);
	g = graph_get(handle, call);
	n = g == NULL || out == NULL ? NULL : handle_new(sizeof *n, HANDLE_NODE, NULL);
	if (n != NULL) {
		struct handle h = n->handle;
		*n = *like;
		n->handle = h;
		n->graph = g;
		n->after = copy;
		n->after_count = after.count;
		copy = NULL;
		n->next = g->nodes;
		g->nodes = n;
		*out = n;
	}
	pthread_mutex_unlock(&graph_lock);
	free(copy);
	return n == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuGraphAddEmptyNode(CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t count)
{
	struct graph_node like = {.type = NODE_EMPTY};
	TRY(driver_ready());
	return graph_add(out, g, &like, (struct graph_after){after, count}, "cuGraphAddEmptyNode");
}

CUresult graph_add_kernel(CUgraphNode *out, CUgraph g, struct graph_after after, uint64_t ns)
{
	struct graph_node like = {.type = NODE_KERNEL, .ns = ns};
	return graph_add(out, g, &like, after, "cuGraphAddKernelNode");
}

CUresult graph_add_other(CUgraphNode *out, CUgraph g)
{
	struct graph_node like = {.type = NODE_EMPTY};
	return graph_add(out, g, &like, GRAPH_FIRST, "capture");
}

/* Under the lock. visit differs at each call from outside. */
static bool graph_comes_after(struct graph_node *n, const struct graph_node *earlier, unsigned long visit)
{
	if (n->visit == visit)
		return false;
	n->visit = visit;
	for (size_t i = 0; i < n->after_count; i++)
		if (n->after[i] == earlier || graph_comes_after(n->after[i], earlier, visit))
			return true;
	return false;
}

/* A new allocation gets the address of one that is surely freed before, if it fits. */
static bool graph_reuse(struct graph_node *n)
{
	static unsigned long visits;
	struct graph_node *found = NULL;
	pthread_mutex_lock(&graph_lock);
	for (struct graph_node *r = n->graph->nodes; r != NULL && found == NULL; r = r->next) {
		struct graph_node *last = r->last != NULL ? r->last : r;
		if (r != n && r->type == NODE_ALLOC && r->root == NULL && r->device == n->device && last->freer != NULL &&
		    n->params.bytesize <= r->params.bytesize && graph_comes_after(n, last->freer, ++visits))
			found = r;
	}
	if (found != NULL) {
		n->root = found;
		n->params.dptr = found->params.dptr;
		found->last = n;
	}
	pthread_mutex_unlock(&graph_lock);
	return found != NULL;
}

CUresult graph_add_alloc(CUgraphNode *out, CUgraph g, struct graph_after after, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	struct graph_node like = {.type = NODE_ALLOC};
	struct block b = {.kind = BLOCK_GRAPH};

	TRY(driver_ready());
	if (params == NULL || params->bytesize == 0 || params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(device_check(params->poolProps.location.id));
	like.params = *params;
	like.device = b.device = device_index(params->poolProps.location.id);
	b.size = params->bytesize;
	if (b.size > machine_capacity(b.device))
		return CUDA_ERROR_OUT_OF_MEMORY;
	TRY(graph_add(out, g, &like, after, "cuGraphAddMemAllocNode"));
	if (graph_reuse(*out)) {
		params->dptr = (*out)->params.dptr;
		return CUDA_SUCCESS;
	}
	b.owner = *out;
	if (!space_take(&b, false)) {
		(*out)->type = NODE_EMPTY;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	(*out)->params.dptr = params->dptr = b.address;
	return CUDA_SUCCESS;
}

API cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	ENTRY(cuGraphAddMemAllocNode, graph_add_alloc(out, g, (struct graph_after){after, count}, params));
}

/* Which of the allocations with one address the program means: the last. */
static struct graph_node *graph_last(struct graph_node *root) { return root->last != NULL ? root->last : root; }

CUresult graph_add_free(CUgraphNode *out, CUgraph g, struct graph_after after, CUdeviceptr p)
{
	struct graph_node like = {.type = NODE_FREE, .frees = p};
	struct graph_node *target;
	struct block b;

	TRY(driver_ready());
	if (!space_find(p, &b) || b.kind != BLOCK_GRAPH || b.address != p)
		return CUDA_ERROR_INVALID_VALUE;
	target = graph_last(b.owner);
	like.frees_other = target->graph != g;
	if (target->freer != NULL)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(graph_add(out, g, &like, after, "cuGraphAddMemFreeNode"));
	pthread_mutex_lock(&graph_lock);
	if (!like.frees_other)
		target->freer = *out;
	pthread_mutex_unlock(&graph_lock);
	return CUDA_SUCCESS;
}

API cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t count, CUdeviceptr p)
{
	ENTRY(cuGraphAddMemFreeNode, graph_add_free(out, g, (struct graph_after){after, count}, p));
}

API cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS *out)
{
	struct graph_node *n;
	TRY(driver_ready());
	n = handle_want(handle, HANDLE_NODE, "cuGraphMemAllocNodeGetParams");
	if (n == NULL || n->type != NODE_ALLOC || out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = n->params;
	return CUDA_SUCCESS;
}

API cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr *out)
{
	struct graph_node *n;
	TRY(driver_ready());
	n = handle_want(handle, HANDLE_NODE, "cuGraphMemFreeNodeGetParams");
	if (n == NULL || n->type != NODE_FREE || out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = n->frees;
	return CUDA_SUCCESS;
}

static CUresult graph_instantiate(CUgraphExec *out, CUgraph handle, unsigned long long flags)
{
	struct graph_exec *e = NULL;
	struct graph *g;

	TRY(driver_ready());
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&graph_lock);
	g = graph_get(handle, "cuGraphInstantiate");
	if (g != NULL && (e = handle_new(sizeof *e, HANDLE_EXEC, NULL)) != NULL) {
		e->graph = g;
		e->flags = flags;
		for (const struct graph_node *n = g->nodes; n != NULL; n = n->next)
			e->ns += n->ns;
		g->references++;
		*out = e;
	}
	pthread_mutex_unlock(&graph_lock);
	return g == NULL ? CUDA_ERROR_INVALID_VALUE : e == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

API cuGraphInstantiate(CUgraphExec *out, CUgraph g, CUgraphNode *error, char *log, size_t size)
{
	(void)error, (void)log, (void)size;
	ENTRY(cuGraphInstantiate, graph_instantiate(out, g, 0));
}

API cuGraphInstantiate_v2(CUgraphExec *out, CUgraph g, CUgraphNode *error, char *log, size_t size)
{
	(void)error, (void)log, (void)size;
	ENTRY(cuGraphInstantiate, graph_instantiate(out, g, 0));
}

API cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags)
{
	ENTRY(cuGraphInstantiateWithFlags, graph_instantiate(out, g, flags));
}

static CUresult graph_instantiate_params(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	if (params == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	params->hErrNode_out = NULL;
	params->result_out = 0;
	return graph_instantiate(out, g, params->flags);
}

API cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	ENTRY(cuGraphInstantiateWithParams, graph_instantiate_params(out, g, params));
}

API cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	ENTRY(cuGraphInstantiateWithParams, graph_instantiate_params(out, g, params));
}

static CUresult graph_exec_destroy(CUgraphExec handle)
{
	struct graph_exec *e;
	TRY(driver_ready());
	pthread_mutex_lock(&graph_lock);
	e = handle_want(handle, HANDLE_EXEC, "cuGraphExecDestroy");
	if (e != NULL) {
		graph_drop(e->graph);
		handle_drop(e);
	}
	pthread_mutex_unlock(&graph_lock);
	return e == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuGraphExecDestroy(CUgraphExec e) { ENTRY(cuGraphExecDestroy, graph_exec_destroy(e)); }

/* Under the lock. */
static void graph_node_end(struct graph_node *n)
{
	n->live = false;
	graph_pool_let_go(n->device, n->params.bytesize);
}

/* A free node's pointer, where another graph allocated it: found anew at every
 * launch, since that graph may be gone. Under the lock. */
static void graph_free_foreign(CUdeviceptr p)
{
	struct graph_node *n;
	struct block b;
	if (!space_find(p, &b) || b.kind != BLOCK_GRAPH)
		return;
	n = graph_last(b.owner);
	if (n->live)
		graph_node_end(n);
	if (n->graph == NULL)
		graph_node_drop(n);
}

static CUresult graph_hold_locked(struct graph_exec *e)
{
	uint64_t need[MAX_DEVICES] = {0};
	struct graph *g = e->graph;

	for (struct graph_node *n = g->nodes; n != NULL; n = n->next) {
		if (n->type != NODE_ALLOC)
			continue;
		if (n->live && (e->flags & AUTO_FREE_ON_LAUNCH) == 0)
			return CUDA_ERROR_INVALID_VALUE; /* still held from the last launch */
		if (n->live)
			graph_node_end(n);
		if (n->root == NULL) /* no other allocation with this address is larger */
			need[n->device] += round_up(n->params.bytesize, LEDGER_UNIT);
	}
	for (unsigned d = 0; d < MAX_DEVICES; d++)
		if (need[d] > 0 && !graph_pool_reserve(d, need[d]))
			return CUDA_ERROR_OUT_OF_MEMORY;
	for (struct graph_node *n = g->nodes; n != NULL; n = n->next) {
		if (n->type == NODE_ALLOC && n->freer == NULL) {
			n->live = true;
			graph_pool_hold(n->device, n->params.bytesize);
		} else if (n->type == NODE_FREE && n->frees_other) {
			graph_free_foreign(n->frees);
		}
	}
	return CUDA_SUCCESS;
}

uint64_t graph_exec_ns(CUgraphExec handle)
{
	pthread_mutex_lock(&graph_lock);
	const struct graph_exec *e = handle_get(handle, HANDLE_EXEC);
	uint64_t ns = e == NULL ? 0 : e->ns;
	pthread_mutex_unlock(&graph_lock);
	return ns;
}

CUresult graph_hold(CUgraphExec handle, uint64_t *ns)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&graph_lock);
	struct graph_exec *e = handle_want(handle, HANDLE_EXEC, "cuGraphLaunch");
	if (e != NULL) {
		r = graph_hold_locked(e);
		*ns = e->ns;
	}
	pthread_mutex_unlock(&graph_lock);
	return r;
}

CUresult graph_freed(struct graph_node *n)
{
	bool was_live;
	pthread_mutex_lock(&graph_lock);
	n = graph_last(n);
	was_live = n->live;
	if (was_live)
		graph_node_end(n);
	else
		report_error("freeing 0x%llx of a graph that does not hold it now", n->params.dptr);
	if (n->graph == NULL)
		graph_node_drop(n);
	pthread_mutex_unlock(&graph_lock);
	return was_live ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
