/* The settings, which come from the environment, and where the job's region is. */
#ifndef RATION_CONFIG_H
#define RATION_CONFIG_H

#include <stdbool.h>

#include "limit_parse.h"
#include "region/region.h"

/* What an entry of CUDA_VISIBLE_DEVICES is where it is not the number of one of the region's
 * devices: there is none; or it is a UUID, another number or anything else. */
enum { CONFIG_UNLISTED = RATION_DEVICES, CONFIG_OTHER };

enum { CONFIG_ORDINALS = 64 }; /* devices that a process can use */

struct config {
	char path[512];   /* of the region */
	bool path_given;  /* by a variable, or found at the well-known path */
	bool placed;      /* at the well-known path or by a policy, by somebody whom this process cannot overrule */
	bool made;        /* by a launcher: a region that is missing or empty is not the job's */
	uint64_t created; /* when, in Unix nanoseconds; 0 where that is not known */
	bool fail_open;   /* RATION_FAIL=open, or what a policy says */
	bool probe;       /* RATION_HOSTPID=probe */
	struct memory_limit memory[RATION_DEVICES];
	struct compute_limit compute[RATION_DEVICES];     /* shares */
	struct compute_limit compute_max[RATION_DEVICES]; /* caps */
	uint32_t round;                                   /* microseconds; 0: not set */
	bool strict;                                      /* RATION_COMPUTE=strict */
	uint8_t visible[CONFIG_ORDINALS];                 /* CUDA_VISIBLE_DEVICES, as it was at cuInit: what it names, by ordinal */
};

/* config_any reports whether this process has a job, by the environment and by one
 * path. */
bool config_any(void);

/* config_read reads the settings, and logs what is wrong with them. */
bool config_read(struct config *c);

/* config_limit returns a device's limit as the region packs it; 0 where there is none, or
 * where it is a share and total is not known (0). */
uint64_t config_limit(const struct config *c, unsigned device, uint64_t total);

/* config_compute returns a share or a cap as the region has it. */
uint64_t config_compute(const struct compute_limit *l);

/* config_wants_compute reports whether this process's job has a share or a cap: by the
 * environment, or by its page of limits. It answers before cuInit, when a program first
 * looks a launch up, and gives the same answer ever after. Quiet: what is wrong with the
 * settings is said at cuInit. asked says that files were opened and closed for it, the region
 * among them, which drops this process's locks on it. */
bool config_wants_compute(bool *asked);

/* config_wait_asking waits for threads that are asking. A process must do so, with the answer known,
 * before it takes a lock on the region. Not for ever: such a thread may have been interrupted by the
 * caller, or not have come along in a fork. */
void config_wait_asking(void);

/* config_log_meaningless logs each variable of HAMi-core's that is set and has no effect: as a
 * warning in the first process of a job. */
void config_log_meaningless(const struct config *c, bool first);

/* config_make_folder makes the folder of a region whose path was not given. */
bool config_make_folder(const struct config *c);

#endif
