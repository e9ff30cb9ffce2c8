/* The region in C, on the same files as package internal/region in Go. The protocols, with their
 * invariants and the state that a crash leaves, are in docs/protocols.md.
 *
 * Contracts of all functions: they allocate nothing, print nothing and change no signal. No call
 * waits for another process, except region_open, which waits up to 5 ms for the process that
 * initialises the region. Any thread may call any function at any time, except region_open,
 * region_claim and region_close: the caller runs one of these at a time. If a process truncates the
 * file, the kernel ends the processes that have it mapped with SIGBUS: the library installs no
 * signal handler in a program that is not its own. */
#ifndef RATION_REGION_H
#define RATION_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"

/* The page of limits that an operator puts beside a region. */
#define LIMITS_SUFFIX ".limits"

/* Results of the calls below: REGION_OK, or an error. */
enum region_error {
	REGION_OK = 0,
	REGION_FOREIGN,     /* the file is not a region */
	REGION_VERSION,     /* a region of another version */
	REGION_SIZE,        /* the file does not have the size of a region */
	REGION_SYMLINK,     /* the path's last part is a symbolic link */
	REGION_NOT_REGULAR, /* a directory, device, socket or pipe */
	REGION_OWNER,       /* it belongs to neither this user nor root */
	REGION_NO_SPACE,    /* the file system cannot hold it */
	REGION_LIMITS,      /* the limits beside it cannot be used */
	REGION_SYSTEM,      /* a system call failed; errno says how */
	REGION_FULL,        /* every slot belongs to a living process */
	REGION_REFUSED,     /* the charge would exceed the limit */
	REGION_NOT_HELD,    /* more bytes are returned than this process holds */
	REGION_EVICTED,     /* the slot was taken from this process: this change and all that the process held have been returned */
	REGION_DAMAGED,     /* the file has impossible content */
	REGION_BUSY,        /* another thread is changing what this process holds */
	REGION_GONE,        /* the region should exist, but is missing, empty or another one */
	REGION_HELD,        /* the process still holds bytes, which the driver has not freed */
	REGION_LOCKED,      /* some slots are free, but a process that has not joined has locked their bytes */
};

/* The limits that a process brings along; 0 in a field means no limit given. */
struct region_limits {
	uint64_t memory[RATION_DEVICES];  /* as make_limit packs it */
	uint64_t compute[RATION_DEVICES]; /* shares and caps: percent, or RATION_COMPUTE_NONE */
	uint64_t compute_max[RATION_DEVICES];
	uint64_t round;      /* microseconds */
	uint64_t priority;   /* RATION_PRIORITY_... */
	uint64_t wait_alloc; /* milliseconds */
};

/* How region_open found or made the region: already initialised; another process initialised it and
 * this one waited; this process finished the work of another one; this process initialised it. */
enum region_role { ROLE_FAST_PATH, ROLE_WAITED, ROLE_HELPED, ROLE_INITIALISER };

/* The lock of one account (its turn, see turn.h), and the holder's own copy of the account's usage.
 * The copy is in private memory: if another process overwrites the mapped usage, the next change
 * writes the right one again. */
struct region_turn {
	uint32_t lock;  /* a futex: 0 free, 1 held, 2 held and waited for */
	uint64_t claim; /* guarded by lock: the claim that usage belongs to */
	uint64_t peak;
	struct ration_usage usage;
} __attribute__((aligned(64)));

struct region {
	struct ration_region *m;
	const struct ration_limits *limits;
	int fd;
	uint64_t dev, ino;  /* the file that fd must refer to */
	bool made;          /* the file was empty, and this process gave it its size */
	bool limits_beside; /* the limits are in an operator's file beside the region */
	bool any_owner;     /* only an operator can put files at the path: do not check their owner */
	enum region_role role;
	unsigned slot;        /* ours, while m->status[slot] == status */
	uint64_t status;      /* zero: none claimed */
	uint64_t claim;       /* slot and status in one word, for threads that charge while another thread claims or leaves */
	void *keep;           /* the mapping of region_keep */
	void *imports;        /* the mapping of region_show_imports */
	uint64_t clock_zero;  /* Unix time of the zero of the machine's monotonic clock, in ns; 0: not known yet */
	uint64_t clock_shift; /* this process's monotonic clock less the machine's, in ns modulo 2^64 */
	uint32_t former;      /* not zero: the bytes that this process held before an exec have been returned */
	/* After REGION_LOCKED: how many slots are free but locked, and the PID of a process that
	 * has locked one of them, in this process's PID namespace; 0 if it is not visible. */
	unsigned locked;
	int locked_by;
	const char *path;
	struct region_turn turns[RATION_DEVICES];

