/* Jobs that sleep: internal/sleep/PROTOCOL.md. */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

/* The half of a word that is a futex. All architectures that the library is built for are
 * little-endian. */
static uint32_t *sleep_futex(uint64_t *word) { return (uint32_t *)(void *)word; }

bool region_awake(const struct region *r) { return sleep_state(load_acquire(&r->m->header.sleep)) == RATION_AWAKE; }

void region_ask_awake(struct region *r)
{
	uint64_t *wanted = &r->m->header.wanted;
	fetch_add(wanted, 1);
	syscall(SYS_futex, sleep_futex(wanted), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* The request is made again every second: the process that waits for it may have been started
 * after the last one. */
static void sleep_wait(struct region *r)
{
	uint64_t *sleep = &r->m->header.sleep, s;
	while (sleep_state(s = load_acquire(sleep)) != RATION_AWAKE) {
		region_ask_awake(r);
		syscall(SYS_futex, sleep_futex(sleep), FUTEX_WAIT, (uint32_t)s, &(struct timespec){1, 0}, NULL, 0);
	}
}

void region_wait_awake(struct region *r)
{
	void (*on_sleep)(bool waits) = __atomic_load_n(&r->on_sleep, __ATOMIC_ACQUIRE);
	/* Sequentially consistent, after on_sleep: see gate_count. */
	while (sleep_state(__atomic_load_n(&r->m->header.sleep, __ATOMIC_SEQ_CST)) != RATION_AWAKE) {
		if (on_sleep)
			on_sleep(true);
		sleep_wait(r);
		if (on_sleep)
			on_sleep(false);
	}
}

/* region_begin_turn counts a thread that is about to change an account. It returns REGION_BUSY if
 * the job is not awake, and REGION_EVICTED if the slot has another owner. */
int region_begin_turn(struct region *r, uint64_t claim)
{
	uint64_t *turns = &r->m->slots[claim_slot(claim)].turns, gen = make_turns(status_gen(claim_status(claim)), 0), t;
	do {
		t = load_acquire(turns);
		if (UNLIKELY((t ^ gen) >> RATION_TURNS_COUNT_BITS))
			return REGION_EVICTED;
	} while (!cas(turns, t, t + 1));
	/* Sequentially consistent, after the swap: the process that puts the job to sleep changes
	 * the word first, and then reads turns. One of the two sees the other. Pairs with Quiet in
	 * Go. */
	if (LIKELY(sleep_state(__atomic_load_n(&r->m->header.sleep, __ATOMIC_SEQ_CST)) == RATION_AWAKE))
		return REGION_OK;
	region_end_turn(r, claim);
	return REGION_BUSY;
}

void region_end_turn(struct region *r, uint64_t claim)
{
	uint64_t *turns = &r->m->slots[claim_slot(claim)].turns, gen = make_turns(status_gen(claim_status(claim)), 0), t;
	do {
		t = load_acquire(turns);
		if (UNLIKELY((t ^ gen) >> RATION_TURNS_COUNT_BITS || t == gen))
			return;
	} while (!cas(turns, t, t - 1));
}

uint64_t *region_lane(const struct region *r)
{
	uint64_t claim = load_acquire(&r->claim);
	return claim && region_owned(r, claim) ? &r->m->slots[claim_slot(claim)].lane : NULL;
}

bool region_lane_change(uint64_t *lane, uint64_t from, uint64_t to)
{
	if (!cas(lane, from, to))
		return false;
	syscall(SYS_futex, sleep_futex(lane), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	return true;
}

void region_lane_wait(uint64_t *lane, uint64_t seen, long ns)
{
	syscall(SYS_futex, sleep_futex(lane), FUTEX_WAIT, (uint32_t)seen, &(struct timespec){0, ns}, NULL, 0);
}

/* As for region_own_account: if this process is taken for dead in the next instant, it writes into the
 * next owner's slot. That one stays awake for one bit too many at most. */
void region_show_cannot(struct region *r, uint64_t bits)
{
	uint64_t claim = load_acquire(&r->claim);
	/* Sequentially consistent: afterwards the caller reads whether the job sleeps. */
	if (claim && region_owned(r, claim))
		__atomic_store_n(&r->m->slots[claim_slot(claim)].cannot, bits, __ATOMIC_SEQ_CST);
}
