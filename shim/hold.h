/* A hold is taken by threads that use something, and waited for by a thread that is about to take that
 * away: for a second at most, as what they do may need that thread. */
#ifndef RATION_HOLD_H
#define RATION_HOLD_H

#include <stdint.h>

typedef struct {
	uint32_t count; /* of threads that have it; a futex */
} hold;

/* A thread takes the hold, and then looks whether what it wants to use is still there. The other thread
 * takes that away, and then waits. All of it is sequentially consistent: one of the two sees the other. */
void hold_take(hold *h);
void hold_drop(hold *h);
void hold_wait(hold *h);

#endif
