/* Which process holds which bytes of a device, exact whenever a process is killed.
 *
 * The protocol of docs/protocols.md, *The ledger*, which models/ledger.pml checks; in
 * code of its own, so that a mistake there is not repeated here. One word for each
 * device, three for each process record and device:
 *
 *   word   (units in use, slot of the last change, its sequence)   changed by CAS only
 *   pend   (delta, sequence)   the change this slot announced last
 *   used   (units, sequence)   what this slot holds; booked once its sequence is pend's
 *   done   a sequence of this slot that was in `word`; written by others
 *
 * A change is announced in pend, applied to word, then booked in used. A process
 * that dies in between leaves an announcement that is not booked; whether it was
 * applied is decidable, because a process notes the change that it finds in word
 * in the done of its slot before it overwrites it. Sequences are compared for
 * equality only, so it does not matter how long a process was stopped.
 *
 * Reaping finishes the dead slot's last change and returns the rest in its name, so
 * a reaper that dies half-way leaves what a dying owner leaves. One reaper at a time
 * (the machine's lock) is a case of the many that the model allows.
 *
 * The threads of one process take turns (a private mutex). Units are 512 bytes.
 */
#ifndef FAKEGPU_LEDGER_H
#define FAKEGPU_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

enum { LEDGER_UNIT = 512 };

enum kind { KIND_CONTEXT, KIND_MODULE, KIND_DATA, KIND_COUNT };

struct ledger_word {
	uint64_t word;
	uint64_t capacity; /* units that processes may have; atomic */
	uint64_t pad[6];
};

struct ledger_account {
	uint64_t pend;             /* written by the owner, or by the reaper of a dead one */
	uint64_t used;             /* likewise */
	uint64_t done;             /* written by all */
	uint64_t kind[KIND_COUNT]; /* bytes, for readers; they add up to `used`, except during a change */
	uint64_t contexts;         /* live contexts: a process is listed by NVML while it has one */
	uint64_t pad;
};

/* A slot's accounts on one device, at a stride: accounts live inside process records. */
struct ledger {
	struct ledger_word *device;
	struct ledger_account *(*account)(unsigned slot, unsigned device);
	unsigned index; /* of the device */
};

static inline uint64_t ledger_units(uint64_t bytes) { return bytes / LEDGER_UNIT + (bytes % LEDGER_UNIT != 0); }

/* Adds delta units in the name of slot. False if that would exceed the capacity;
 * then nothing has changed. A negative delta always succeeds. */
bool ledger_change(const struct ledger *l, unsigned slot, int64_t delta);

/* Returns all that a dead slot holds. Only under the machine's lock. */
void ledger_reap(const struct ledger *l, unsigned slot);

/* Bytes in use on the device, and by one slot. */
uint64_t ledger_total(const struct ledger *l);
uint64_t ledger_used(const struct ledger *l, unsigned slot);

#endif
