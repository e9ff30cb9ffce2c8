/* The machine that all processes share: its devices, and a record per process.
 *
 * It is one file in the folder FAKEGPU_STATE. A process claims a record, and
 * holds an open-file-description lock on that record's own byte for as long as
 * it lives; the kernel drops it at any death. A record whose lock is free and
 * whose process (where we can see it) is gone is dead, and its bytes are given
 * back by the next process that needs or counts bytes. Slow paths (claiming, reaping, reshaping) hold the
 * machine's lock, another byte of the same file, which a death releases as well.
 */
#ifndef FAKEGPU_MACHINE_H
#define FAKEGPU_MACHINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "clock.h"
#include "engine.h"
#include "ledger.h"
#include "letterbox.h"
#include "models.h"

struct share_parts;

struct process_info {
	unsigned slot;
	uint32_t pid; /* in the outermost PID namespace that the process knew */
	char name[64];
	uint64_t hidden; /* FAKEGPU_HIDDEN: bytes that are shown, but never charged */
	uint64_t contexts;
	uint64_t used;
};

/* Maps the machine's file, and makes it if there is none. With `claim` the caller becomes a process
 * of the machine. It may be called again; a forked child starts anew. Returns 0, or -1 with the
 * reason on stderr. */
int machine_attach(bool claim);

/* Clears the state that a forked child has inherited. Only for the child of a fork. */
void machine_forked(void);

/* Constant after attaching. */
const struct shape *machine_shape(void);

/* The devices that processes find, in the order of their numbers; there may be fewer than on the
 * machine, as in a container that has only some device nodes. machine_presents returns how many
 * there are, machine_present the machine's number of one. Constant after attaching. */
unsigned machine_presents(void);
unsigned machine_present(unsigned number);

/* machine_capacity returns the bytes that CUDA may allocate: the device's memory without
 * machine_reserved, the bytes that the driver keeps for itself. */
uint64_t machine_capacity(unsigned device);
uint64_t machine_reserved(unsigned device);

/* machine_charge charges bytes (rounded up to units) of a device to this process, and returns false
 * if there is no space. Before it returns false, it reaps dead processes. */
bool machine_charge(unsigned device, enum kind kind, uint64_t bytes);
void machine_return(unsigned device, enum kind kind, uint64_t bytes);

/* Adds `by` to the number of this process's contexts on a device, and returns the new number. */
uint64_t machine_context(unsigned device, int by);

/* machine_put_aside returns all bytes of this process's account, and its contexts, and writes down
 * how many in *aside. machine_take_back charges them again, and returns false if there is no space:
 * what was charged until then stays charged. Exported memory (share.h) stays where it is. */
struct aside {
	uint64_t bytes[MAX_DEVICES][KIND_COUNT], contexts[MAX_DEVICES];
};
void machine_put_aside(struct aside *aside);
bool machine_take_back(const struct aside *aside);

/* machine_letterbox returns the letterbox of the live process with this PID, and its slot and
 * identity; NULL: there is none. machine_own_letterbox returns this process's. */
struct letterbox *machine_letterbox(uint32_t pid, unsigned *slot, uint64_t *identity);
struct letterbox *machine_own_letterbox(void);

/* Returns the bytes of dead processes. */
void machine_reap(void);

uint64_t machine_used(unsigned device);   /* bytes used by all processes, and shareable memory that counts for none */
uint64_t machine_booked(unsigned device); /* the same, as the sum of what machine_processes shows and what counts for none */
uint64_t machine_mine(unsigned device);   /* bytes used by this process */
uint64_t machine_kind(unsigned device, enum kind kind, bool all);

/* Exported memory: see share.h. machine_share moves bytes of this process's account to a record, and
 * returns its number, or -1. machine_share_export returns a new descriptor of it, or a dma-buf, or -1.
 * machine_share_import finds the record of a descriptor and adds a handle of this process; it
 * returns the number of the record, or -1. machine_share_serial returns what an IPC handle has of it, with
 * which machine_share_open does the same, while the maker has the memory. machine_share_drop ends the maker's or one import's
 * handle. machine_share_parts returns what share_parts does, for this process. */
int machine_share(unsigned device, uint64_t bytes);
int machine_share_export(unsigned number, bool dma_buf);
int machine_share_import(int fd, unsigned *device, uint64_t *bytes);
uint64_t machine_share_serial(unsigned number);
int machine_share_open(uint64_t serial);
void machine_share_drop(unsigned number, bool maker);
struct share_parts machine_share_parts(unsigned device);

/* machine_slot returns this process's slot, and machine_identity an identity that no other process
 * has ever had. If the process has claimed no slot, the identity is 0, and the slot must not be
 * used. */
unsigned machine_slot(void);
uint64_t machine_identity(void);
bool machine_alive(unsigned slot, uint64_t identity);

/* Returns true if that process has ended. Unlike machine_alive it takes no lock and reaps nothing. */
bool machine_gone(unsigned slot, uint64_t identity);

/* Time. */
struct clock *machine_clock(void);
void machine_add_time(uint64_t ns); /* sets the clock forward */
struct engine *machine_engine(unsigned device);
struct engine_costs machine_costs(void);
int machine_control(void);  /* opens the file that stands for the control device; -1 if that fails */
uint32_t machine_pid(void); /* of this process, as NVML shows it */

/* Fills up to max entries with live processes that have a context on the device;
 * returns how many there are. */
unsigned machine_processes(unsigned device, struct process_info *out, unsigned max);

#endif