	/* Callbacks; each may be NULL. on_damage is called when this process has found a slot with
	 * impossible content. No turn is held. */
	void (*on_damage)(unsigned slot, unsigned device);
	/* on_death is called when this process has returned the bytes of a dead process. */
	void (*on_death)(const struct ration_death *death);
	/* on_wait is called by a thread that has waited for a turn of another thread, and holds it
	 * now. since is when the wait began: monotonic clock, in ns. */
	void (*on_wait)(uint64_t since);
	/* on_sleep is called by a thread that begins and ends to wait for the job to wake up. Atomic. */
	void (*on_sleep)(bool waits);
};

/* The bytes that one process holds on one device, as one consistent set unless best_effort is set. */
struct region_holding {
	unsigned slot;
	uint64_t pid;
	struct ration_usage usage;
	bool best_effort;
	bool lent; /* the process is dead, and there may be a descriptor of this memory, which it exported */
};

/* The state of a process that holds bytes: it runs; it has begun to end; or it has ended and its
 * fork children keep the bytes, because they have inherited its open files of the driver; or it has
 * ended and there may be a descriptor of memory that it exported. */
enum region_holder_end { REGION_RUNS, REGION_ENDING, REGION_OUTLIVED, REGION_LENT };

/* A refusal, as the ring of refusals has it, in bytes. itself marks the refused process among the
 * holders. It is found by slot and generation, because in containers every process may have the
 * same PID. */
struct region_refusal {
	uint64_t asked, held, limit, own;
	struct region_holder {
		uint64_t pid, bytes;
		unsigned slot;
		bool itself;
		enum region_holder_end end;
	} top[RATION_HOLDERS];
	uint64_t waited; /* ns for which the request waited for memory */
	bool mutual;     /* it could not fit while processes that waited as well kept their memory */
};

/* region_open attaches to the region at path, and makes and initialises it if necessary. It returns
 * REGION_OK or an error. path must outlive r. */
int region_open(struct region *r, const char *path, const struct region_limits *own);

/* region_open_as is region_open with flags. If created is not 0, it opens only the region that was
 * created at that time. */
enum region_open_flags {
	REGION_EXISTING = 1,  /* return REGION_GONE for a region that is missing or empty */
	REGION_ANY_OWNER = 2, /* trust the file whichever user owns it */
};
int region_open_as(struct region *r, const char *path, const struct region_limits *own, unsigned flags, uint64_t created);

/* region_close unmaps the region. Call region_leave or region_end first; otherwise the slot stays
 * until another process reaps it. */
void region_close(struct region *r);

/* region_open_fd opens a file with O_CLOEXEC. It never returns descriptors 0 to 2: a program that
 * has closed its standard output may still print, and would print into the file. Before code that
 * opens files by itself, region_take_low_fds fills those of the three descriptors that are closed,
 * with a file that can be neither read nor written. It returns a set that region_free_low_fds
 * closes again. */
int region_open_fd(const char *path, int flags, unsigned mode);

/* region_lstat is lstat: it does not follow a link. It returns false with errno set if it fails. */
struct stat;
bool region_lstat(const char *path, struct stat *st);

/* region_stat is fstat, whose name in the C library depends on the library's age. */
int region_stat(int fd, struct stat *st);
unsigned region_take_low_fds(void);
void region_free_low_fds(unsigned taken);

/* region_claim takes a free slot for this process. People see name. It returns REGION_OK,
 * REGION_FULL, REGION_LOCKED or another error. */
int region_claim(struct region *r, const char *name);

/* region_renew_limits replaces the limits of a job that has no living process by own, before this
 * process takes a slot (docs/protocols.md, *The page of limits*). It does nothing if an operator
 * owns the limits. */
int region_renew_limits(struct region *r, const struct region_limits *own);

/* region_lock_own takes the lock of this process's slot again. The kernel drops it when the process
 * closes any descriptor of the file. */
