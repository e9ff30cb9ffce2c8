/* Gates: points at which a test makes calls wait. The contract is in fakegpu.h. */
#ifndef FAKEGPU_GATE_H
#define FAKEGPU_GATE_H

#include <stdbool.h>

/* True if there is a gate, a fault or a latency (faults.h): only then calls search for theirs. */
extern bool gates_armed;

/* Waits if there is a gate here and it is shut. A thread may be cancelled there, as
 * it may be in many of the real driver's calls. */
void gate_pass(const char *name, bool after);

/* Waits while more(arg) is true. fakegpu_held counts the caller under name. */
void gate_wait(const char *name, bool (*more)(void *arg), void *arg);

/* Adds `by` to the number of threads that wait at another place, which fakegpu_held returns under
 * name. */
void gate_count(const char *name, int by);

#endif
