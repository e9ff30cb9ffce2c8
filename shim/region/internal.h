/* What the files of this folder share. Nothing outside includes it, but for tests. */
#ifndef RATION_REGION_INTERNAL_H
#define RATION_REGION_INTERNAL_H

#include <time.h>

#include "atomics.h"
#include "failpoint.h"
#include "region.h"
#include "words.h"

/* file.c */
int region_file_open(struct region *r);
int region_file_inspect(struct region *r, bool *fresh);
int region_file_allocate(struct region *r);
int region_file_empty(struct region *r);
int region_fd(struct region *r);
void region_file_close(struct region *r);
int region_limits_find(const struct region *r, uint32_t *where);
int region_limits_open(struct region *r);
int region_limits_with(struct region *r, int (*change)(struct ration_limits *, const void *), const void *arg);
int region_offer(struct ration_limits *page, const void *limits); /* struct region_limits; as region_limits_with wants it */

/* alive.c */
int region_lock(struct region *r, unsigned slot);
int region_lock_by(int fd, unsigned slot);
void region_unlock(struct region *r, unsigned slot);
bool region_dead(struct region *r, unsigned slot, uint64_t status);
void region_hold(unsigned slot, uint64_t gen);
void region_let_go(unsigned slot, uint64_t gen);
struct region_identity {
	uint64_t pid;
	uint64_t start; /* clock ticks since boot; 0 where it cannot be read */
	uint64_t pidns; /* inode of the PID namespace; 0 where there is no /proc */
	bool unsure;    /* pidns could not be asked for */
	bool sees;      /* /proc is of this PID namespace */
};
#define REGION_INIT_PIDNS UINT64_C(0xEFFFFFFC) /* the first PID namespace's inode, fixed by the kernel */
void region_identify(struct region_identity *me);

/* What a change starts from: an account's words, read under its turn, or before it
 * by a thread whose turn then turned out not to have moved. */
struct region_books {
	uint64_t turn, used, total, bytes;
};

/* ledger.c */
uint64_t region_ledger_word(const struct region *r, unsigned device);
bool region_apply(struct region *r, unsigned device, uint64_t w, int64_t delta, unsigned slot, uint64_t seq);
void region_note(struct region *r, unsigned device, uint64_t w);
bool region_change(struct region *r, unsigned device, unsigned slot, struct ration_account *a, const struct region_books *b, int64_t delta,
		   const uint64_t *limit, uint64_t *w);
void region_refresh(uint64_t *done, uint64_t seq);

/* seqlock.c */
bool region_take(struct ration_account *a, unsigned kind, struct region_books *b, bool wait);
void region_put(struct ration_account *a, const struct region_books *b, unsigned kind, int64_t delta);
void region_turn_end(struct ration_account *a, uint64_t turn);
bool region_enter(struct region *r, struct ration_account *a, uint64_t claim);
void region_clear(struct ration_account *a, uint64_t turn);
unsigned region_read(const struct ration_account *a, uint64_t gen, struct ration_usage *f);

/* reap.c */
int region_reap_former_self(struct region *r);
int region_reap_device(struct region *r, unsigned device, unsigned *slots);

/* refusal.c */
void region_refuse(struct region *r, unsigned device, uint64_t bytes, uint64_t w, struct region_refusal *why);

static inline struct ration_account *account(struct region *r, unsigned device, unsigned slot) { return &r->m->accounts[device][slot]; }

static inline uint64_t make_claim(unsigned slot, uint64_t status) { return status << RATION_WORD_SLOT_BITS | slot; }

static inline unsigned claim_slot(uint64_t p) { return (unsigned)(p & LOW_BITS(RATION_WORD_SLOT_BITS)); }

static inline uint64_t claim_status(uint64_t p) { return p >> RATION_WORD_SLOT_BITS; }

/* region_holds says whether the claim is still ours. */
static inline bool region_holds(const struct region *r, uint64_t claim)
{
	return claim && load_acquire(&r->claim) == claim && load_acquire(&r->m->status[claim_slot(claim)]) == claim_status(claim);
}

static inline unsigned region_high_water(const struct region *r)
{
	uint64_t high = load_acquire(&r->m->header.high_water);
	return high < RATION_SLOTS ? (unsigned)high : RATION_SLOTS;
}

/* A file that was ever cut short has lost its tail. */
static inline bool region_whole(const struct region *r) { return load_acquire(&r->m->tail.magic) == RATION_TAIL_MAGIC; }

static inline uint64_t now_ns(int clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