void region_lock_own(struct region *r);

/* region_keep keeps this process's bytes counted until the driver has released them, also if a fork
 * child still has the driver's files (docs/protocols.md, *Liveness*). Call it before the process
 * first uses a driver. */
void region_keep(struct region *r);

/* region_leave returns all bytes of this process, which the driver must have freed, and frees the
 * slot. If another thread holds a turn, it gives up with an error: the rest is reaped later. */
int region_leave(struct region *r);

/* region_end marks the slot: its owner ends in an orderly way, which is not reported as a death. If
 * the process still holds bytes, it keeps its slot and returns REGION_HELD: the driver has the
 * memory until the process has ended, and then another process reaps the slot. Otherwise it frees
 * the slot. It waits for no thread. */
int region_end(struct region *r);

/* region_charge charges bytes if the limit allows it; otherwise it returns REGION_REFUSED and, if
 * why is not NULL, fills in why. */
int region_charge(struct region *r, unsigned device, unsigned kind, uint64_t bytes, struct region_refusal *why);

/* region_charge is these two. region_ask charges bytes if the limit allows it. On REGION_REFUSED it sets
 * *word to the ledger's word that left no space. region_refuse records that a request was refused. */
int region_ask(struct region *r, unsigned device, unsigned kind, uint64_t bytes, uint64_t *word);
void region_refuse(struct region *r, unsigned device, uint64_t bytes, uint64_t word, uint64_t waited_ns, struct region_refusal *why);

/* A request that waits for memory, of one thread: shim/PROTOCOLS.md, *Waiting for memory*. Zero it, and set
 * device and bytes. */
struct region_waiter {
	unsigned device;
	uint64_t bytes;
	uint64_t since;  /* Unix time in ns; 0: it has no turn yet */
	uint64_t ticket; /* its turn */
	uint64_t place;  /* of its entry; 0: it has none */
	unsigned entry;
	unsigned ahead; /* slot of the process whose request is first, if that is not this one */
};

/* region_wait_alloc returns for how many milliseconds requests of the job wait; 0 if they do not. */
uint64_t region_wait_alloc(const struct region *r);

/* region_wait_arm takes a turn, or keeps it, and asks to be woken. Then the caller asks region_wait_rank
 * how many requests come before this one; if none does, it looks for room, and charges. If it does not,
 * region_wait_sleep sleeps until memory is returned or another request leaves, but no longer than ns:
 * then it returns false, and region_wait_look reaps processes that died. region_wait_leave ends the
 * waiting. */
uint32_t region_wait_arm(struct region *r, struct region_waiter *w);
unsigned region_wait_rank(struct region *r, struct region_waiter *w);
bool region_wait_sleep(struct region *r, const struct region_waiter *w, uint32_t armed, uint64_t ns);
void region_wait_look(struct region *r, const struct region_waiter *w, unsigned rank);
void region_wait_leave(struct region *r, struct region_waiter *w);

/* region_own_bytes returns the bytes that this process has charged on a device. */
uint64_t region_own_bytes(struct region *r, unsigned device);

/* region_charge_forced charges bytes that exist already, even if they exceed the limit. */
int region_charge_forced(struct region *r, unsigned device, unsigned kind, uint64_t bytes);

/* region_return returns bytes that were charged. */
int region_return(struct region *r, unsigned device, unsigned kind, uint64_t bytes);

/* region_reap returns the bytes of dead processes to the job, and sets *slots to the number of
 * slots that it freed, or left with memory that is lent from now on. It puts a slot with impossible content out of use: processes that use other
 * slots get no error. */
int region_reap(struct region *r, unsigned *slots);

/* region_reap_lent returns memory that dead processes have lent, if there is no descriptor of it any
 * more. */
void region_reap_lent(struct region *r);

/* Memory of this process on one device that may outlive it. Atomic. */
struct region_exports {
	uint64_t bytes; /* exported and not returned */
	uint64_t file;  /* region_export_file of the descriptors; 0: none yet; RATION_EXPORT_FILES: of different files */
	uint64_t lock;  /* the locked byte, or RATION_EXPORT_LOCK_UNKNOWN; 0: none yet. Set after file */
};

