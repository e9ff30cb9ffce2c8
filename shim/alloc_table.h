/* A hash table from an address or a handle to the record of its charge. Every operation takes
 * constant time on average. Any number of threads may use a table at once. The table never
 * calls malloc: its memory comes from mmap. */
#ifndef RATION_ALLOC_TABLE_H
#define RATION_ALLOC_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "mutex.h"

struct alloc_record {
	uint64_t key; /* never 0 in a table */
	uint64_t bytes;
	uint16_t device : 4; /* the region's index */
	uint16_t flags : 12; /* RECORD_... */
	union {
		uint16_t pool;  /* the number that hooks/pool.c gave the pool; 0: not from a pool */
		uint16_t moves; /* for managed memory on another device: calls under way that send it there */
	};
	uint32_t context; /* the number that context_target gives; 0: belongs to no context */
	uint64_t other;   /* each family of hooks defines its own use */
};

/* Flags of records. Each bit has the same meaning in all families of hooks, since one sweep
 * visits the records of several families. */
enum alloc_flags {
	RECORD_MANAGED = 1,       /* managed memory: its bytes need not be on the device */
	RECORD_UNCONFIRMED = 2,   /* the charge came from a remembered cost, or from a reading that was not exact */
	RECORD_UNSURE = 4,        /* part of its charge may have been charged as overhead before */
	RECORD_DEFERRED = 8,      /* the driver takes the memory at first use */
	RECORD_SENT = 16,         /* managed memory that is also charged on other devices */
	RECORD_MANAGED_POOL = 32, /* an address of a pool of managed memory, which is charged as a whole */
	RECORD_AUTO_FREE = 64,    /* an executable graph that frees its memory when it is launched again */
	RECORD_EXPORTED = 128,    /* exported: other processes may hold it as well */
	RECORD_IPC = 256,         /* exported by an IPC handle; without RECORD_EXPORTED by nothing else */
	RECORD_LANE = 512,        /* memory that hooks/lane.c has mapped */
	RECORD_FREED = 1024,      /* of the lane, and freed by the program: it goes when no stream is captured */
};

#define ALLOC_TABLE_SHARDS 32

struct alloc_table {
	struct alloc_shard {
		mutex lock;    /* LOCK_ALLOC_TABLE; protects the other fields */
		uint32_t used; /* slots that hold a record */
		uint64_t room; /* slots; a power of two, or 0 */
		struct alloc_record *slots;
		uint64_t pad[5];
	} shard[ALLOC_TABLE_SHARDS];
} __attribute__((aligned(64)));

/* alloc_table_put stores r, and replaces any record with the same key. It returns false if
 * there is no memory for the record. */
bool alloc_table_put(struct alloc_table *t, const struct alloc_record *r);

/* alloc_table_replace stores r as alloc_table_put does, and copies the replaced record to old.
 * old->key is 0 if no record was replaced. */
bool alloc_table_replace(struct alloc_table *t, const struct alloc_record *r, struct alloc_record *old);

/* alloc_table_add stores r and sets *added, unless there is a record with the same key: then it
 * clears *added and runs change on that record, as alloc_table_change does. It returns false if
 * there is no memory for the record. */
bool alloc_table_add(struct alloc_table *t, const struct alloc_record *r, bool (*change)(struct alloc_record *r, void *arg), void *arg,
		     bool *added);

/* alloc_table_get copies the record with this key to out. It returns false if there is none. */
bool alloc_table_get(struct alloc_table *t, uint64_t key, struct alloc_record *out);

/* alloc_table_take moves the record with this key out of the table, into out. If there is none
 * it sets out->key to 0 and returns false. */
bool alloc_table_take(struct alloc_table *t, uint64_t key, struct alloc_record *out);

/* alloc_table_freed must follow alloc_table_take, once the caller knows whether the driver
 * freed the object that r describes. If it was not freed, r goes back into the table. The
 * function returns true if there was a record and its object was freed. */
bool alloc_table_freed(struct alloc_table *t, const struct alloc_record *r, bool freed);

/* alloc_table_change runs change on the record with this key, under the lock of its shard, and
 * removes the record if change returns false. out gets the record as change left it. The
 * function returns false if there is no such record. */
bool alloc_table_change(struct alloc_table *t, uint64_t key, bool (*change)(struct alloc_record *r, void *arg), void *arg,
			struct alloc_record *out);

/* alloc_table_sweep removes every record for which keep returns false. keep runs under a lock
 * of the table, so it must not use the table. */
void alloc_table_sweep(struct alloc_table *t, bool (*keep)(struct alloc_record *r, void *arg), void *arg);

#endif
