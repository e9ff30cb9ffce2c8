#include "mutex.h"

#include "log.h"

void (*mutex_on_wait)(bool waits);

/* The thing that a thread has waited for, as log_wait names it. */
static const char *const mutex_names[LOCK_LEVELS] = {
	[LOCK_PRIMARY_CONTEXT] = "another thread that makes or ends the primary context",
	[LOCK_CONTEXT_MAKING] = "another thread that makes a context",
	[LOCK_POOL_CURRENT] = "the change of a device's current memory pool",
	[LOCK_POOL_LIST] = "the list of memory pools",
	[LOCK_RESERVE] = "what is charged for a pool or for graphs",
	[LOCK_OVERHEAD] = "another thread's reading of the driver's count",
	[LOCK_NVML] = "another thread's reading of the driver's list",
	[LOCK_DEVICE] = "another thread that adds a device",
	[LOCK_CONTEXT_TABLE] = "the table of contexts",
	[LOCK_IMPORT] = "another thread that imports memory",
	[LOCK_ATTACH] = "another thread that joins the job",
};

void mutex_wait(mutex *m, enum lock_level level)
{
	/* Later locks are never held for long, and the lane's thread takes them, too. */
	void (*on_wait)(bool waits) = level < LOCK_ALLOC_TABLE ? __atomic_load_n(&mutex_on_wait, __ATOMIC_ACQUIRE) : NULL;
	uint64_t since = log_clock();
	if (on_wait)
		on_wait(true);
	while (__atomic_exchange_n(&m->word, 2, __ATOMIC_ACQUIRE))
		syscall(SYS_futex, &m->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
	log_wait(since, mutex_names[level]);
	if (on_wait)
		on_wait(false);
}
