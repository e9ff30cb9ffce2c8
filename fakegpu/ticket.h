/* What one process hands another so that it can reach its memory: which process owns it,
 * on which device, how much. Importing charges no process; the memory is its owner's and
 * goes when the owner's goes. */
#ifndef FAKEGPU_TICKET_H
#define FAKEGPU_TICKET_H

#include "driver.h"

enum ticket_kind { TICKET_IPC = 1, TICKET_PHYSICAL, TICKET_POOL, TICKET_POOL_POINTER };

struct ticket {
	uint32_t magic;
	enum ticket_kind kind;
	uint32_t slot;
	uint32_t device; /* machine index */
	uint64_t identity;
	uint64_t address;
	uint64_t size;
};

_Static_assert(sizeof(struct ticket) <= sizeof(CUipcMemHandle), "tickets travel in IPC handles");

struct ticket ticket_new(enum ticket_kind kind, unsigned device, uint64_t address, uint64_t size);

/* Whether it is a ticket of that kind, its owner lives, and its device is visible
 * here (then *ordinal is set). */
bool ticket_good(const struct ticket *t, enum ticket_kind kind, CUdevice *ordinal);

/* As a file descriptor that can be passed to any process. -1 if there is none. */
int ticket_to_fd(const struct ticket *t);
bool ticket_from_fd(int fd, struct ticket *t);

#endif
