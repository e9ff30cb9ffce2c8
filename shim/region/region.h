/* The region in C: what internal/region is in Go, on the same files. The
 * protocols, with their invariants and what a crash leaves, are in
 * docs/protocols.md.
 *
 * Contracts that hold for all of it: nothing is allocated, nothing is printed, no
 * signal is touched. No call waits for another process, but for region_open,
 * which leaves an initialiser 5 ms. Threads of the process may call anything at
 * any time, but for region_open, region_claim and region_close, of which one
 * runs at a time. Who cuts the file short ends the processes that have it mapped
 * with SIGBUS: a guest takes no signal handler. */
#ifndef RATION_REGION_H
#define RATION_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"

/* The page of limits that an operator puts beside a region. */
#define LIMITS_SUFFIX ".limits"

/* What a call returns: 0, or one of these. */
enum region_error {
	REGION_OK = 0,
	REGION_FOREIGN,     /* the file is not a region */
	REGION_VERSION,     /* a region of another version */
	REGION_SIZE,        /* it was cut short or made longer */
	REGION_SYMLINK,     /* the path's last part is a symbolic link */
	REGION_NOT_REGULAR, /* a directory, device, socket or pipe */
	REGION_OWNER,       /* it belongs to neither this user nor root */
	REGION_NO_SPACE,    /* the file system cannot hold it */
	REGION_LIMITS,      /* the limits beside it cannot be used */
	REGION_SYSTEM,      /* a system call failed; errno says how */
	REGION_FULL,        /* every slot belongs to a living process */
	REGION_REFUSED,     /* the limit has no room for it */
	REGION_NOT_HELD,    /* more is returned than is held */
	REGION_EVICTED,     /* the slot was taken away: nothing of this change, nor of what was held, is left */
	REGION_DAMAGED,     /* what the file holds cannot be */
	REGION_BUSY,        /* another thread is changing what this process holds */
	REGION_GONE,        /* it was to be there, and is missing, empty or another one */
	REGION_HELD,        /* the driver still has what the process holds */
	REGION_LOCKED,      /* slots are free, and a process that has not joined has their bytes locked */
};

/* What a process brings along; zero where it has nothing to say. */
struct region_limits {
	uint64_t memory[RATION_DEVICES];  /* as make_limit packs it */
	uint64_t compute[RATION_DEVICES]; /* shares and caps: percent, or RATION_COMPUTE_NONE */
	uint64_t compute_max[RATION_DEVICES];
	uint64_t round; /* microseconds */
};

/* How a process came by a ready region. */
enum region_role { ROLE_FAST_PATH, ROLE_WAITED, ROLE_HELPED, ROLE_INITIALISER };

/* One account's turn, and what its holder keeps of the account in memory of its own: what
 * others wrote into the mapped usage lasts until the next change. */
struct region_turn {
	uint32_t lock;  /* a futex: 0 free, 1 held, 2 held and waited for */
	uint64_t claim; /* under it: whose usage this is */
	uint64_t peak;
	struct ration_usage usage;
} __attribute__((aligned(64)));

struct region {
	struct ration_region *m;
	const struct ration_limits *limits;
	int fd;
	uint64_t dev, ino;  /* what fd must be a descriptor of */
	bool made;          /* this process gave the file its size: it was empty */
	bool limits_beside; /* an operator owns them */
	bool any_owner;     /* the path is an operator's: whose the files are decides nothing */
	enum region_role role;
	unsigned slot;   /* ours, while m->status[slot] == status */
	uint64_t status; /* zero: none claimed */
	uint64_t claim;  /* both in one word, for threads that charge while another claims or leaves */
	void *keep;      /* the mapping of region_keep */
	uint32_t former; /* not zero: what this process held before an exec has been given back */
	/* After REGION_LOCKED: how many slots are free and locked, and a process that has one of
	 * them locked, as this one sees it; 0 where it cannot be seen. */
	unsigned locked;
	int locked_by;
	const char *path;
	struct region_turn turns[RATION_DEVICES];

