/* The exported functions, by which a program's call reaches its hook.
 *
 * If a thread were cancelled inside a hook, a lock would stay held for ever, or memory that the
 * driver gave would not be counted. So cancellation is disabled from entry to exit: a request
 * stays pending, and takes effect afterwards in the way that the program has set: at the next
 * cancellation point or, with asynchronous cancellation, at once. In a process without a job,
 * whose hooks do nothing, cancellation is not changed. */
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arguments.h"
#include "attach.h"
#include "charge.h"
#include "compute/compute.h"
#include "gate.h"
#include "hooks.h"

/* The program's cancellation settings for the thread. */
struct entry_cancel {
	int state, type;
	uint64_t blocked; /* blocked signals; only if the type is asynchronous */
};

/* The C library uses its signal 32 for asynchronous cancellation. */
static const uint64_t ENTRY_CANCEL_SIGNAL = 1ull << (32 - 1);

/* entry_block blocks that signal. It may already be on its way. In some versions of the C
 * library it then cancels a thread that has disabled cancellation meanwhile, if it arrives
 * while the thread is in a call that can be cancelled: the driver may sleep in one. The C
 * library's own functions do not let us block this signal. */
__attribute__((cold, noinline)) static void entry_block(struct entry_cancel *c)
{
	c->blocked = ENTRY_CANCEL_SIGNAL; /* if the system call fails */
	syscall(SYS_rt_sigprocmask, SIG_BLOCK, &ENTRY_CANCEL_SIGNAL, &c->blocked, sizeof c->blocked);
}

__attribute__((cold, noinline)) static void entry_unblock(const struct entry_cancel *c)
{
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	if (!(c->blocked & ENTRY_CANCEL_SIGNAL))
		syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &ENTRY_CANCEL_SIGNAL, NULL, sizeof c->blocked);
}

static inline struct entry_cancel entry_begin(void)
{
	struct entry_cancel c = {PTHREAD_CANCEL_DISABLE, PTHREAD_CANCEL_DEFERRED, 0};
	if (attach_state() != ATTACH_OFF) {
		pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &c.type);
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &c.state);
		if (unlikely(c.type == PTHREAD_CANCEL_ASYNCHRONOUS))
			entry_block(&c);
	}
	lock_order_hook();
	charge_hook_begins();
	compute_look();
	return c;
}

static inline void entry_end(struct entry_cancel c)
{
	charge_hook_ends();
	lock_order_hook();
	if (c.state == PTHREAD_CANCEL_ENABLE)
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	if (unlikely(c.type == PTHREAD_CANCEL_ASYNCHRONOUS))
		entry_unblock(&c);
}

/* Families of calls that do not use a device, or look whether the job sleeps themselves. */
#define GATE_start() ((struct gate_stay){.counted = false})
#define GATE_meminfo() ((struct gate_stay){.counted = false})
#define GATE_visible() ((struct gate_stay){.counted = false})
#define GATE_linear() gate_enter(GATE_WAITS)
#define GATE_pool() gate_enter(GATE_WAITS)
#define GATE_vmm() gate_enter(GATE_WAITS)
#define GATE_array() gate_enter(GATE_WAITS)
#define GATE_graph() gate_enter(GATE_WAITS)
#define GATE_context() gate_enter(GATE_WAITS)
#define GATE_module() gate_enter(GATE_WAITS)
#define GATE_other() gate_enter(GATE_WAITS)

#define HOOK(family, symbol, base, version, per_thread, params, text) \
	int entry_##symbol params                                     \
	{                                                             \
		struct gate_stay stay_ = GATE_##family();             \
		struct entry_cancel cancel_ = entry_begin();          \
		int result_ = symbol ARGUMENTS_##symbol;              \
		entry_end(cancel_);                                   \
		gate_leave(stay_);                                    \
		return result_;                                       \
	}
/* A launch waits for a cap before cancellation is disabled, so that the wait can be cancelled. */
#define HOOK_LAUNCH(family, symbol, base, version, per_thread, params, text)                     \
	int entry_##symbol params                                                                \
	{                                                                                        \
		CUstream stream_ = per_thread && !stream ? CU_STREAM_PER_THREAD : stream;        \
		struct gate_stay stay_ = GATE_##family();                                        \
		bool ends_ = unlikely(attach_compute()) && compute_launch_begins(stream_, true); \
		struct entry_cancel cancel_ = entry_begin();                                     \
		int result_ = symbol ARGUMENTS_##symbol;                                         \
		entry_end(cancel_);                                                              \
		if (unlikely(ends_))                                                             \
			compute_launch_ended(stream_);                                           \
		gate_leave(stay_);                                                               \
		return result_;                                                                  \
	}
#define TIMED(kind, family, symbol, base, version, per_thread, params, stream, text)
#include "hooks.def"
