/* Declarations that the files of this folder share. Only this folder and tests include it. */
#ifndef RATION_REGION_INTERNAL_H
#define RATION_REGION_INTERNAL_H

#include <fcntl.h>
#include <time.h>

#include "atomics.h"
#include "failpoint.h"
#include "region.h"
#include "turn.h"
#include "words.h"

struct stat;

/* charge.c: region_keep_peak writes a device's peak to the region. Call it before bytes of the
 * device are returned. */
void region_keep_peak(struct region *r, unsigned device);

/* wake.c: region_wake wakes the requests that wait for memory of a device. Call it after memory was
 * returned. It does nothing if region_has_waiters is false; callers on the hot path ask that first.
 * The load is sequentially consistent: it pairs with region_wait_arm. It is a plain load on x86. */
void region_wake(struct region *r, unsigned device);
static inline bool region_has_waiters(const struct region *r, unsigned device)
{
	return UNLIKELY(__atomic_load_n(&r->m->devices[device].wake, __ATOMIC_SEQ_CST) & RATION_WAKE_WAITING);
}

/* clock.c: region_clock_differs returns true if times of a clock that was zero at the Unix time
 * *zero are of another clock than the machine's, and then sets *zero to when this one was zero. */
bool region_clock_differs(struct region *r, uint64_t *zero);

/* cap.c: region_own_account returns this process's account, or NULL if it has none yet.
 * region_cap_settle charges a job with a cap for the work of a process that has ended,
 * or is ending, up to now. status is the slot's; the slot is condemned, or the caller's own. */
struct ration_account *region_own_account(struct region *r, unsigned device);
void region_cap_settle(struct region *r, unsigned device, unsigned slot, uint64_t status);

/* file.c */
int region_file_open(struct region *r, unsigned flags);
int region_file_inspect(struct region *r, bool *fresh);
int region_file_allocate(struct region *r);
int region_file_empty(struct region *r);
int region_fd(struct region *r);
int region_file_again(struct region *r); /* a new descriptor, or -1; closing it drops this process's record locks */
void region_file_close(struct region *r);
int region_open_path(const char *path, int flags);
bool region_read_text(const char *path, char *buf, size_t size); /* the beginning of a file; false if it cannot be read */

/* limits.c */
int region_limits_find(const struct region *r, uint32_t *where);
int region_limits_open(struct region *r);
int region_limits_with(struct region *r, int (*change)(struct ration_limits *, const void *), const void *arg);
int region_offer(struct ration_limits *page,
		 const void *limits); /* limits is a struct region_limits; the type fits the parameter change of region_limits_with */

/* lock.c: a slot has two locks, each on one byte of the file. region_lock_byte describes one of
 * them for fcntl. region_lock_by tries to take the process's lock (LOCK_PROCESS): 0, REGION_FULL if
 * another process has it, or REGION_SYSTEM. */
enum region_lock_byte { LOCK_PROCESS, LOCK_FILES };
struct flock region_lock_byte(unsigned slot, enum region_lock_byte byte, short type);
int region_lock_by(int fd, unsigned slot);

/* alive.c */
int region_lock(struct region *r, unsigned slot);
void region_unlock(struct region *r, unsigned slot);
int region_locked_by(
	struct region *r,
	unsigned
		slot); /* returns the PID of the process that has the slot locked; 0 if there is none, or it is not visible in this PID namespace */
bool region_kept(struct region *r, unsigned slot);
enum region_holder_end region_ending(struct region *r, unsigned slot);
unsigned region_dead(struct region *r, unsigned slot, uint64_t status);
void region_hold(unsigned slot, uint64_t gen);
void region_let_go(unsigned slot, uint64_t gen);
struct region_identity {
	uint64_t pid;
	uint64_t start; /* clock ticks since boot; 0 if it cannot be read */
	uint64_t pidns; /* inode of the PID namespace; 0 if there is no /proc */
	bool unsure;    /* asking for pidns failed */
	bool sees;      /* /proc is of this PID namespace */
};
#define REGION_INIT_PIDNS UINT64_C(0xEFFFFFFC) /* the first PID namespace's inode, fixed by the kernel */
void region_identify(struct region_identity *me);

