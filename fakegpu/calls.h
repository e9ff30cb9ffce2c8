/* The calls of this process that are under way, and a stop to all that come. */
#ifndef FAKEGPU_CALLS_H
#define FAKEGPU_CALLS_H

#include <stdbool.h>

/* Every call is between calls_enter and calls_leave. calls_enter waits while calls are stopped. A
 * call may be made inside another one. */
void calls_enter(void);
void calls_leave(void);

/* calls_stop makes calls wait from now on, until calls_resume. calls_inside returns true while there
 * is one that began before. */
void calls_stop(void);
void calls_resume(void);
bool calls_inside(void);

/* calls_forked lets calls go on in the child of a fork, where no thread would end the stop. */
void calls_forked(void);

#endif