/* region_set_exports writes *e to this process's account. It returns REGION_OK or REGION_EVICTED.
 * region_export_file returns a hash of a descriptor's file, or 0 if that is not known.
 * region_export_lock locks a byte of a descriptor's file: all duplicates of the descriptor share the
 * lock, also those of other processes and in messages, and the kernel drops it with the last one.
 * docs/protocols.md, *Lent memory*. */
int region_set_exports(struct region *r, unsigned device, const struct region_exports *e);
uint64_t region_export_file(int fd);
int region_export_lock(int fd, uint64_t lock);

/* A process that imports memory of another process of the job locks the same byte of the region, until it
 * is charged for that memory or has released it. docs/protocols.md, *Lent memory*.
 *
 *   region_find_exporters   calls found with the byte and the device of each process of the job that may have
 *                           exported a descriptor; -1 stands for an IPC handle, which may be of any process
 *   region_show_imports     locks these bytes, and then unlocks all others that it has locked so. It returns false if
 *                           that fails: then nothing has changed
 *   region_unlent           returns true if the process that exported by that byte has ended and has no slot, or
 *                           there is no descriptor of its memory any more. This stays so
 *   region_imported         returns true if a process may have locked that byte
 *   region_uncharged        returns how many of the bytes that the driver lists with a PID its process is not
 *                           charged for; 0 if no other process of the job is known to have that PID in the list */
void region_find_exporters(struct region *r, int fd, void (*found)(uint64_t lock, unsigned device));
bool region_show_imports(struct region *r, const uint64_t *locks, unsigned n);
bool region_unlent(struct region *r, uint64_t lock);
bool region_imported(struct region *r, uint64_t lock);
uint64_t region_uncharged(struct region *r, unsigned device, uint32_t pid, uint64_t listed);

/* region_used returns the bytes that are granted on a device at this instant. */
uint64_t region_used(const struct region *r, unsigned device);

/* region_limit returns the device's limit word at this instant (see make_limit). */
uint64_t region_limit(const struct region *r, unsigned device);

/* region_set_limit sets the limit word for every request from now on. */
int region_set_limit(struct region *r, unsigned device, uint64_t limit);

/* region_offer_limit sets a device's limit word if no process has set it yet. */
int region_offer_limit(struct region *r, unsigned device, uint64_t limit);

/* region_find_device returns the index of the device with this UUID (big-endian), or -1. */
int region_find_device(const struct region *r, const uint64_t uuid[2]);

/* region_assign_device also returns the index of a device, for a device that this process uses. If
 * no index has the UUID, it gives one to the device: prefer if that is free, but never one in the
 * bit set taken. total is the device's memory in bytes. It returns -1 if no index is left. */
int region_assign_device(struct region *r, const uint64_t uuid[2], uint64_t total, unsigned prefer, uint32_t taken);

/* region_context_cost returns the bytes that a first context takes on a device, as a process of the
 * job has recorded them; 0 if no process has, or if the record is of another device. */
uint64_t region_context_cost(const struct region *r, unsigned device, const uint64_t uuid[2]);

/* region_remember_cost records that size. region_forget_cost removes the record if it is still this
 * one. The record is a hint: it only decides whether a context is measured. */
void region_remember_cost(struct region *r, unsigned device, const uint64_t uuid[2], uint64_t bytes);
void region_forget_cost(struct region *r, unsigned device, const uint64_t uuid[2], uint64_t bytes);

/* region_awake returns true if the job does not sleep, and is neither falling asleep nor waking up.
 * region_wait_awake asks for the job to be woken, and returns when it is awake. It holds nothing,
 * and may wait for hours. region_ask_awake asks, and does not wait. */
bool region_awake(const struct region *r);
void region_wait_awake(struct region *r);
void region_ask_awake(struct region *r);

/* region_show_cannot shows why this process cannot sleep: bits RATION_CANNOT_... It comes before the
 * driver's call: afterwards the caller reads the region's word sleep, sequentially consistent. */
void region_show_cannot(struct region *r, uint64_t bits);

/* The word Lane of this process's slot (make_lane), or NULL if it has none: internal/sleep/PROTOCOL.md,
 * *The lane*. region_lane_change replaces from, wakes the threads and processes that wait for a
 * change, and returns whether it did: the word has the generation of the slot's owner, so it changes
 * no other process's. region_lane_wait returns when the word is not seen any more, or after ns
 * nanoseconds (less than a second), and sometimes for no reason. */
