/* What differs between the limits that a process was started with and those of its job, which count. */
#ifndef RATION_DIFFERS_H
#define RATION_DIFFERS_H

#include "config.h"
#include "region/region.h"

/* differs_log logs each difference. Consecutive devices with the same difference share one line. */
void differs_log(const struct region *r, const struct config *c, const struct region_limits *own);

/* differs_advice writes what changes a limit of the job, and returns out. Under a policy a user can only have a run beside it: flags
 * are those of ration run for such a limit. */
enum { DIFFERS_ADVICE = 96 };
const char *differs_advice(const struct config *c, const char *flags, char out[DIFFERS_ADVICE]);

#endif
