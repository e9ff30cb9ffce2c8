/* Packing of words with several fields, as in internal/abi/words.go. */
#ifndef RATION_WORDS_H
#define RATION_WORDS_H

#include "abi.h"

#define LOW_BITS(n) ((UINT64_C(1) << (n)) - 1)

static inline uint64_t short_seq(uint64_t seq) { return seq & LOW_BITS(RATION_WORD_SEQ_BITS); }

static inline uint64_t make_ledger_word(uint64_t units, unsigned slot, uint64_t seq)
{
	return units << (RATION_WORD_SEQ_BITS + RATION_WORD_SLOT_BITS) | (uint64_t)slot << RATION_WORD_SEQ_BITS | short_seq(seq);
}

static inline uint64_t ledger_units(uint64_t w) { return w >> (RATION_WORD_SEQ_BITS + RATION_WORD_SLOT_BITS); }

static inline unsigned ledger_slot(uint64_t w) { return (unsigned)(w >> RATION_WORD_SEQ_BITS & LOW_BITS(RATION_WORD_SLOT_BITS)); }

static inline uint64_t next_seq(uint64_t seq) { return (seq + 1) & LOW_BITS(RATION_SEQ_BITS); }

static inline uint64_t make_pend(uint64_t seq, int64_t delta)
{
	return seq << RATION_PEND_DELTA_BITS | ((uint64_t)delta & LOW_BITS(RATION_PEND_DELTA_BITS));
}

static inline uint64_t pend_seq(uint64_t p) { return p >> RATION_PEND_DELTA_BITS; }

static inline int64_t pend_delta(uint64_t p) { return (int64_t)(p << (64 - RATION_PEND_DELTA_BITS)) >> (64 - RATION_PEND_DELTA_BITS); }

static inline uint64_t make_used(uint64_t seq, uint64_t units)
{
	return seq << RATION_USED_UNIT_BITS | (units & LOW_BITS(RATION_USED_UNIT_BITS));
}

static inline uint64_t used_seq(uint64_t u) { return u >> RATION_USED_UNIT_BITS; }

static inline uint64_t used_units(uint64_t u) { return u & LOW_BITS(RATION_USED_UNIT_BITS); }

static inline uint64_t make_status(uint64_t gen, unsigned state) { return gen << RATION_STATUS_STATE_BITS | state; }

static inline uint64_t status_gen(uint64_t s) { return s >> RATION_STATUS_STATE_BITS; }

/* told_counts returns true if the owner of a generation was told to end, shortly before a time or for good. */
static inline bool told_counts(uint64_t told, uint64_t gen, uint64_t now_seconds)
{
	uint32_t at = (uint32_t)told;
	return told && told >> RATION_TOLD_GEN_SHIFT == (uint32_t)gen && (!at || (uint32_t)now_seconds - at <= RATION_TOLD_SECONDS);
}

static inline unsigned status_state(uint64_t s) { return (unsigned)(s & LOW_BITS(RATION_STATUS_STATE_BITS)); }

/* status_holds returns true if readers show the slot's accounts: the slot has an owner, or its dead
 * owner is still being reaped or has lent memory. */
static inline int status_holds(uint64_t s)
{
	unsigned state = status_state(s);
	return state == RATION_SLOT_ACTIVE || state == RATION_SLOT_CONDEMNED || state == RATION_SLOT_LENT;
}

/* The generation is cut to the width that the word has. */
static inline uint64_t make_turns(uint64_t gen, uint64_t count) { return gen << RATION_TURNS_COUNT_BITS | count; }

/* The generation and the number are cut to the widths that the word has. */
static inline uint64_t make_lane(uint64_t gen, uint64_t number, unsigned why, unsigned state)
{
	return gen << RATION_LANE_GEN_SHIFT | (number & LOW_BITS(RATION_LANE_NUMBER_BITS)) << RATION_LANE_NUMBER_SHIFT |
	       (uint64_t)why << RATION_LANE_WHY_SHIFT | state;
}

static inline unsigned lane_state(uint64_t l) { return (unsigned)(l & LOW_BITS(RATION_LANE_STATE_BITS)); }

/* lane_with returns the word of the same request in another state. */
static inline uint64_t lane_with(uint64_t l, unsigned why, unsigned state)
{
	return l >> RATION_LANE_NUMBER_SHIFT << RATION_LANE_NUMBER_SHIFT | (uint64_t)why << RATION_LANE_WHY_SHIFT | state;
}

