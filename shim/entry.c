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

enum { ENTRY_NOTHING = -1 };

/* entry_begin returns what entry_end takes. */
static inline int entry_begin(void)
{
	int state = ENTRY_NOTHING;
	if (attach_state() != ATTACH_OFF)
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	lock_order_hook();
	charge_hook_begins();
	return state;
}

static inline void entry_end(int state)
{
	int type = PTHREAD_CANCEL_DEFERRED;
	charge_hook_ends();
	lock_order_hook();
	if (state != PTHREAD_CANCEL_ENABLE)
		return;
	/* A thread that may be cancelled anywhere is, by the last call: one that is by enabling it
	 * ends without PTHREAD_CANCELED in some versions of the C library. */
	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	if (unlikely(type != PTHREAD_CANCEL_DEFERRED))
		pthread_setcanceltype(type, NULL);
}

#define HOOK(family, symbol, base, version, per_thread, params, text)                                                  \
	int entry_##symbol params                                                                                      \
	{                                                                                                              \
		int state_ = entry_begin(), result_ = symbol ARGUMENTS_##symbol;                                       \
		entry_end(state_);                                                                                     \
		return result_;                                                                                        \
	}
#include "hooks.def"
