/* What was charged for what: a hash table from an address or a handle to a record.
 * Constant time, any number of threads, no malloc; memory comes in maps that only grow. */
#ifndef RATION_ALLOC_TABLE_H
#define RATION_ALLOC_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "mutex.h"

struct alloc_record {
	uint64_t key; /* never 0 in a table */
	uint64_t bytes;
	uint8_t device; /* the region's index */
	uint8_t flags;  /* RECORD_... */
	union {
		uint16_t pool;  /* as hooks/pool.c numbers it; 0: of no pool */
		uint16_t moves; /* of managed memory on another device: calls under way that send it there */
	};
	uint32_t context; /* as context_target numbers it; 0: of none */
	uint64_t other;   /* the family's own */
};

/* Flags of records, one bit each in all families: records of several meet in one sweep. */
enum alloc_flags {
	RECORD_MANAGED = 1,       /* its bytes may be elsewhere than on the device */
	RECORD_UNCONFIRMED = 2,   /* charged by a remembered cost, or a reading that was not exact */
	RECORD_UNSURE = 4,        /* part of what it was charged may have been overhead before */
	RECORD_DEFERRED = 8,      /* the driver takes it when it is first used */
	RECORD_SENT = 16,         /* managed memory that counts on other devices, too */
	RECORD_MANAGED_POOL = 32, /* an address of a pool of managed memory, which is charged as a whole */
	RECORD_AUTO_FREE = 64,    /* an executable graph that frees what it holds when it is launched again */
	RECORD_EXPORTED = 128,    /* other processes may have it, too */
};

#define ALLOC_TABLE_SHARDS 32

struct alloc_table {
	struct alloc_shard {
		mutex lock;    /* LOCK_ALLOC_TABLE, over the rest */
		uint32_t used; /* slots that hold a record */
		uint64_t room; /* slots; a power of two, or 0 */
		struct alloc_record *slots;
		uint64_t pad[5];
	} shard[ALLOC_TABLE_SHARDS];
} __attribute__((aligned(64)));

/* alloc_table_put keeps r, in place of any record with the same key. False where there is
 * no memory for it. */
bool alloc_table_put(struct alloc_table *t, const struct alloc_record *r);

/* alloc_table_replace is the same, and returns what was there in old; its key is 0 where
 * there was nothing. */
bool alloc_table_replace(struct alloc_table *t, const struct alloc_record *r, struct alloc_record *old);

/* alloc_table_add keeps r, unless there is a record with the same key: then it runs change on
 * that one, as alloc_table_change does. *added says which; false where there is no memory. */
bool alloc_table_add(struct alloc_table *t, const struct alloc_record *r, bool (*change)(struct alloc_record *r, void *arg), void *arg,
		     bool *added);

/* alloc_table_get copies the record with this key. */
bool alloc_table_get(struct alloc_table *t, uint64_t key, struct alloc_record *out);

/* alloc_table_take moves the record with this key into out, whose key is 0 where there is
 * none. */
bool alloc_table_take(struct alloc_table *t, uint64_t key, struct alloc_record *out);

/* alloc_table_freed completes what began with alloc_table_take, when it is known whether
 * what r names was freed: otherwise r goes back. It returns whether there was a record,
 * and what it names is gone. */
bool alloc_table_freed(struct alloc_table *t, const struct alloc_record *r, bool freed);

/* alloc_table_change runs change on the record with this key, which is removed if change
 * returns false; out gets the record as change left it. False if there is none. */
bool alloc_table_change(struct alloc_table *t, uint64_t key, bool (*change)(struct alloc_record *r, void *arg), void *arg,
			struct alloc_record *out);

/* alloc_table_sweep removes every record that keep returns false for. keep must not use
 * the table. */
void alloc_table_sweep(struct alloc_table *t, bool (*keep)(struct alloc_record *r, void *arg), void *arg);

#endif