static inline unsigned sleep_state(uint64_t s) { return (unsigned)(s & LOW_BITS(RATION_SLEEP_STATE_BITS)); }

static inline uint64_t sleep_count(uint64_t s) { return s >> RATION_SLEEP_COUNT_SHIFT; }

static inline bool sleep_manual(uint64_t s) { return s >> RATION_SLEEP_MANUAL_BIT & 1; }

static inline uint64_t make_exported(uint64_t file, uint64_t units) { return file << 32 | (uint32_t)units; }

static inline uint64_t exported_units(uint64_t e) { return (uint32_t)e; }

static inline uint64_t exported_file(uint64_t e) { return e >> 32; }

/* A slot's host PID is the low half of the word; the high half is the generation of the slot's
 * owner. */
static inline uint64_t make_host_pid(uint64_t gen, uint64_t pid) { return gen << 32 | (uint32_t)pid; }

static inline uint64_t host_pid_of(uint64_t word) { return (uint32_t)word; }

#define LIMIT_SET (UINT64_C(1) << RATION_LIMIT_SET_BIT)
#define LIMIT_NONE (LIMIT_SET | LOW_BITS(RATION_LIMIT_UNIT_BITS))

/* make_limit packs a limit in bytes, rounded down to whole units. */
static inline uint64_t make_limit(uint64_t bytes)
{
	uint64_t units = bytes / RATION_UNIT;
	if (units > RATION_MAX_UNITS) /* more than a ledger can hold */
		units = RATION_MAX_UNITS;
	return LIMIT_SET | units;
}

static inline int limit_bounds(uint64_t l)
{
	return (l & LIMIT_SET) && (l & LOW_BITS(RATION_LIMIT_UNIT_BITS)) != LOW_BITS(RATION_LIMIT_UNIT_BITS);
}

/* limit_bytes returns the limit in bytes, or 0 if there is none. */
static inline uint64_t limit_bytes(uint64_t l) { return limit_bounds(l) ? (l & LOW_BITS(RATION_LIMIT_UNIT_BITS)) * RATION_UNIT : 0; }

/* limit_ceiling returns the most units that may be granted. */
static inline uint64_t limit_ceiling(uint64_t l)
{
	if (!limit_bounds(l))
		return RATION_MAX_UNITS;
	uint64_t units = l & LOW_BITS(RATION_LIMIT_UNIT_BITS);
	return units < RATION_MAX_UNITS ? units : RATION_MAX_UNITS;
}

static inline uint64_t units_for(uint64_t bytes) { return bytes / RATION_UNIT + (bytes % RATION_UNIT != 0); }

/* device_hash returns a 32-bit hash of a UUID. deviceHash in Go must give the same value. */
static inline uint64_t device_hash(const uint64_t uuid[2])
{
	const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
	uint64_t h = uuid[0] * golden;
	h ^= h >> 32;
	return (h ^ uuid[1]) * golden >> 32;
}

/* make_context_cost packs the bytes that a context takes. It returns 0 if bytes is 0 or more than a
 * ledger can hold. */
static inline uint64_t make_context_cost(const uint64_t uuid[2], uint64_t bytes)
{
	uint64_t units = units_for(bytes);
	return units && units <= RATION_MAX_UNITS ? device_hash(uuid) << 32 | units : 0;
}

/* context_cost_for returns the bytes that a context takes on the device with this UUID, or 0 if
 * that is not known. */
static inline uint64_t context_cost_for(uint64_t cost, const uint64_t uuid[2])
{
	return uuid[1] && cost >> 32 == device_hash(uuid) ? (cost & RATION_MAX_UNITS) * RATION_UNIT : 0;
}

/* Packs a PID namespace, and whether NVML lists the processes of this namespace by the PIDs that
 * they have in it. */
static inline uint64_t make_nvml_pids(uint64_t pidns, int own) { return pidns << 1 | (own != 0); }

/* Due: the time of the monotonic clock, in ns, until which a cap makes launches wait, and the cap
 * in per cent. */
static inline uint64_t make_due(uint64_t nanoseconds, unsigned percent)
{
	return (nanoseconds & LOW_BITS(RATION_DUE_TIME_BITS)) | (uint64_t)percent << RATION_DUE_TIME_BITS;
}

