/* Memory that has been exported: shareable memory, and any other of which a dma-buf or an IPC handle was made. It lives as long as a process has a handle, a
 * mapping or a descriptor of it, and an H200 counts it:
 *
 *   while its maker has a handle or a mapping   for the maker
 *   else, while there is a descriptor           for the device, and for no process
 *   else                                        for the process that imported it last, of those
 *                                               that have a handle or a mapping
 *
 * At the first export the memory leaves the account of its maker, and becomes a record that all
 * processes of the machine see. The records are read and changed under the machine's lock only. A
 * descriptor is an open file of its own, with a lock on the byte of its record: the kernel drops
 * the lock when the last duplicate is closed, also one that is in a message. */
#ifndef FAKEGPU_SHARE_H
#define FAKEGPU_SHARE_H

#include "state.h"

/* Frees the records that no process can reach, and finds out which process each of the others
 * counts for. Dead processes must have been reaped. The caller holds the machine's lock, for this
 * and all that follows. */
void share_settle(struct state_file *f);

/* Makes a record of memory of the process in a slot. Returns its number, or -1 if all are taken. */
int share_make(struct state_file *f, unsigned slot, unsigned device, uint64_t bytes);

/* Adds a handle of the process in a slot. Returns false if too many processes have one. */
bool share_import(struct state_file *f, unsigned number, unsigned slot);

/* Opens the memory with a serial by its IPC handle, if its maker has it, or the process in the slot has it
 * open already. Such a process is not the last importer by that. */
bool share_open(struct state_file *f, uint64_t serial, unsigned slot, unsigned *number);

/* Drops the maker's handles and mappings, or one import with its mappings. */
void share_drop(struct state_file *f, unsigned number, unsigned slot, bool maker);

/* Adds up what counts for a slot, for the device and no process (SHARE_NOBODY), or altogether. */
enum { SHARE_NOBODY = MAX_PROCESSES, SHARE_ALL };
uint64_t share_sum(const struct state_file *f, unsigned device, unsigned slot);

/* The parts of that which have to do with their maker. */
struct share_parts {
	uint64_t lent;     /* counts for no process; the process in the slot made and released it */
	uint64_t adopted;  /* counts for the process in the slot, as an importer */
	uint64_t unlisted; /* counts for no process */
	uint64_t orphaned; /* counts for no process, and its maker has ended */
};
struct share_parts share_parts(const struct state_file *f, unsigned device, unsigned slot);

#endif
