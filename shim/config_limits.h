/* The limits that variables of the environment set. */
#ifndef RATION_CONFIG_LIMITS_H
#define RATION_CONFIG_LIMITS_H

#include <stdbool.h>

#include "limit_parse.h"
#include "region/region.h"

#define CONFIG_HAMI_PRIORITY "CUDA_TASK_PRIORITY"

struct config_limits {
	struct memory_limit memory[RATION_DEVICES];
	struct compute_limit compute[RATION_DEVICES];     /* shares */
	struct compute_limit compute_max[RATION_DEVICES]; /* caps */
	uint32_t round;                                   /* microseconds; 0: not set */
	uint8_t priority;                                 /* RATION_PRIORITY_...; 0: not set */
	uint32_t wait_alloc;                              /* milliseconds, or RATION_WAIT_ALLOC_NONE; 0: not set */
	bool strict;                                      /* RATION_COMPUTE=strict */
};

/* config_limits_any reports whether a variable sets a limit of memory, a share or a cap. */
bool config_limits_any(void);

/* config_limits_read reads the variables into l. It logs each mistake in them, and returns false if there was one. */
bool config_limits_read(struct config_limits *l);

/* config_limit returns a device's memory limit, packed as in the region. It returns 0 if there
 * is none, or if the limit is a share and the device's size is not known (total is 0). */
uint64_t config_limit(const struct config_limits *l, unsigned device, uint64_t total);

/* config_limits_pack packs l as in the region. Memory that is a share of a device is left out: the device's size is
 * not known yet. */
void config_limits_pack(const struct config_limits *l, struct region_limits *out);

/* config_environment_wants_compute reports whether a variable sets a share or a cap. */
bool config_environment_wants_compute(void);

#endif
