/* The job that an operator's policy gives to all processes of a user: docs/shared-server.md.
 *
 *   /etc/ration/in-force.toml      exists while a policy is in force; its first line tells
 *                                  what happens to a user who has no job
 *   /run/ration/user-UID/region    the user's job
 *   /run/ration/user-UID-NAME/region
 *                                  a run: a job with a part of the user's ration
 *   /run/ration/user-UID/exempt    the policy does not ration this user; a dangling link,
 *                                  which the user owns
 *   /run/ration/high-priority/UID  exists if this user may have high priority
 *   /run/ration/policy.sock        makes a job for the user who connects
 *
 * Root owns all other files, and no name of a file comes from the environment. None of them is
 * read before a program first uses the driver: the library is loaded into every process of the
 * machine. */
#ifndef RATION_USERJOB_H
#define RATION_USERJOB_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* userjob_ruled reports whether a policy is in force that rations this process's user. */
bool userjob_ruled(void);

/* userjob_may_be_high reports whether the policy in force, if there is one, allows a process high
 * priority. It does so if the kernel does not tell whose process that is. */
bool userjob_may_be_high(pid_t pid);

/* userjob_is_run reports whether a path is the region of a run of this process's user: a job
 * beside the user's main job, with limits that are taken out of that job's limits. The file
 * need not exist. The user may choose among these jobs, as their limits add up to one ration. */
bool userjob_is_run(const char *region);

enum userjob {
	USERJOB_FOUND,   /* the user has a job; folder is its path */
	USERJOB_MISSING, /* the user has no job: CUDA is refused */
	USERJOB_OPEN,    /* the user has no job, and the policy lets the process run without limits */
	USERJOB_ENDED,   /* the policy rations this user no more: it has been disabled meanwhile */
};

/* Why the caller of userjob_find wants the job. */
enum userjob_wish {
	USERJOB_JOIN, /* to join it: a promise that comes with a new job is kept */
	USERJOB_ASK,  /* to join it, after the service took back the job that was there: ask in any case */
};

/* userjob_let_wait says whether userjob_find may wait for this user's turn, without a bound, where the
 * policy lets users wait for room. A process that only reads does not wait. The caller holds LOCK_ATTACH. */
void userjob_let_wait(bool may);

/* userjob_find finds the folder of the job of this process's user, for whom userjob_ruled is
 * true. If there is no job, it asks the policy service to make one, and waits a bounded time for the
 * answer, or until its turn (userjob_let_wait).
 * If that fails, why gets the reason as text. If at is not empty, it is a list of devices, and
 * the service answers with a job on these devices or not at all.
 *
 * The service takes back a job without processes when another user needs the memory. It does
 * not take back a job that it has promised: until this process calls userjob_end_promise, or
 * ends. Callers hold LOCK_ATTACH. */
enum userjob userjob_find(enum userjob_wish wish, const char *at, char *folder, size_t size, char *why, size_t why_size);
void userjob_end_promise(void);

/* userjob_hold is a promise that this process makes itself, for a job that it found without the service:
 * it locks a byte of the job's region, as a member does. The job can be gone already. If the lock cannot be
 * taken, there is no promise. The caller calls userjob_end_promise, which drops the record locks of this
 * process on the region. */
void userjob_hold(const char *region);

#endif
