/* Says why the driver refused what the job's limit allows: the device itself is full. */
#ifndef RATION_FULL_H
#define RATION_FULL_H

#include <stdint.h>

/* full_log logs, at most once a second, that the driver answered a request with `result`, if that says that it has no
 * memory. The request is charged no more. The caller holds no lock that does not permit driver calls. */
void full_log(unsigned device, uint64_t bytes, int result);

/* full_log_context is the same for a context: the thread has none to ask with how much is free. */
void full_log_context(unsigned device, int result);

#endif
