/* What the families of calls share: the driver's state, contexts and handles. */
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

/* What an allocation of so many bytes takes on the device. */
uint64_t physical_size(uint64_t bytes);

/* device.c: ordinals are what CUDA_VISIBLE_DEVICES left; indexes are the machine's. */
unsigned visible_devices(void);
unsigned device_index(CUdevice ordinal);
CUresult device_check(CUdevice ordinal); /* ready, and there is such a device */
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
	struct context *base; /* of a green one: the primary context, whose memory it uses */
	int attached;         /* cuCtxAttach count */
	bool alive;           /* atomic */
	size_t limit[CU_LIMIT_COUNT];
	uint64_t stack, heap; /* bytes that limits took of the device */
	struct work work;     /* what it has to do; a green one has none */
	struct context *next; /* all contexts ever made */
};

CUresult context_new(struct context **out, CUdevice device, unsigned flags, bool primary);
CUresult context_new_green(struct context **out, struct context *base);
CUresult context_revive(struct context *c); /* a primary one, retained again */
void context_end(struct context *c);        /* gives back all it holds */
CUresult context_check(struct context *c);  /* is it one, and alive? */
CUresult context_heap(struct context *c);   /* a kernel that allocates is launched: settings.c */

/* current.c
 *
 * The calling thread's context, or the error that tells why there is none. For a green
 * one it is the primary context, which everything made in it belongs to. */
CUresult current_context(struct context **out);
struct context *current_top(void); /* of the thread's stack as it is, alive or not; NULL: it is empty */
bool current_is_full(void);        /* one more would not be pushed */
CUresult current_push(struct context *c);
CUresult current_pop(struct context **out);

/* primary.c: taken by green contexts too, while which it cannot be reset. */
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
	struct context *context; /* ends with it; NULL for what belongs to the process */
};

/* A zeroed object of `size` bytes that starts with a struct handle; NULL if there is no memory. */
void *handle_new(size_t size, enum handle_kind kind, struct context *context);
/* The object if the address is a live handle of that kind, else NULL. */
void *handle_get(const void *address, enum handle_kind kind);
/* Like handle_get, and reports a handle that is none as the caller's mistake. */
void *handle_want(const void *address, enum handle_kind kind, const char *call);
void handle_drop(void *object);
/* Calls f with every live handle of a context; f may drop the one it is given. */
void handle_each(struct context *context, void (*f)(struct handle *h));

/* stream.c */
CUresult stream_check(CUstream s);
/* The device of a stream; builtin ones are the current context's. */
CUdevice stream_device(CUstream s, CUdevice current);
/* A launch: with FAKEGPU_QUEUE it stays in its stream until a thread waits for that, and
 * itself waits while the stream is full. */
void stream_enqueue(CUstream s);
/* Where time is on: puts so much work into a stream (the current context's, of those that need no creating). */
void stream_submit(struct context *c, CUstream s, uint64_t ns);
/* The same, of what runs beside kernels; on a stream of the current context. */
void stream_submit_beside(CUstream s, uint64_t ns);
/* The context of a stream; builtin ones are the current one's. And whether it and the legacy stream wait for each other. */
const struct context *stream_context(CUstream s, const struct context *current);
bool stream_is_blocking(CUstream s);
/* What a call that is not asynchronous waits for: all that came before it in its stream. */
void stream_finish(struct context *c, CUstream s);
void streams_wait(struct context *c); /* all of a context's, and those that need no creating */
static inline CUstream per_thread(CUstream s) { return s == NULL ? CU_STREAM_PER_THREAD : s; }

/* pool.c */
void pools_return_slack(void);                  /* at a synchronisation: slack above the threshold goes back */
void pools_drop(unsigned device_index);         /* the process's last context there ended: all slack goes back */
void pools_bury(void);                          /* at a free that waits: destroyed pools of which nothing is left end */
void pool_give(struct pool *p, uint64_t bytes); /* an allocation of the pool ended */

/* graph.c */
CUresult graph_freed(struct graph_node *node); /* its allocation was freed outside of a graph */
void graphs_drop(unsigned device_index);       /* like pools_drop */

/* Ends of objects, called when their context ends. */
void array_end(struct array *a);
void mipmap_end(struct mipmap *m);
void module_end(struct module *m);

/* vmm.c: with FAKEGPU_ORPHANS, takes over imported memory whose exporter is gone. */
void imports_adopt(void);

/* host.c: memory that is really there, and that the device can reach. */
enum host_kind { HOST_PINNED = 1, HOST_REGISTERED = 2, HOST_MANAGED = 4 };

struct host_range {
	uintptr_t base;
	uint64_t size;
	enum host_kind kind;
	unsigned flags;
	uint64_t resident; /* managed: bytes charged to the device it was moved to */
	unsigned device;   /* that device's index */
	struct pool *pool; /* managed: that it was allocated from, or NULL */
	struct context *context;
};

bool host_find(uintptr_t address, struct host_range *out);
/* Managed memory of the current context, of a pool or of none; on a device (by index)
 * from the start, or on none (-1). */
CUresult host_new_managed(uint64_t bytes, unsigned flags, struct pool *pool, int device, CUdeviceptr *out);
/* Ends the managed range that starts there. False if there is none. */
bool host_free_managed(uintptr_t address);
/* Ends all of a context's; a pool's only with the last context of its device. */
void host_end_managed(const struct context *context, bool last);

#endif
