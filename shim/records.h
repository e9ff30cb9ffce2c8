/* What was charged for what: a hash from an address or a handle to a record.
 * Constant time, any number of threads, no malloc; memory comes in maps that only
 * grow. */
#ifndef RATION_RECORDS_H
#define RATION_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

struct record {
	uint64_t key; /* never 0 */
	uint64_t bytes;
	uint8_t device;   /* the region's index */
	uint8_t context;  /* as context_here numbers it */
	uint16_t pool;    /* as pool.c numbers it; 0 where there is none */
	uint32_t flags;   /* the family's own */
	uint64_t other;   /* the family's own */
};

#define RECORD_SHARDS 32

struct records {
	struct shard {
		uint32_t lock;
		uint32_t used;
		uint64_t room; /* a power of two, or 0 */
		struct record *slots;
		uint64_t pad[5];
	} shard[RECORD_SHARDS];
} __attribute__((aligned(64)));

/* records_put keeps r, in place of any with the same key. False where there is no
 * memory for it. */
bool records_put(struct records *t, const struct record *r);

/* records_replace is the same, and tells what was there; old's key is 0 where there
 * was nothing. */
bool records_replace(struct records *t, const struct record *r, struct record *old);

/* records_take removes the record with this key, into out. */
bool records_take(struct records *t, uint64_t key, struct record *out);

/* records_change runs change on the record with this key, which is removed if it
 * returns false; out gets the record as change left it. False if there is none. */
bool records_change(struct records *t, uint64_t key, bool (*change)(struct record *r, void *arg), void *arg, struct record *out);

/* records_sweep removes every record that keep returns false for. keep must not
 * touch the table. */
void records_sweep(struct records *t, bool (*keep)(struct record *r, void *arg), void *arg);

#endif
