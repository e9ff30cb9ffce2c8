/* Requests that wait for memory of the job instead of being refused, no longer than the job's setting
 * (RATION_WAIT_ALLOC, ration run --wait-alloc): PROTOCOLS.md, *Waiting for memory*.
 *
 * A hook makes its request in a loop:
 *
 *   result = charge_waiting(the request, from its beginning);
 *
 * While a thread is in such a loop, a refusal of the job is not recorded or logged, except for the last
 * one. charge_wait_again waits until the request may fit. It returns false, and has ended the waiting, if
 * the request was not refused, or was refused for good. No lock is held where the loop is, and nothing that
 * other threads wait for: all that the request had was undone, as for any refusal. */
#ifndef RATION_CHARGE_WAIT_H
#define RATION_CHARGE_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "region/region.h"

struct charge_wait {
	bool waits;    /* this thread's requests wait */
	bool refused;  /* the request was refused, and not recorded */
	bool last;     /* the next refusal is recorded */
	bool logged;   /* a line tells that this thread waits */
	uint64_t from; /* when the waiting began: monotonic clock, in ns; 0: not yet */
	struct region_waiter waiter;
};

void charge_wait_begin(struct charge_wait *w);
bool charge_wait_again(struct charge_wait *w);

/* charge_waiting is the loop around an expression, and its last value. */
#define charge_waiting(request)                    \
	__extension__({                            \
		struct charge_wait wait_;          \
		int result_;                       \
		charge_wait_begin(&wait_);         \
		do                                 \
			result_ = (request);       \
		while (charge_wait_again(&wait_)); \
		result_;                           \
	})

/* charge_wait_defer is called for a refusal by the job. It returns true if the thread will wait for
 * room. Otherwise it sets *waited to the time that the thread has waited, in ns. */
bool charge_wait_defer(unsigned device, uint64_t bytes, uint64_t *waited);

/* Between charge_wait_suspend and charge_wait_resume a refusal is recorded at once. */
struct charge_wait *charge_wait_suspend(void);
void charge_wait_resume(struct charge_wait *w);

#endif
