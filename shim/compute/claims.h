/* Claims tell the processes of all jobs, of all users, which of them have work on a device. A claim
 * is a kernel lock on a file that has no content: the kernel drops it when its process dies, and
 * the length of the locked range says until when it counts. So there is nothing to corrupt, nothing
 * to clean up, and a process that goes idle need not say so. shim/compute/PROTOCOLS.md, *Claims*.
 *
 * No function here waits or takes a lock of the library. */
#ifndef RATION_CLAIMS_H
#define RATION_CLAIMS_H

#include <stdbool.h>
#include <stdint.h>

enum claims_kind {
	CLAIMS_SEAT, /* not of a device: a number that no other process has */
	CLAIMS_HIGH, /* a job of high priority has had work lately */
	CLAIMS_LOW,  /* a job of low priority has work, or wants to */
	CLAIMS_BUSY, /* the device has work of a process of low priority */
};

/* The longest time that a claim may count, in ms. A later end was not written by this library. */
#define CLAIMS_MOST_MS UINT64_C(3600000)

/* claims_other returns this for a number that cannot be found out. */
#define CLAIMS_MANY 64u

/* claims_now returns the time by which claims end: the time of day in ms. It is the same in all
 * time namespaces. */
uint64_t claims_now(void);

/* claims_hold makes this process's claim on a device count until a time, or drops it if until is 0.
 * It returns false if there is no file of claims, or if its calls have taken too long lately. */
bool claims_hold(const uint64_t uuid[2], enum claims_kind kind, uint64_t until);

/* claims_hold_with is the same for a claim with a detail: a number below 4096 that the others see. */
bool claims_hold_with(const uint64_t uuid[2], enum claims_kind kind, unsigned detail, uint64_t until);

/* claims_others returns how many other processes have a claim on a device that counts now;
 * CLAIMS_MANY if there are so many, or if claims_hold would return false. claims_find_all also tells how
 * many of those have a seat before that of this process, and the sum of their details. */
struct claims_found {
	unsigned before;
	uint64_t details;
};
unsigned claims_others(const uint64_t uuid[2], enum claims_kind kind, uint64_t now);
unsigned claims_find_all(const uint64_t uuid[2], enum claims_kind kind, uint64_t now, struct claims_found *others);

/* claims_reset forgets what a fork child inherited. The kernel gives a child none of the locks. */
void claims_reset(void);

#endif
