/* The layout of the machine's file, and the locks over it. Private to machine.c
 * and state.c. */
#ifndef FAKEGPU_STATE_H
#define FAKEGPU_STATE_H

#include "clock.h"
#include "engine.h"
#include "ledger.h"
#include "models.h"

enum record_state { RECORD_FREE, RECORD_LIVE };

struct record {
	uint32_t state;
	uint32_t pid; /* as the process calls itself, in pid_namespace */
	uint32_t outer_pid;
	uint32_t pad0;
	uint64_t start_time; /* of pid, in clock ticks since boot: guards against reuse of a PID */
	uint64_t pid_namespace;
	uint64_t identity;
	uint64_t hidden;
	char name[64];
	uint64_t map; /* where the process has this file */
	uint64_t pad1;
	struct ledger_account account[MAX_DEVICES];
};

struct state {
	uint32_t magic;
	uint32_t version;
	uint64_t size;
	char shape[64];  /* the text of FAKEGPU */
	uint64_t claims; /* how many records were ever claimed: the source of identities */
	uint64_t high;   /* slots below this were used at some time */
	uint64_t pad[4];
	struct ledger_word device[MAX_DEVICES];
	struct record record[MAX_PROCESSES];
	struct clock clock;
	uint64_t switch_ns; /* what it takes an engine to go from one context to another */
	struct engine engine[MAX_DEVICES];
};

_Static_assert(sizeof(struct ledger_account) == 64, "an account is one cache line");
_Static_assert(sizeof(struct record) % 64 == 0, "records start on a cache line");
_Static_assert(offsetof(struct state, record) % 64 == 0, "records start on a cache line");

struct state_file {
	struct state *map;
	int lock_fd; /* its own open file: locks would outlive us in a forked child's mapping */
	int own_fd;  /* and another one, of a record's lock, which lives as a driver's files do: also in a forked child */
	struct shape shape;
	unsigned present[MAX_DEVICES]; /* the machine's numbers of the devices that processes find */
	unsigned presents;
};

/* One caller at a time, for this and all that follows.
 *
 * Opens the file for the shape FAKEGPU asks for, making or replacing it as needed.
 * A machine in use keeps its shape; a process that asks for none takes the one that is there. */
int state_open(struct state_file *f);
void state_close(struct state_file *f);

/* A descriptor of the file that stands for the control device, beside the machine's; -1 where it cannot be had. */
int state_control(void);

/* Whether the path still leads to this file: another may have replaced it. */
bool state_current(const struct state_file *f);

/* The machine's lock. Threads of one process must take turns by themselves.
 * Without wait it gives up after a few milliseconds. */
bool state_lock(const struct state_file *f, bool wait);
void state_unlock(const struct state_file *f);

/* A record's own lock. */
bool state_own(struct state_file *f, unsigned slot);
bool state_owned(const struct state_file *f, unsigned slot);

#endif
