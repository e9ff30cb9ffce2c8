/* The library's locks, in the order in which a thread may take them. LOCKING.md lists the data
 * that each lock protects, and the reasons for the order.
 *
 * A build with LOCKDEBUG=1 checks both rules at run time and aborts, with a message on stderr,
 * if a thread
 *   - waits for a lock while it holds one of the same or of a later level;
 *   - does something, with a lock held, that the lock's level does not permit.
 * In any other build the calls below do nothing. */
#ifndef RATION_LOCK_ORDER_H
#define RATION_LOCK_ORDER_H

#include <stdbool.h>

enum lock_level {
	LOCK_PRIMARY_CONTEXT = 1, /* hooks/context.c, one for each device */
	LOCK_CONTEXT_MAKING,      /* hooks/context.c, one for each device */
	LOCK_POOL_CURRENT,        /* hooks/pool_calls.c */
	LOCK_POOL_LIST,           /* hooks/pool.c */
	LOCK_OVERHEAD,            /* overhead.c */
	LOCK_NVML,                /* nvml.c */
	LOCK_DEVICE,              /* device.c */
	LOCK_CONTEXT_TABLE,       /* hooks/context_table.c */
	LOCK_RESERVE,             /* hooks/reserve.c, one for each pool, and for each device's graphs */
	LOCK_IMPORT,              /* import.c */
	LOCK_ALLOC_TABLE,         /* alloc_table.c, one for each shard */
	LOCK_ATTACH,              /* attach.c */
	LOCK_CANNOT,              /* cannot.c */
	LOCK_LEVELS
};

/* Acts that a thread may do while it holds a lock only if the lock's level permits them. */
enum lock_act {
	LOCK_CALLS_DRIVER = 1, /* CUDA or NVML, which may wait for the device */
	LOCK_CALLS_LINKER = 2, /* the dynamic linker, which may run other libraries' code */
	LOCK_LOGS = 4,         /* a line of output, which may wait for its reader */
};

#ifdef RATION_LOCKDEBUG
/* lock_order_take records that the calling thread takes a lock. waits: the thread will wait for
 * the lock, so the order must hold. A lock that was only tried (mutex_try) may be of any level. */
void lock_order_take(const void *lock, enum lock_level level, bool waits);
void lock_order_release(const void *lock);

/* lock_order_check aborts unless every lock that the thread holds permits the act. */
void lock_order_check(enum lock_act act);

/* lock_order_hook aborts if the thread holds a lock. It is called where a hook begins and ends. */
void lock_order_hook(void);
#else
static inline void lock_order_take(const void *lock, enum lock_level level, bool waits) { (void)lock, (void)level, (void)waits; }
static inline void lock_order_release(const void *lock) { (void)lock; }
static inline void lock_order_check(enum lock_act act) { (void)act; }
static inline void lock_order_hook(void) {}
#endif

#endif
