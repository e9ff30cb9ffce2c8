/* How a call of the program comes to its hook: by the functions that are exported.
 *
 * A thread that is cancelled inside a hook would leave a lock held for ever, or bytes that
 * the driver gave uncounted. So no thread is, from entry to exit: a request to cancel it
 * stays pending, and acts afterwards as the program has it, at the next cancellation point
 * or, for a thread that may be cancelled anywhere, at once. A process without a job, whose
 * hooks do nothing, is left alone. */
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arguments.h"
#include "attach.h"
#include "charge.h"
#include "compute/compute.h"
#include "hooks.h"

/* What the program has set for the thread. */
struct entry_cancel {
	int state, type;
	uint64_t blocked; /* signals; only where the type is asynchronous */
};

/* The C library cancels a thread that may be cancelled anywhere by its signal 32. */
static const uint64_t ENTRY_CANCEL_SIGNAL = 1ull << (32 - 1);

/* entry_block holds that signal back. It may be on its way, and in some versions of the C
 * library it then cancels a thread that has disabled that meanwhile, if it comes while the
 * thread is in a call that can be cancelled: the driver may sleep. The C library's own
 * functions leave this signal alone. */
__attribute__((cold, noinline)) static void entry_block(struct entry_cancel *c)
{
	c->blocked = ENTRY_CANCEL_SIGNAL; /* where the kernel does not say */
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

#define HOOK(family, symbol, base, version, per_thread, params, text) \
	int entry_##symbol params                                     \
	{                                                             \
		struct entry_cancel cancel_ = entry_begin();          \
		int result_ = symbol ARGUMENTS_##symbol;              \
		entry_end(cancel_);                                   \
		return result_;                                       \
	}
/* A launch waits for a cap before all that, as it may be cancelled then. */
#define HOOK_LAUNCH(family, symbol, base, version, per_thread, params, text)                     \
	int entry_##symbol params                                                                \
	{                                                                                        \
		CUstream stream_ = per_thread && !stream ? CU_STREAM_PER_THREAD : stream;        \
		bool ends_ = unlikely(attach_compute()) && compute_launch_begins(stream_, true); \
		struct entry_cancel cancel_ = entry_begin();                                     \
		int result_ = symbol ARGUMENTS_##symbol;                                         \
		entry_end(cancel_);                                                              \
		if (unlikely(ends_))                                                             \
			compute_launch_ended(stream_);                                           \
		return result_;                                                                  \
	}
#define TIMED(kind, family, symbol, base, version, per_thread, params, stream, text)
#include "hooks.def"