	/* Called, where not null, by a process that found a slot whose content cannot be. No turn
	 * is held. */
	void (*on_damage)(unsigned slot, unsigned device);
	/* And by one that gave back what a dead process held. */
	void (*on_death)(const struct ration_death *death);
	/* And by a thread that waited for another one's turn, since then on the monotonic clock, in
	 * nanoseconds. It has the turn now. */
	void (*on_wait)(uint64_t since);
};

/* What one process holds of one device, in one piece. */
struct region_holding {
	unsigned slot;
	uint64_t pid;
	struct ration_usage usage;
	bool best_effort;
};

/* Whether a process that holds something has begun to end, or has ended and its fork children
 * keep it: they have the driver's files that it had open. */
enum region_holder_end { REGION_RUNS, REGION_ENDING, REGION_OUTLIVED };

/* A refusal, as the ring keeps it. itself: the process that was refused, by its slot and
 * generation; in containers, every process may have the same PID. */
struct region_refusal {
	uint64_t asked, held, limit, own;
	struct region_holder {
		uint64_t pid, bytes;
		unsigned slot;
		bool itself;
		enum region_holder_end end;
	} top[RATION_HOLDERS];
};

/* region_open attaches to the region at path, making and initialising it if need
 * be. path must outlive r. */
int region_open(struct region *r, const char *path, const struct region_limits *own);

/* region_open_as is region_open with flags, and for the region that was made then and no other
 * where created is not 0. */
enum region_open_flags {
	REGION_EXISTING = 1,  /* a region that is missing or empty is REGION_GONE */
	REGION_ANY_OWNER = 2, /* whoever put it there is trusted */
};
int region_open_as(struct region *r, const char *path, const struct region_limits *own, unsigned flags, uint64_t created);

/* region_close unmaps it. The slot, if any, must have been left; or it is left to
 * the next process that needs it. */
void region_close(struct region *r);

/* region_open_fd opens a file, closed by exec, and never as one of the descriptors 0 to 2: a
 * program that has closed its standard output still prints, and would print into the file.
 * For what opens files by itself, region_take_low_fds takes those of the three that are
 * closed, by what can be neither read nor written, until region_free_low_fds. */
int region_open_fd(const char *path, int flags, unsigned mode);

/* region_lstat asks for a file itself, not for what a link leads to. It sets errno. */
struct stat;
bool region_lstat(const char *path, struct stat *st);
unsigned region_take_low_fds(void);
void region_free_low_fds(unsigned taken);

/* region_claim takes a slot; name is shown to people. */
int region_claim(struct region *r, const char *name);

/* region_renew_limits gives a job whose processes have all gone the limits of one that comes,
 * before it takes a slot: docs/protocols.md, *The page of limits*. Not where an operator owns them. */
int region_renew_limits(struct region *r, const struct region_limits *own);

/* region_lock_own takes the lock of this process's slot again, which closing any descriptor of
 * the file drops. */
void region_lock_own(struct region *r);

/* region_keep keeps what this process holds counted until the driver has released it, also where
 * a fork child has its files: docs/protocols.md, *Liveness*. For a process that uses a driver,
 * before it does. */
void region_keep(struct region *r);

/* region_leave returns all bytes, which the driver has freed, and frees the slot. It gives up,
 * and leaves the rest to reaping, where a turn is held. */
int region_leave(struct region *r);

/* region_end says that this process ends, which is no death. Where it holds something it keeps
 * its slot, REGION_HELD: the driver has that until the process has ended, and then it is
 * reaped. Otherwise it leaves. It waits for no thread. */
int region_end(struct region *r);

/* region_charge asks for bytes; why, where not null, is filled on refusal. */
int region_charge(struct region *r, unsigned device, unsigned kind, uint64_t bytes, struct region_refusal *why);

/* region_charge_forced charges bytes that exist whether the limit has room or not. */
int region_charge_forced(struct region *r, unsigned device, unsigned kind, uint64_t bytes);

/* region_return gives back bytes that were charged. */
int region_return(struct region *r, unsigned device, unsigned kind, uint64_t bytes);

/* region_reap gives back what dead processes hold, and counts their slots. A slot whose
 * content cannot be is put out of use: it is no error for processes that need the rest. */
int region_reap(struct region *r, unsigned *slots);

/* region_used is what is granted of a device at this instant, in bytes. */
uint64_t region_used(const struct region *r, unsigned device);

