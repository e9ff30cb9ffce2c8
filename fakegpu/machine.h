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
#include "models.h"

struct process_info {
	unsigned slot;
	uint32_t pid; /* in the outermost PID namespace the process knew of */
	char name[64];
	uint64_t hidden; /* FAKEGPU_HIDDEN: only ever shown, never charged */
	uint64_t contexts;
	uint64_t used;
};

/* Maps the machine, making it if there is none. With `claim` the caller becomes
 * a process of it. Safe to call again; a forked child starts anew. 0 or -1, with
 * the reason on stderr. */
int machine_attach(bool claim);

/* Forgets what a fork inherited. For the child of a fork only. */
void machine_forked(void);

/* Constant after attaching. */
const struct shape *machine_shape(void);

/* The devices that processes find, in the order in which they number them, as in a container that has the nodes
 * of some devices only: how many, and the machine's number of one. Constant after attaching. */
unsigned machine_presents(void);
unsigned machine_present(unsigned number);

/* What CUDA may hand out: the device less what the driver keeps for itself. */
uint64_t machine_capacity(unsigned device);
uint64_t machine_reserved(unsigned device);

/* Takes bytes (rounded up to units) of a device for this process, or says no.
 * Before it says no it gives back what dead processes held. */
bool machine_charge(unsigned device, enum kind kind, uint64_t bytes);
void machine_return(unsigned device, enum kind kind, uint64_t bytes);

/* Counts this process's contexts on a device up or down; returns how many there are. */
uint64_t machine_context(unsigned device, int by);

/* Gives back what dead processes held. */
void machine_reap(void);

/* Of what this process has, bytes that NVML lists for no process: more, or less. */
void machine_unlist(unsigned device, int64_t by);

uint64_t machine_used(unsigned device); /* by all */
uint64_t machine_mine(unsigned device); /* by this process */
uint64_t machine_kind(unsigned device, enum kind kind, bool all);

/* This process's slot and an identity that no other process ever had; 0 for one that claimed no slot. */
unsigned machine_slot(void);
uint64_t machine_identity(void);
bool machine_alive(unsigned slot, uint64_t identity);

/* Whether that process is gone; unlike machine_alive it takes no lock and gives nothing back. */
bool machine_gone(unsigned slot, uint64_t identity);

/* Time. */
struct clock *machine_clock(void);
void machine_add_time(uint64_t ns); /* sets the clock forward */
struct engine *machine_engine(unsigned device);
uint64_t machine_switch(void); /* ns that an engine takes to go from one context to another */
int machine_control(void);     /* opens what stands for the control device; -1 where it cannot be had */
uint32_t machine_pid(void);    /* of this process, as NVML shows it */

/* Fills up to max entries with live processes that have a context on the device;
 * returns how many there are. */
unsigned machine_processes(unsigned device, struct process_info *out, unsigned max);

#endif