static inline uint64_t due_time(uint64_t d) { return d & LOW_BITS(RATION_DUE_TIME_BITS); }
static inline unsigned due_cap(uint64_t d) { return (unsigned)(d >> RATION_DUE_TIME_BITS); }

static inline uint64_t make_time_part(uint64_t number, uint64_t ns) { return number << RATION_PART_USED_BITS | ns; }
static inline uint64_t time_part_number(uint64_t p) { return p >> RATION_PART_USED_BITS; }
static inline uint64_t time_part_used(uint64_t p) { return p & LOW_BITS(RATION_PART_USED_BITS); }

/* Work: when the process last had work (monotonic clock, in microseconds), in how many contexts, and whether
 * one of its threads waits for the device. */
static inline uint64_t make_work(uint64_t microseconds, unsigned contexts, int waiting)
{
	return (microseconds & LOW_BITS(RATION_WORK_TIME_BITS)) |
	       ((uint64_t)contexts & LOW_BITS(RATION_WORK_CONTEXT_BITS)) << RATION_WORK_TIME_BITS |
	       (uint64_t)(waiting != 0) << RATION_WORK_WAITING_BIT;
}

static inline uint64_t work_time(uint64_t w) { return w & LOW_BITS(RATION_WORK_TIME_BITS); }
static inline unsigned work_contexts(uint64_t w) { return (unsigned)(w >> RATION_WORK_TIME_BITS & LOW_BITS(RATION_WORK_CONTEXT_BITS)); }
static inline int work_waiting(uint64_t w) { return (int)(w >> RATION_WORK_WAITING_BIT); }

static inline uint64_t make_slice(uint64_t microseconds, unsigned state)
{
	return (microseconds & LOW_BITS(RATION_SLICE_TIME_BITS)) | (uint64_t)state << RATION_SLICE_TIME_BITS;
}

static inline uint64_t slice_time(uint64_t s) { return s & LOW_BITS(RATION_SLICE_TIME_BITS); }
static inline unsigned slice_state(uint64_t s) { return (unsigned)(s >> RATION_SLICE_TIME_BITS & LOW_BITS(RATION_SLICE_STATE_BITS)); }

/* Returns the share or cap in a word, from 1 to 100 per cent; 0 if the word has none. */
static inline unsigned percent_of(uint64_t word) { return word >= 1 && word <= 100 ? (unsigned)word : 0; }

static inline uint64_t round_of(uint64_t word)
{
	return word >= RATION_MIN_ROUND && word <= RATION_MAX_ROUND ? word : RATION_DEFAULT_ROUND;
}

static inline unsigned priority_of(uint64_t word)
{
	return word == RATION_PRIORITY_HIGH || word == RATION_PRIORITY_LOW ? (unsigned)word : RATION_PRIORITY_NORMAL;
}

/* wait_alloc_of returns for how many milliseconds a request waits; 0: it does not wait. */
static inline uint64_t wait_alloc_of(uint64_t word) { return word <= RATION_MAX_WAIT_ALLOC ? word : 0; }

static inline uint64_t make_place(unsigned slot, uint64_t gen, unsigned device, uint64_t ticket)
{
	return (slot + 1) | (uint64_t)device << RATION_PLACE_SLOT_BITS |
	       (gen & LOW_BITS(RATION_PLACE_GEN_BITS)) << (RATION_PLACE_SLOT_BITS + RATION_PLACE_DEVICE_BITS) |
	       ticket << (64 - RATION_PLACE_TICKET_BITS);
}

/* place_owner returns the slot plus one. */
static inline unsigned place_owner(uint64_t p) { return (unsigned)(p & LOW_BITS(RATION_PLACE_SLOT_BITS)); }
static inline unsigned place_device(uint64_t p) { return (unsigned)(p >> RATION_PLACE_SLOT_BITS & LOW_BITS(RATION_PLACE_DEVICE_BITS)); }
static inline uint32_t place_ticket(uint64_t p) { return (uint32_t)(p >> (64 - RATION_PLACE_TICKET_BITS)); }

/* place_of returns true if the process that owns a slot with this status has the place. */
static inline int place_of(uint64_t p, uint64_t status)
{
	uint64_t gen = p >> (RATION_PLACE_SLOT_BITS + RATION_PLACE_DEVICE_BITS);
	return status_state(status) == RATION_SLOT_ACTIVE && ((gen ^ status_gen(status)) & LOW_BITS(RATION_PLACE_GEN_BITS)) == 0;
}

#endif
