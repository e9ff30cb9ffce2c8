/* The device address space of this process: addresses with nothing behind them.
 *
 * Every size class (a power of two) is cut from spans of its own, so an address,
 * also one inside an allocation, leads to its block by arithmetic alone. Freed
 * addresses are handed out again at once, last first, as the real driver does:
 * a program that keeps records by pointer must cope with that.
 *
 * Threads are spread over arenas, each with its own lock and spans.
 */
#ifndef FAKEGPU_SPACE_H
#define FAKEGPU_SPACE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

enum block_kind {
	BLOCK_FREE,        /* was in use once: freeing it again is a double free */
	BLOCK_DATA,        /* cuMemAlloc and its kin */
	BLOCK_POOL,        /* from a memory pool */
	BLOCK_GRAPH,       /* named by a graph's allocation node */
	BLOCK_RESERVATION, /* cuMemAddressReserve */
	BLOCK_GLOBAL,      /* a variable of a module */
	BLOCK_IPC,         /* another process's memory */
	BLOCK_POOL_IMPORT, /* another process's pool memory */
	BLOCK_EXTERNAL,    /* another API's memory */
};

struct block {
	enum block_kind kind;
	CUdeviceptr address;
	uint64_t size; /* as asked for */
	union {
		uint64_t charged;   /* bytes to return */
		uint64_t alignment; /* of a reservation, which is charged nothing */
	};
	unsigned device; /* machine index */
	uint32_t id;     /* differs for every allocation, unlike the address */
	struct context *context;
	void *owner;        /* pool, graph node, module, mappings, external memory; for data see memory.c */
	struct block *next; /* while free */
};

/* Takes an address for *b (its size and the rest are the caller's), writes it to
 * b->address. `low` asks for one below 4 GiB. False if the space is used up. */
bool space_take(struct block *b, bool low);

/* Copies the live block that holds the address, inside or at its start. */
bool space_find(CUdeviceptr address, struct block *out);

/* Runs `change` on that block, under an arena's lock, and copies it afterwards. */
bool space_change(CUdeviceptr address, void (*change)(struct block *b), struct block *out);

enum space_result { SPACE_OK, SPACE_UNKNOWN, SPACE_INSIDE, SPACE_FREED, SPACE_OTHER };

/* Removes the block that starts at the address if its kind is in the mask (1 << kind). */
enum space_result space_remove(CUdeviceptr address, unsigned kinds, struct block *out);

/* Removes every block that `pick` chooses and hands each to `removed`. Both run
 * under an arena's lock, so neither may take or remove blocks. */
void space_sweep(bool (*pick)(const struct block *b, void *arg), void (*removed)(const struct block *b, void *arg), void *arg);

/* Adds the number and the bytes of live blocks whose kind is in the mask. It never
 * waits, so that a signal handler may call exit(): an arena in which an allocation is
 * under way is left out. */
void space_count(unsigned kinds, unsigned long *count, uint64_t *bytes);

#endif