uint64_t *region_lane(const struct region *r);
bool region_lane_change(uint64_t *lane, uint64_t from, uint64_t to);
void region_lane_wait(uint64_t *lane, uint64_t seen, long ns);

/* region_own_usage sets *f to the bytes that this process holds on a device, by kind. */
void region_own_usage(struct region *r, unsigned device, struct ration_usage *f);

/* region_set_driver_bytes records the bytes that the driver reports for this process. */
void region_set_driver_bytes(struct region *r, unsigned device, uint64_t bytes);

/* region_holdings reads how many bytes each process holds on a device into out, for at most n
 * processes. It returns how many processes hold some. */
unsigned region_holdings(struct region *r, unsigned device, struct region_holding *out, unsigned n);

/* The job's current limits of a device's time: share and cap in per cent, 0 for none, the round in
 * microseconds, and one of RATION_PRIORITY_HIGH to RATION_PRIORITY_LOW. */
unsigned region_share(const struct region *r, unsigned device);
unsigned region_cap(const struct region *r, unsigned device);
uint64_t region_round(const struct region *r);
unsigned region_priority(const struct region *r);

/* region_enter prepares this process's account on a device, so that region_show_work and
 * region_show_slice can write to it. These two wait for no thread, and do nothing if the account
 * does not belong to this process. */
void region_enter(struct region *r, unsigned device);

/* region_show_work publishes that this process has work, as packed by make_work; region_show_slice
 * publishes the time slice of its contexts, as packed by make_slice. */
void region_show_work(struct region *r, unsigned device, uint64_t work);
void region_show_slice(struct region *r, unsigned device, uint64_t slice);

/* region_workers returns how many contexts of the job's other processes have work on a device
 * (shim/compute/PROTOCOLS.md, *The lease of work*). asked has one word for each slot: when the
 * kernel was last asked about its process, in units of RATION_WORK_LEASE_US, and in the lowest bit
 * whether the process had ended. It may ask the kernel about a process, and reap it. */
unsigned region_workers(struct region *r, unsigned device, uint64_t now_us, uint32_t asked[RATION_SLOTS]);

/* region_clock returns what must be subtracted from a time of this process's monotonic clock to get
 * the machine's, in ns modulo 2^64. Processes in different time namespaces have different monotonic
 * clocks. The times in the region are of the machine's clock. */
uint64_t region_clock(struct region *r);

/* The cap's word: shim/compute/PROTOCOLS.md. All times are in ns; points in time are of this
 * process's monotonic clock; percent is the cap.
 *
 * region_cap_due returns the time until which launches must wait. region_cap_ahead returns what
 * that time would be if under_way_ns more were used from now on. region_cap_claim returns how much
 * of the interval from from_ns to to_ns, in which this process occupied the device, no process of
 * the job has claimed before; region_cap_charge charges used_ns, the sum of these.
 * region_cap_in_turn and region_cap_waited add to the statistics: which part of the charged time was in
 * this process's own turn for certain, and for how long a launch waited. */
uint64_t region_cap_due(struct region *r, unsigned device, unsigned percent, uint64_t now_ns);
uint64_t region_cap_ahead(uint64_t due, uint64_t under_way_ns, unsigned percent, uint64_t now_ns);
uint64_t region_cap_claim(struct region *r, unsigned device, uint64_t from_ns, uint64_t to_ns);
void region_cap_charge(struct region *r, unsigned device, uint64_t used_ns, unsigned percent, uint64_t now_ns);
void region_cap_in_turn(struct region *r, unsigned device, uint64_t ns);
void region_cap_waited(struct region *r, unsigned device, uint64_t ns);

/* region_show_uncharged publishes since when this process has had work that is not charged yet; 0
 * if it has none. If it ends before it is charged, the process that notices it is (and at an
 * orderly end this process itself) calls region_cap_settle, in reap.c and claim.c. */
void region_show_uncharged(struct region *r, unsigned device, uint64_t since_ns);

/* region_cause_text returns a text that tells how a death was noticed. */
const char *region_cause_text(unsigned cause);

/* region_error_text returns a text that tells what an error means. */
const char *region_error_text(int error);

#endif
