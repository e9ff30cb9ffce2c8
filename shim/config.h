/* The settings, which come from the environment, and where the job's region is. */
#ifndef RATION_CONFIG_H
#define RATION_CONFIG_H

#include <stdbool.h>

#include "config_limits.h"
#include "place.h"
#include "region/region.h"

/* Values of config.visible for an ordinal whose entry in CUDA_VISIBLE_DEVICES is not the number
 * of a device of the region. CONFIG_UNLISTED: there is no such entry. CONFIG_OTHER: the entry
 * is a UUID, a larger number, or anything else. */
enum { CONFIG_UNLISTED = RATION_DEVICES, CONFIG_OTHER };

enum { CONFIG_ORDINALS = 64 }; /* devices that a process can use */

struct config {
	char path[512];   /* path of the region */
	bool path_given;  /* a variable names the path, or it is the well-known path */
	bool placed;      /* the job was put at the well-known path, or chosen by a policy: this process may not leave it */
	bool ruled;       /* a policy gives this user the job, or it is a run in the user's ration */
	bool users;       /* the job is the one that a policy gives this user; not a run */
	bool made;        /* a launcher made the job: this process must not create a missing region */
	uint64_t created; /* when the launcher made it, in Unix nanoseconds; 0: not known */
	bool fail_open;   /* RATION_FAIL=open; or the policy lets users without a job run */
	bool probe;       /* RATION_HOSTPID=probe */
	bool sleep_fast;  /* RATION_SLEEP_FAST=1: the library puts device memory aside itself */
	struct config_limits limits;
	uint8_t visible[CONFIG_ORDINALS]; /* CUDA_VISIBLE_DEVICES as it was at cuInit: the device's number, by ordinal */
};

/* config_any reports whether this process has a job: whether a variable, a file at the
 * well-known path or a policy gives it one. */
bool config_any(void);

/* config_read reads the settings into c. It logs each mistake in them, and returns false if
 * there was one that keeps the process from joining. */
bool config_read(struct config *c);

/* config_granted reports whether the job is still this user's, for a process that has locked a
 * slot: the policy service removes a user's job only if no slot is locked after the file
 * `created` is gone (internal/policy/PROTOCOL.md). If it is not, config_ask_again asks the
 * service for a job that is kept until this process has joined it, and logs why there is none.
 * If at is not empty, the job must be on these devices, as in 0,2.
 * The caller holds LOCK_ATTACH, and calls userjob_end_promise when the process has joined. */
bool config_granted(const struct config *c);
bool config_ask_again(struct config *c, const char *at);

/* config_read_place reads the place of the job from its page of limits. It opens and closes the
 * region, which drops this process's locks on it: call it before the process joins. */
void config_read_place(const struct config *c, struct place *out);

/* config_log_meaningless logs each variable of HAMi-core that is set and has no effect: as a
 * warning if first (this is the first process of a job), else as information. */
void config_log_meaningless(const struct config *c, bool first);

/* config_make_folder makes the folder of a region whose path was not given. It returns false if
 * that is not possible, or if other users could change it; the reason has been logged. */
bool config_make_folder(const struct config *c);

#endif
