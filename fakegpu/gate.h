/* Gates: where a test makes calls wait in the middle. What fakegpu.h promises. */
#ifndef FAKEGPU_GATE_H
#define FAKEGPU_GATE_H

#include <stdbool.h>

/* Set once there is a gate, a fault or a latency (faults.h): calls then look for theirs. */
extern bool gates_armed;

/* Waits if there is a gate here and it is shut. A thread may be cancelled there, as
 * it may be in many of the real driver's calls. */
void gate_pass(const char *name, bool after);

/* Waits, shown as held under a name, for as long as `more` says so. */
void gate_wait(const char *name, bool (*more)(void *arg), void *arg);

/* Counts threads that wait somewhere else up or down, so that a test can ask for them by a name. */
void gate_count(const char *name, int by);

#endif
