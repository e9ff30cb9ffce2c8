/* Whether the job has a share or a cap, for a program that asks before cuInit. */
#ifndef RATION_COMPUTE_WANTED_H
#define RATION_COMPUTE_WANTED_H

#include <stdbool.h>

/* compute_wanted reports whether this process's job has a share or a cap, by the
 * environment or by its page of limits. It works before cuInit, when a program first looks up a
 * launch function, and always gives the same answer. It logs nothing: config_read reports
 * mistakes in the settings at cuInit. It sets *asked if it opened and closed files, the region
 * among them: closing the region drops this process's locks on it. */
bool compute_wanted(bool *asked);

/* compute_wanted_wait waits until no thread is inside compute_wanted. A process must call
 * it before it takes a lock on the region, when the answer is known. It waits 200 ms at most:
 * such a thread may be interrupted by the caller, or may not exist in a fork child. */
void compute_wanted_wait(void);

#endif
