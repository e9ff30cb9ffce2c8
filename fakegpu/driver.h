/* Declarations that all families of calls share: the driver's state, contexts and handles. */
#ifndef FAKEGPU_DRIVER_H
#define FAKEGPU_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "atomics.h"
#include "cuda_abi.h"
#include "export.h"
#include "faults.h"
#include "ledger.h"
#include "machine.h"
#include "report.h"
#include "work.h"

#define API EXPORT CUresult

/* Returns from the calling function unless the expression is CUDA_SUCCESS. */
#define TRY(expression)                                        \
	do {                                                   \
		CUresult try_ = (expression);                  \
		if (__builtin_expect(try_ != CUDA_SUCCESS, 0)) \
			return try_;                           \
	} while (0)

#define MIB ((uint64_t)1 << 20)

static inline uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* driver.c
 *
 * READY only between cuInit and a fork; a forked child has no driver. */
enum driver_state { DRIVER_COLD, DRIVER_READY, DRIVER_FORKED };
extern enum driver_state driver_state;

static inline CUresult driver_ready(void)
{
	return __builtin_expect(load_acquire(&driver_state) == DRIVER_READY, 1) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/* Returns how many bytes of the device an allocation takes. */
uint64_t physical_size(uint64_t bytes);

/* device.c: an ordinal is a device's number among those that CUDA_VISIBLE_DEVICES allows; an index
 * is its number on the machine. */
unsigned visible_devices(void);
unsigned device_index(CUdevice ordinal);
CUresult device_check(CUdevice ordinal); /* CUDA_SUCCESS if the driver is ready and the device exists */
CUresult devices_load(void);             /* reads CUDA_VISIBLE_DEVICES */

/* context.c
 *
 * Contexts are never freed, only marked as destroyed: a thread may have one
 * current for as long as it likes after another thread destroyed it. */
struct context {
	uint64_t id;
	CUdevice device;
	unsigned device_index;
	unsigned flags;
	unsigned api_version;
	bool primary;
	struct context *base; /* of a green context: the primary context, whose memory it uses */
	int attached;         /* cuCtxAttach count */
	bool alive;           /* atomic */
	size_t limit[CU_LIMIT_COUNT];
	uint64_t stack, heap; /* bytes of the device that cuCtxSetLimit has taken */
	struct work work;     /* its work; a green context has none */
	struct context *next; /* all contexts ever made */
};

CUresult context_new(struct context **out, CUdevice device, unsigned flags, bool primary);
CUresult context_new_green(struct context **out, struct context *base);
CUresult context_revive(struct context *c); /* makes a primary context alive when it is retained again */
void context_end(struct context *c);        /* returns all that the context holds */
CUresult context_check(struct context *c);  /* CUDA_SUCCESS if it is a context and alive */
bool contexts_idle(void);                   /* no context of the process has work left */
void contexts_restart(void);                /* their groups of channels, after a restore */
CUresult context_heap(struct context *c);   /* called when a kernel that calls malloc is launched: settings.c */

/* current_context sets *out to the calling thread's context, or returns the error that tells why
 * there is none. If the thread's context is a green context, it sets *out to the primary context of
 * the device: objects made in a green context belong to the primary one. */
CUresult current_context(struct context **out);
struct context *current_top(void); /* the top of the thread's stack, alive or not; NULL: the stack is empty */
bool current_is_full(void);        /* true if no further context can be pushed */
CUresult current_push(struct context *c);
CUresult current_pop(struct context **out);

/* primary.c: green contexts retain the primary context, too; while one does, it cannot be reset. */
CUresult primary_retain(CUdevice device, bool green, struct context **out);
CUresult primary_release(CUdevice device, bool green);

/* handle.c: objects behind opaque handles, known by their address. */
enum handle_kind {
	HANDLE_STREAM,
	HANDLE_EVENT,
	HANDLE_MODULE,
	HANDLE_FUNCTION,
	HANDLE_LIBRARY,
	HANDLE_ARRAY,
	HANDLE_MIPMAP,
	HANDLE_POOL,
	HANDLE_GRAPH,
	HANDLE_NODE,
	HANDLE_EXEC,
	HANDLE_EXTERNAL,
	HANDLE_PHYSICAL,
	HANDLE_GREEN,
	HANDLE_DESC,
	HANDLE_KINDS,
};

struct handle {
	enum handle_kind kind;
	struct context *context; /* the object ends with this context; NULL: it belongs to the process */
};

/* Returns a zeroed object of `size` bytes that starts with a struct handle; NULL if there is no
 * memory. */
void *handle_new(size_t size, enum handle_kind kind, struct context *context);
/* Returns the object if the address is a live handle of that kind, otherwise NULL. */
void *handle_get(const void *address, enum handle_kind kind);
/* Like handle_get, but reports an invalid handle as the caller's mistake. */
void *handle_want(const void *address, enum handle_kind kind, const char *call);
void handle_drop(void *object);
/* Calls f with every live handle of a context; f may drop the one it is given. */
void handle_each(struct context *context, void (*f)(struct handle *h));

/* stream.c */
CUresult stream_check(CUstream s);
/* Returns the device of a stream; built-in streams (NULL, legacy, per-thread) are on the current
 * context's device. */
CUdevice stream_device(CUstream s, CUdevice current);
/* Counts a launch. With FAKEGPU_QUEUE it stays in its stream until a thread waits for the stream;
 * if the stream is full, the call waits until then. */
void stream_enqueue(CUstream s);
/* If kernels take time (work.h): adds ns of work to a stream. A built-in stream is that of the
 * current context. */
void stream_submit(struct context *c, CUstream s, uint64_t ns);
/* The same for work that runs beside kernels, such as copies; on a stream of the current context. */
void stream_submit_beside(CUstream s, uint64_t ns);
/* stream_context returns the context of a stream; built-in streams belong to the current one.
 * stream_is_blocking returns true if the stream and the legacy stream wait for each other. */
const struct context *stream_context(CUstream s, const struct context *current);
bool stream_is_blocking(CUstream s);
/* Waits for all work that came before in a stream, as every call that is not asynchronous does. */
void stream_finish(struct context *c, CUstream s);
void streams_wait(struct context *c); /* waits for all streams of a context, built-in ones too */
static inline CUstream per_thread(CUstream s) { return s == NULL ? CU_STREAM_PER_THREAD : s; }

/* memory.c, vmm.c */
struct block;
void memory_return(const struct block *b); /* returns the bytes of a block of data, except those that others keep */
void memory_share(struct block *b);        /* makes a record (share.h) of a block of data, for space_change */
void ipc_drop(const struct block *b);      /* ends the import of a block that was opened by an IPC handle */
/* Sets *out to the contents of mapped memory; NULL if the range is not in one mapping. It is an error
 * if nothing is mapped there, or without access. */
CUresult vmm_contents(CUdeviceptr p, uint64_t n, void **out);
CUresult vmm_dma_buf(int *out, CUdeviceptr p, uint64_t size);

/* pool.c */
void pools_return_slack(void);                  /* at a synchronisation: returns unused bytes above the threshold */
void pools_drop(unsigned device_index);         /* when the process's last context there has ended: returns all unused bytes */
void pools_bury(void);                          /* at a free that waits: ends destroyed pools that have no allocation left */
void pool_give(struct pool *p, uint64_t bytes); /* returns the bytes of an allocation to the pool */

/* graph.c */
CUresult graph_freed(struct graph_node *node); /* called when its allocation was freed outside a graph */
void graphs_drop(unsigned device_index);       /* like pools_drop */

/* Called for each object when its context ends. */
void array_end(struct array *a);
void mipmap_end(struct mipmap *m);
void module_end(struct module *m);

/* host.c: real memory of the host that the device can access. */
enum host_kind { HOST_PINNED = 1, HOST_REGISTERED = 2, HOST_MANAGED = 4 };

struct host_range {
	uintptr_t base;
	uint64_t size;
	enum host_kind kind;
	unsigned flags;
	uint64_t resident; /* managed: bytes charged to the device it was moved to */
	unsigned device;   /* that device's index */
	struct pool *pool; /* managed: the pool that it was allocated from, or NULL */
	struct context *context;
};

bool host_find(uintptr_t address, struct host_range *out);
bool host_has_managed(void);
/* Allocates managed memory of the current context, from a pool or from none (NULL). It begins on a
 * device (by index), or on the host (-1). */
CUresult host_new_managed(uint64_t bytes, unsigned flags, struct pool *pool, int device, CUdeviceptr *out);
/* Frees the managed range that starts there. Returns false if there is none. */
bool host_free_managed(uintptr_t address);
/* Frees all managed ranges of a context. Ranges from a pool are freed only with the last context of
 * the device (last). */
void host_end_managed(const struct context *context, bool last);

#endif
