/* A mark protects data that one thread at a time may use, where launches of a job with a cap
 * or a priority may have to wait for it. It differs from a lock: after one second a waiting thread stops waiting
 * and goes on without the data, and so do all others until the mark is given back. So a thread
 * that is stopped, or kept by the driver, while it has the mark blocks no other. A thread that
 * has the mark cannot be cancelled, does not sleep, and waits for no other thread. */
#ifndef RATION_MARK_H
#define RATION_MARK_H

#include <stdbool.h>
#include <stdint.h>

struct mark {
	uint32_t taken; /* 1: a thread has the mark; atomic */
	uint32_t stuck; /* 1: a thread waited a second for it in vain; atomic */
};

/* mark_try takes the mark if no thread has it. mark_take waits for it, for one second at most.
 * Both return whether the caller now has the mark, and store in *cancel the value that
 * mark_give needs. */
bool mark_try(struct mark *m, int *cancel);
bool mark_take(struct mark *m, int *cancel);
void mark_give(struct mark *m, int cancel);

#endif
