/* A ticket is the data that one process passes to another to share memory: the owner, the device
 * and the size. Importing memory of pools charges no process: it belongs to its owner, and ends with it. */
#ifndef FAKEGPU_TICKET_H
#define FAKEGPU_TICKET_H

#include "driver.h"

enum ticket_kind { TICKET_IPC = 1, TICKET_POOL, TICKET_POOL_POINTER };

struct ticket {
	uint32_t magic;
	enum ticket_kind kind;
	uint32_t slot;
	uint32_t device; /* machine index */
	uint64_t identity;
	uint64_t address;
	uint64_t size;
	uint64_t serial; /* of the memory's record (share.h) */
};

_Static_assert(sizeof(struct ticket) <= sizeof(CUipcMemHandle), "tickets travel in IPC handles");

struct ticket ticket_new(enum ticket_kind kind, unsigned device, uint64_t address, uint64_t size);

/* Returns true if it is a ticket of that kind, its owner is alive, and its device is visible here;
 * then *ordinal is set. */
bool ticket_good(const struct ticket *t, enum ticket_kind kind, CUdevice *ordinal);

/* Returns a file descriptor that carries the ticket and can be passed to any process; -1 if that
 * fails. */
int ticket_to_fd(const struct ticket *t);
bool ticket_from_fd(int fd, struct ticket *t);

#endif