/* ledger.c */
uint64_t region_ledger_word(const struct region *r, unsigned device);
bool region_apply(struct region *r, unsigned device, uint64_t w, int64_t delta, unsigned slot, uint64_t seq);
bool region_fence(struct region *r, unsigned device, uint64_t w);
bool region_note(struct region *r, unsigned device, uint64_t w);
int region_change(struct region *r, unsigned device, uint64_t claim, struct ration_account *a, int64_t delta, const uint64_t *limit,
		  uint64_t *w);
void region_refresh(const struct region *r, uint64_t claim, uint64_t *done, uint64_t seq);

/* seqlock.c. The caller holds the account's turn (turn.h) in all of them except region_take, which
 * takes it, and region_read. */
int region_take(struct region *r, unsigned device, uint64_t claim, bool wait);
void region_yield(struct region *r, unsigned device, uint64_t claim); /* gives the turn up */
uint64_t region_put(struct region_turn *t, struct ration_account *a, unsigned kind, int64_t delta);
void region_clear(struct region_turn *t, struct ration_account *a);
bool region_read_counted(struct region *r, const struct ration_account *a, uint64_t gen, struct ration_usage *f);
unsigned region_read(const struct ration_account *a, uint64_t gen, struct ration_usage *f);

/* sleep.c */
int region_begin_turn(struct region *r, uint64_t claim);
void region_end_turn(struct region *r, uint64_t claim);

/* reap.c */
void region_reap_former_self(struct region *r);
void region_reap_device(struct region *r, unsigned device, unsigned *slots);
bool region_left(const struct region *r, unsigned slot, uint64_t gen); /* true if the owner has announced its orderly end (region_end) */
bool region_reap_slot(struct region *r, unsigned slot);                /* returns true if it returned bytes of the slot, or freed it */

/* lent.c: region_lent_units returns how many units of a dead process's account stay charged, since
 * there may be a descriptor of the memory. The slot is condemned. */
uint64_t region_lent_units(struct region *r, unsigned device, unsigned slot, uint64_t status);

/* region_lent_by returns true if the process in a slot has exported by this byte, and has not been reaped,
 * or there may be a descriptor of its memory. */
bool region_lent_by(struct region *r, unsigned slot, uint64_t lock);

/* refusal.c */
void region_ring_write(uint64_t *to, uint64_t *words, unsigned n, uint64_t ticket);

static inline struct ration_account *account(struct region *r, unsigned device, unsigned slot) { return &r->m->accounts[device][slot]; }

static inline uint64_t make_claim(unsigned slot, uint64_t status) { return status << RATION_WORD_SLOT_BITS | slot; }

static inline unsigned claim_slot(uint64_t p) { return (unsigned)(p & LOW_BITS(RATION_WORD_SLOT_BITS)); }

static inline uint64_t claim_status(uint64_t p) { return p >> RATION_WORD_SLOT_BITS; }

/* region_owned returns true if the slot still belongs to the claim. An owner calls it between
 * reading a word and swapping it. The load is sequentially consistent: it must come after the
 * owner's swap of pend, because a reaper condemns the slot before it reads pend. */
static inline bool region_owned(const struct region *r, uint64_t claim)
{
	return __atomic_load_n(&r->m->status[claim_slot(claim)], __ATOMIC_SEQ_CST) == claim_status(claim);
}

static inline unsigned region_high_water(const struct region *r)
{
	uint64_t high = load_acquire(&r->m->header.high_water);
	return high < RATION_SLOTS ? (unsigned)high : RATION_SLOTS;
}

/* Returns true if the file still has its tail. A file that was ever truncated has lost it. */
static inline bool region_whole(const struct region *r) { return load_acquire(&r->m->tail.magic) == RATION_TAIL_MAGIC; }

static inline uint64_t now_ns(int clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
