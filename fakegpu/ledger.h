/* Who holds which bytes of a device, exact whenever a process is killed.
 *
 * One word per device and three words per process record and device:
 *
 *   word   (units in use, slot of the last change, its sequence)   changed by CAS only
 *   pend   (sequence, delta)   the change this slot announced last
 *   used   (sequence, units)   what this slot holds; booked once its sequence is pend's
 *   done   highest sequence of this slot known to be in `word`; raised by others
 *
 * A change announces itself in pend, enters word, then is booked in used. A
 * process that dies in between leaves pend ahead of used; whether its last
 * announcement entered word is decidable, because whoever overwrites a word
 * first raises done of the slot it names. Reaping books or drops that last
 * change and returns the rest in the dead slot's name, so a reaper that dies
 * half-way leaves what a dying owner leaves.
 *
 * The threads of one process take turns (a private mutex); reapers do too (the
 * machine's lock). Units are 512 bytes.
 */
#ifndef FAKEGPU_LEDGER_H
#define FAKEGPU_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

enum { LEDGER_UNIT = 512 };

enum kind { KIND_CONTEXT, KIND_MODULE, KIND_DATA, KIND_COUNT };

struct ledger_word {
    uint64_t word;
    uint64_t capacity; /* units; constant */
    uint64_t pad[6];
};

struct ledger_account {
    uint64_t pend;
    uint64_t used;
    uint64_t done;
    uint64_t kind[KIND_COUNT]; /* bytes, for readers; their sum is used's but for a change under way */
    uint64_t contexts;         /* live contexts: a process is listed by NVML while it has one */
    uint64_t pad;
};

/* A slot's accounts on one device, at a stride: accounts live inside process records. */
struct ledger {
    struct ledger_word *device;
    struct ledger_account *(*account)(unsigned slot, unsigned device);
    unsigned index; /* of the device */
};

static inline uint64_t ledger_units(uint64_t bytes)
{
    return bytes / LEDGER_UNIT + (bytes % LEDGER_UNIT != 0);
}

/* Adds delta units in the name of slot. False if that would pass the capacity;
 * then nothing has changed. A negative delta always succeeds. */
bool ledger_change(const struct ledger *l, unsigned slot, int64_t delta);

/* Returns all that a dead slot holds. Only under the machine's lock. */
void ledger_reap(const struct ledger *l, unsigned slot);

/* Bytes in use on the device, and by one slot. */
uint64_t ledger_total(const struct ledger *l);
uint64_t ledger_used(const struct ledger *l, unsigned slot);

#endif
