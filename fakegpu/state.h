/* The layout of the machine's file, and the locks over it. Private to machine.c,
 * share.c and state.c. */
#ifndef FAKEGPU_STATE_H
#define FAKEGPU_STATE_H

#include "clock.h"
#include "engine.h"
#include "ledger.h"
#include "letterbox.h"
#include "models.h"

enum record_state { RECORD_FREE, RECORD_LIVE };

struct record {
	uint32_t state;
	uint32_t pid; /* the process's own PID, in pid_namespace */
	uint32_t outer_pid;
	uint32_t pad0;
	uint64_t start_time; /* of pid, in clock ticks since boot: guards against reuse of a PID */
	uint64_t pid_namespace;
	uint64_t identity;
	uint64_t hidden;
	char name[64];
	uint64_t map; /* address at which the process has mapped this file */
	uint64_t pad1;
	struct letterbox letterbox;
	struct ledger_account account[MAX_DEVICES];
};

/* Exported memory: see share.h. All under the machine's lock. */
enum { MAX_SHARES = 512, SHARE_HOLDERS = 32 };

struct share_holder {
	uint32_t slot;
	uint32_t count; /* of handles that have not been released, or are mapped */
	uint64_t identity;
	uint64_t order; /* of its latest import */
};

struct share {
	uint64_t bytes; /* 0: the record is free */
	uint64_t imports;
	uint32_t device;
	uint32_t owner;                            /* what share_settle found */
	uint64_t dma_bufs;                         /* how many were ever made of it */
	uint64_t serial;                           /* of this use of the record; IPC handles have it */
	struct share_holder holder[SHARE_HOLDERS]; /* first its maker */
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
	uint64_t switch_ns, resume_ns; /* struct engine_costs */
	struct engine engine[MAX_DEVICES];
	uint64_t shares;        /* records below this were used at some time */
	uint64_t share_serials; /* how often a record was made */
	struct share share[MAX_SHARES];
};

_Static_assert(sizeof(struct ledger_account) == 64, "an account is one cache line");
_Static_assert(sizeof(struct record) % 64 == 0, "records start on a cache line");
_Static_assert(offsetof(struct state, record) % 64 == 0, "records start on a cache line");

struct state_file {
	struct state *map;
	int lock_fd; /* its own open file: locks would outlive us in a forked child's mapping */
	int own_fd;  /* another open file, for the record's lock; it lives as long as a driver's files, also in a forked child */
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

/* Returns a descriptor of the file that stands for the control device, beside the machine's file;
 * -1 if that fails. */
int state_control(void);

/* Returns true if the file lost-DEVICE says that the device has failed. Any thread may call it. */
bool state_lost(unsigned device);

/* Returns true if the path still names this file: another one may have replaced it. */
bool state_current(const struct state_file *f);

/* Takes the machine's lock. It excludes processes, not threads: the caller must prevent that two
 * threads call it at once. Without wait it gives up after a few milliseconds and returns false. */
bool state_lock(const struct state_file *f, bool wait);
void state_unlock(const struct state_file *f);

/* A record's lock: state_own takes it for this process, state_owned returns true if a process has
 * it. */
bool state_own(struct state_file *f, unsigned slot);
bool state_owned(const struct state_file *f, unsigned slot);

/* Descriptors of exported memory. state_share_new makes one for a record, state_share_of returns the
 * number of its record, and state_share_open whether there is one; -1 if there is none. */
int state_share_new(unsigned number);
int state_share_of(const struct state_file *f, int fd);
bool state_share_open(const struct state_file *f, unsigned number);

/* The same for dma-bufs. The kernel gives each dma-buf a file of its own; here, one for each record.
 * state_dma_buf_open removes the file if there is no descriptor of it. */
int state_dma_buf_new(unsigned number);
bool state_dma_buf_open(unsigned number);

#endif
