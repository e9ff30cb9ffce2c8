/* The job in which an operator's policy has all processes of a user: docs/shared-server.md.
 *
 *   /etc/ration/in-force.toml      is there while a policy is in force; its first line says what
 *                                  becomes of a user for whom there is no job
 *   /run/ration/user-UID/region    the user's job
 *   /run/ration/user-UID-NAME/region
 *                                  a run: a job with a part of the user's ration
 *   /run/ration/user-UID/exempt    the policy does not ration this user; a link to nowhere, which is the user's
 *   /run/ration/policy.sock        makes a job for the user who connects
 *
 * All else of it is root's, and no name in it comes from the environment. Nothing is looked at before
 * a program first uses the driver: the library is loaded into every process of the machine. */
#ifndef RATION_USERJOB_H
#define RATION_USERJOB_H

#include <stdbool.h>
#include <stddef.h>

/* userjob_ruled reports whether a policy is in force, and rations this process's user. */
bool userjob_ruled(void);

/* userjob_is_run reports whether a path is that of a run of this process's user: a job of the user's
 * beside the one of all programs, whose limits are taken out of that one's. It need not exist. Which
 * of these jobs a process is in is the user's to say, as their limits add up to one ration. */
bool userjob_is_run(const char *region);

enum userjob {
	USERJOB_FOUND,   /* the path is the folder of its job */
	USERJOB_MISSING, /* it has none: CUDA is refused */
	USERJOB_OPEN,    /* it has none, and the policy lets it run without limits */
};

/* userjob_find finds the folder of this process's user's job, of a user who is ruled. Where there
 * is none it has one made, and waits for that, a bounded time; why then says why that could not
 * be. */
enum userjob userjob_find(char *folder, size_t size, char *why, size_t why_size);

#endif
