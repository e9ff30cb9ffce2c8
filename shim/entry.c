/* How a call of the program comes to its hook: by the functions that are exported.
 *
 * A thread that is cancelled inside a hook would leave a lock held for ever, or bytes that
 * the driver gave uncounted. So no thread is, from entry to exit: a request to cancel it
 * stays pending, and acts afterwards as the program has it, at the next cancellation point
 * or, for a thread that may be cancelled anywhere, at once. A process without a job, whose
 * hooks do nothing, is left alone. */
#include <pthread.h>

#include "arguments.h"
#include "attach.h"
#include "charge.h"
#include "hooks.h"

/* What the program has set for the thread. */
struct entry_cancel {
	int state, type;
};

static inline struct entry_cancel entry_begin(void)
{
	struct entry_cancel c = {PTHREAD_CANCEL_DISABLE, PTHREAD_CANCEL_DEFERRED};
	if (attach_state() != ATTACH_OFF) {
		/* The type as well: a thread that could be cancelled anywhere when it was asked to
		 * be is by the signal that says so, in some versions of the C library, although it
		 * has disabled that meanwhile. */
		pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &c.type);
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &c.state);
	}
	lock_order_hook();
	charge_hook_begins();
	return c;
}

static inline void entry_end(struct entry_cancel c)
{
	charge_hook_ends();
	lock_order_hook();
	if (c.state == PTHREAD_CANCEL_ENABLE)
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	if (unlikely(c.type == PTHREAD_CANCEL_ASYNCHRONOUS))
		pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
}

#define HOOK(family, symbol, base, version, per_thread, params, text) \
	int entry_##symbol params                                     \
	{                                                             \
		struct entry_cancel cancel_ = entry_begin();          \
		int result_ = symbol ARGUMENTS_##symbol;              \
		entry_end(cancel_);                                   \
		return result_;                                       \
	}
#include "hooks.def"
