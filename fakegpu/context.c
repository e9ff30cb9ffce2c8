#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "control.h"
#include "driver.h"
#include "knobs.h"
#include "space.h"

static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER; /* over the list and the counts */
static struct context *context_list;
static uint64_t context_ids;

bool contexts_idle(void)
{
	bool idle = true;
	pthread_mutex_lock(&context_lock);
	for (struct context *c = context_list; c != NULL && idle; c = c->next)
		idle = !load_acquire(&c->alive) || work_idle(&c->work);
	pthread_mutex_unlock(&context_lock);
	return idle;
}

void contexts_restart(void)
{
	pthread_mutex_lock(&context_lock);
	for (struct context *c = context_list; c != NULL; c = c->next)
		if (load_acquire(&c->alive) && c->base == NULL)
			control_restart(c);
	pthread_mutex_unlock(&context_lock);
}

CUresult context_check(struct context *c)
{
	bool known = false;
	TRY(driver_ready());
	if (c == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&context_lock);
	for (struct context *k = context_list; k != NULL && !known; k = k->next)
		known = k == c;
	pthread_mutex_unlock(&context_lock);
	if (!known) {
		report_error("%p was never a context", (void *)c);
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	return load_acquire(&c->alive) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* A green context takes as much on an H200, beside the primary one. */
static const uint64_t CONTEXT_GREEN_COST = 4 * MIB;

static uint64_t context_cost(const struct context *c)
{
	if (c->base != NULL)
		return CONTEXT_GREEN_COST;
	return knobs()->context_set ? knobs()->context : machine_shape()->model->context * MIB;
}

static const size_t context_first_limits[CU_LIMIT_COUNT] = {
	1024, 8650752, 8388608, 0, 2048, 64, 11796480, 232448, 0,
};

CUresult context_revive(struct context *c)
{
	if (!machine_charge(c->device_index, KIND_CONTEXT, context_cost(c)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (c->base == NULL) {
		machine_context(c->device_index, 1);
		work_open(&c->work, c->device_index);
		control_slice(c);
	}
	memcpy(c->limit, context_first_limits, sizeof c->limit);
	store_release(&c->alive, true);
	return CUDA_SUCCESS;
}

static CUresult context_add(struct context **out, const struct context *like)
{
	struct context *c = malloc(sizeof *c);
	CUresult r;

	if (c == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*c = *like;
	c->device_index = device_index(c->device);
	c->api_version = 3020;
	c->attached = 1;
	r = context_revive(c);
	if (r != CUDA_SUCCESS) {
		free(c);
		return r;
	}
	pthread_mutex_lock(&context_lock);
	c->id = ++context_ids;
	c->next = context_list;
	context_list = c;
	pthread_mutex_unlock(&context_lock);
	*out = c;
	return CUDA_SUCCESS;
}

CUresult context_new(struct context **out, CUdevice device, unsigned flags, bool primary)
{
	return context_add(out, &(struct context){.device = device, .flags = flags, .primary = primary});
}

CUresult context_new_green(struct context **out, struct context *base)
{
	return context_add(out, &(struct context){.device = base->device, .flags = base->flags, .base = base});
}

struct end {
	struct context *context;
	bool last; /* of this process on its device */
	unsigned long count;
	unsigned long long bytes;
};

/* Stream-ordered memory is the pool's, and outlives all but the last context. */
static bool context_belongs(const struct block *b, void *arg)
{
	const struct end *e = arg;
	switch (b->kind) {
	case BLOCK_DATA:
	case BLOCK_IPC: return b->context == e->context;
	case BLOCK_POOL:
	case BLOCK_POOL_IMPORT: return e->last && b->device == e->context->device_index;
	default: return false;
	}
}

static void context_end_block(const struct block *b, void *arg)
{
	struct end *e = arg;
	if (b->kind == BLOCK_DATA || b->kind == BLOCK_POOL) {
		e->count++;
		e->bytes += b->size;
	}
	if (b->kind == BLOCK_POOL)
		pool_give(b->owner, b->size);
	else if (b->kind == BLOCK_DATA)
		memory_return(b);
	else if (b->kind == BLOCK_IPC)
		ipc_drop(b);
}

static void context_end_handle(struct handle *h)
{
	switch (h->kind) {
	case HANDLE_ARRAY: array_end((struct array *)h); break;
	case HANDLE_MIPMAP: mipmap_end((struct mipmap *)h); break;
	case HANDLE_MODULE: module_end((struct module *)h); break;
	default: handle_drop(h); break; /* streams and events hold nothing */
	}
}

void context_end(struct context *c)
{
	struct end e = {.context = c};

	store_release(&c->alive, false);
	if (c->base != NULL) {
		machine_return(c->device_index, KIND_CONTEXT, context_cost(c));
		return;
	}
	work_close(&c->work); /* before its events go */
	capture_forget(c, NULL);
	e.last = machine_context(c->device_index, -1) == 0;
	space_sweep(context_belongs, context_end_block, &e);
	handle_each(c, context_end_handle);
	host_end_managed(c, e.last);
	if (e.count > 0)
		report_leak("context %llu ended with %lu allocations of %llu bytes", (unsigned long long)c->id, e.count, e.bytes);
	pools_return_slack();
	if (e.last) {
		pools_drop(c->device_index);
		graphs_drop(c->device_index);
	}
	machine_return(c->device_index, KIND_CONTEXT, context_cost(c) + c->stack + c->heap);
	c->stack = c->heap = 0;
}

static CUresult context_create(CUcontext *out, unsigned flags, CUdevice device)
{
	struct context *c;
	TRY(device_check(device));
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	if (current_is_full()) /* before there is one that no program could end */
		return CUDA_ERROR_INVALID_CONTEXT;
	TRY(context_new(&c, device, flags, false));
	*out = c;
	return current_push(c);
}

API cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device) { ENTRY(cuCtxCreate, context_create(out, flags, device)); }
API cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) { ENTRY(cuCtxCreate, context_create(out, flags, device)); }

API cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice device)
{
	(void)affinity, (void)count;
	ENTRY(cuCtxCreate, context_create(out, flags, device));
}

API cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *params, unsigned flags, CUdevice device)
{
	(void)params;
	ENTRY(cuCtxCreate, context_create(out, flags, device));
}

static CUresult context_destroy(CUcontext c)
{
	CUresult r = context_check(c);
	if (r == CUDA_ERROR_CONTEXT_IS_DESTROYED)
		report_error("cuCtxDestroy: context %llu was destroyed before", (unsigned long long)c->id);
	TRY(r);
	if (c->primary || c->base != NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (current_top() == c)
		current_pop(&(struct context *){NULL});
	context_end(c);
	return CUDA_SUCCESS;
}

API cuCtxDestroy(CUcontext c) { ENTRY(cuCtxDestroy, context_destroy(c)); }
API cuCtxDestroy_v2(CUcontext c) { ENTRY(cuCtxDestroy, context_destroy(c)); }

API cuCtxAttach(CUcontext *out, unsigned flags)
{
	struct context *c;
	TRY(current_context(&c));
	if (out == NULL || flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	add_relaxed(&c->attached, 1);
	*out = c;
	return CUDA_SUCCESS;
}

API cuCtxDetach(CUcontext c)
{
	TRY(context_check(c));
	return add_relaxed(&c->attached, -1) > 0 ? CUDA_SUCCESS : cuCtxDestroy_v2(c);
}

API cuCtxPushCurrent_v2(CUcontext c)
{
	TRY(context_check(c));
	return current_push(c);
}

API cuCtxPopCurrent_v2(CUcontext *out)
{
	struct context *top;
	TRY(driver_ready());
	TRY(current_pop(&top));
	if (out != NULL)
		*out = top;
	return CUDA_SUCCESS;
}

API cuCtxPushCurrent(CUcontext c) { return cuCtxPushCurrent_v2(c); }
API cuCtxPopCurrent(CUcontext *out) { return cuCtxPopCurrent_v2(out); }

API cuCtxSetCurrent(CUcontext c)
{
	TRY(driver_ready());
	if (c != NULL)
		TRY(context_check(c));
	current_pop(&(struct context *){NULL});
	return c == NULL ? CUDA_SUCCESS : current_push(c);
}

API cuCtxGetCurrent(CUcontext *out)
{
	TRY(driver_ready());
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = current_top();
	return CUDA_SUCCESS;
}

/* The current one where the caller named none. */
static CUresult context_chosen(CUcontext named, struct context **out)
{
	if (named == NULL)
		return current_context(out);
	*out = named;
	return context_check(named);
}

API cuCtxGetDevice(CUdevice *device)
{
	TRY(driver_ready());
	if (device == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (current_top() == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = current_top()->device;
	return CUDA_SUCCESS;
}

API cuCtxGetDevice_v2(CUdevice *device, CUcontext named)
{
	struct context *c;
	TRY(context_chosen(named, &c));
	if (device == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*device = c->device;
	return CUDA_SUCCESS;
}

static CUresult context_synchronize(CUcontext named)
{
	struct context *c;
	TRY(context_chosen(named, &c));
	if (captures())
		TRY(capture_sync_context(c->base != NULL ? c->base : c));
	streams_wait(c->base != NULL ? c->base : c);
	pools_return_slack();
	return CUDA_SUCCESS;
}

API cuCtxSynchronize(void) { ENTRY(cuCtxSynchronize, context_synchronize(NULL)); }
API cuCtxSynchronize_v2(CUcontext c) { ENTRY(cuCtxSynchronize, context_synchronize(c)); }

API cuCtxGetApiVersion(CUcontext named, unsigned *version)
{
	struct context *c;
	CUresult r = context_chosen(named, &c);
	if (r != CUDA_SUCCESS)
		return r == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_ERROR_INVALID_CONTEXT : r; /* as an H200's driver */
	if (version == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*version = c->api_version;
	return CUDA_SUCCESS;
}

API cuCtxGetId(CUcontext named, unsigned long long *id)
{
	struct context *c;
	TRY(context_chosen(named, &c));
	if (id == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*id = c->id;
	return CUDA_SUCCESS;
}