/* region_limit is the device's limit word at this instant. */
uint64_t region_limit(const struct region *r, unsigned device);

/* region_set_limit changes it for every request from now on. */
int region_set_limit(struct region *r, unsigned device, uint64_t limit);

/* region_offer_limit sets a device's limit if no process has. */
int region_offer_limit(struct region *r, unsigned device, uint64_t limit);

/* region_find_device is the index of the device with this UUID (big end first), or -1. */
int region_find_device(const struct region *r, const uint64_t uuid[2]);

/* region_assign_device is the same for a device this process uses: where no index has its
 * UUID, one is given to it, the preferred one if it is free, never one in taken.
 * -1 where there is none left. */
int region_assign_device(struct region *r, const uint64_t uuid[2], uint64_t total, unsigned prefer, uint32_t taken);

/* region_context_cost is what a first context takes on a device, as a process of the job
 * remembered it; 0 where no process did, or of another device. */
uint64_t region_context_cost(const struct region *r, unsigned device, const uint64_t uuid[2]);

/* region_remember_cost does so, and region_forget_cost undoes it, unless it has become
 * another's. A hint: nothing rests on it but whether a context is measured. */
void region_remember_cost(struct region *r, unsigned device, const uint64_t uuid[2], uint64_t bytes);
void region_forget_cost(struct region *r, unsigned device, const uint64_t uuid[2], uint64_t bytes);

/* region_own_usage is what this process holds of a device, by kind. */
void region_own_usage(struct region *r, unsigned device, struct ration_usage *f);

/* region_set_driver_bytes records what the driver reports for this process. */
void region_set_driver_bytes(struct region *r, unsigned device, uint64_t bytes);

/* region_holdings reads what each process holds of a device into out, at most n
 * of them, and returns how many there are. */
unsigned region_holdings(struct region *r, unsigned device, struct region_holding *out, unsigned n);

/* What a job may have of a device's time at this instant: a share and a cap in percent, 0
 * for none, and the round in microseconds. */
unsigned region_share(const struct region *r, unsigned device);
unsigned region_cap(const struct region *r, unsigned device);
uint64_t region_round(const struct region *r);

/* region_enter makes this process's account on a device its own, so that what follows can be
 * shown in it. The calls that show something wait for no thread: they do nothing where the
 * account is not this process's. */
void region_enter(struct region *r, unsigned device);

/* region_show_work and region_show_slice show the last sign of work and the slices of this
 * process, as make_work and make_slice pack them. */
void region_show_work(struct region *r, unsigned device, uint64_t work);
void region_show_slice(struct region *r, unsigned device, uint64_t slice);

/* region_workers counts the contexts of the job's other processes that have work on a
 * device: shim/compute/PROTOCOLS.md, *The lease of work*. asked is when each slot was last asked about, in
 * units of RATION_WORK_LEASE_US, and in the lowest bit whether its process had ended. It may ask the kernel about a process, and reap it. */
unsigned region_workers(struct region *r, unsigned device, uint64_t now_us, uint32_t asked[RATION_SLOTS]);

/* The cap's word: shim/compute/PROTOCOLS.md. region_cap_due returns the nanosecond of
 * the monotonic clock that launches wait for at a cap in percent, and region_cap_ahead what that would be
 * if so much more were used from now on. region_cap_claim returns how much of an interval of that clock, in
 * which this process occupied the device, was not claimed yet, also by other processes that had work at the same
 * time; region_cap_charge charges that. region_cap_waited books that a launch waited. */
uint64_t region_cap_due(struct region *r, unsigned device, unsigned percent, uint64_t now_ns);
uint64_t region_cap_ahead(uint64_t due, uint64_t under_way_ns, unsigned percent, uint64_t now_ns);
uint64_t region_cap_claim(struct region *r, unsigned device, uint64_t from_ns, uint64_t to_ns);
void region_cap_charge(struct region *r, unsigned device, uint64_t used_ns, unsigned percent, uint64_t now_ns);
void region_cap_waited(struct region *r, unsigned device, uint64_t ns);

/* region_cause_text says how a death was noticed. */
const char *region_cause_text(unsigned cause);

/* region_error_text says what an error means. */
const char *region_error_text(int error);

#endif
