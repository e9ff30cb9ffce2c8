/* A mark by which one thread at a time has something, where launches of a capped job may have to wait for it. It is no
 * lock: a thread that waited for a second does without, and so do all others until the mark is given back, so that a
 * thread that is stopped, or kept by the driver, while it has it stops no other. A thread that has it cannot be
 * cancelled, does not sleep and waits for no other. */
#ifndef RATION_MARK_H
#define RATION_MARK_H

#include <stdbool.h>
#include <stdint.h>

struct mark {
	uint32_t taken; /* 1: a thread has it; atomic */
	uint32_t stuck; /* it was waited for in vain; atomic */
};

/* mark_try takes it, if no thread has it; mark_take waits, as above. Both keep in cancel what mark_give needs. */
bool mark_try(struct mark *m, int *cancel);
bool mark_take(struct mark *m, int *cancel);
void mark_give(struct mark *m, int cancel);

#endif
