#include "pool.h"

#include <stdlib.h>
#include <string.h>

#include "knobs.h"

static const uint64_t POOL_CHUNK = 32 * MIB;
static const uint64_t POOL_SMALL_CHUNK = 2 * MIB;

static pthread_mutex_t pool_list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pool_list;
static struct pool *pool_defaults[2][MAX_DEVICES], *pool_currents[MAX_DEVICES]; /* by ordinal; the first, of managed memory or not */

struct pool *pool_new(CUdevice ordinal, const CUmemPoolProps *props)
{
	struct pool *p = handle_new(sizeof *p, HANDLE_POOL, NULL);
	if (p == NULL)
		return NULL;
	pthread_mutex_init(&p->lock, NULL);
	p->props = *props;
	p->ordinal = ordinal;
	p->device = device_index(ordinal);
	p->managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
	p->reuse[0] = p->reuse[1] = p->reuse[2] = 1;
	pthread_mutex_lock(&pool_list_lock);
	p->next = pool_list;
	pool_list = p;
	pthread_mutex_unlock(&pool_list_lock);
	return p;
}

struct pool *pool_default(CUdevice ordinal, bool managed)
{
	static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
	CUmemPoolProps props = {.allocType = managed ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED,
				.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal}};
	struct pool *p;

	pthread_mutex_lock(&making);
	p = pool_defaults[managed][ordinal];
	if (p == NULL && (p = pool_new(ordinal, &props)) != NULL) {
		p->is_default = true;
		pool_defaults[managed][ordinal] = p;
	}
	pthread_mutex_unlock(&making);
	return p;
}

struct pool *pool_current(CUdevice ordinal)
{
	struct pool *p = load_acquire(&pool_currents[ordinal]);
	return p != NULL ? p : pool_default(ordinal, false);
}

void pool_set_current(CUdevice ordinal, struct pool *p) { store_release(&pool_currents[ordinal], p); }

/* Under the pool's lock. */
static void pool_shrink(struct pool *p, uint64_t keep)
{
	uint64_t least = round_up(p->taken, POOL_CHUNK);
	if (keep < least)
		keep = least;
	if (p->reserved <= keep)
		return;
	p->holes = 0;
	if (!p->imported && !p->managed)
		machine_return(p->device, KIND_DATA, p->reserved - keep);
	p->reserved = keep;
}

void pool_trim(struct pool *p, uint64_t keep)
{
	pthread_mutex_lock(&p->lock);
	pool_shrink(p, keep);
	pthread_mutex_unlock(&p->lock);
}

/* Returns unused bytes of a pool; with drop, all of them. It returns false if the pool has ended:
 * it was destroyed and nothing of it is left. The caller holds the list's lock. It reads the
 * threshold under the pool's lock: a value from before the destruction would keep memory that
 * nothing returns later. */
static bool pool_return_slack(struct pool *p, bool drop)
{
	bool done;
	pthread_mutex_lock(&p->lock);
	p->taken -= p->pending;
	if (knobs()->fragmented)
		p->holes += p->pending;
	p->pending = 0;
	pool_shrink(p, drop ? 0 : p->threshold);
	done = p->doomed && p->live == 0;
	pthread_mutex_unlock(&p->lock);
	return !done;
}

static unsigned pool_dying_count; /* pools that were destroyed and are not gone */

static void pool_return_slack_of(const unsigned *device, bool empty)
{
	pthread_mutex_lock(&pool_list_lock);
	for (struct pool **at = &pool_list, *p; (p = *at) != NULL;) {
		bool chosen = device == NULL || p->device == *device;
		if (empty)
			chosen = load_relaxed(&p->doomed) && load_relaxed(&p->live) == 0;
		if (!chosen || pool_return_slack(p, device != NULL)) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		add_relaxed(&pool_dying_count, -1u);
		pthread_mutex_destroy(&p->lock);
		handle_drop(p);
	}
	pthread_mutex_unlock(&pool_list_lock);
}

void pools_return_slack(void) { pool_return_slack_of(NULL, false); }
void pools_drop(unsigned device) { pool_return_slack_of(&device, false); }

void pools_bury(void)
{
	if (load_relaxed(&pool_dying_count) > 0)
		pool_return_slack_of(NULL, true);
}

CUresult pool_destroy(struct pool *p)
{
	struct pool *was_current = p;

	if (p->is_default)
		return CUDA_ERROR_INVALID_VALUE;
	__atomic_compare_exchange_n(&pool_currents[p->ordinal], &was_current, NULL, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	pthread_mutex_lock(&p->lock);
	store_relaxed(&p->doomed, true);
	add_relaxed(&pool_dying_count, 1);
	p->threshold = 0;
	pool_shrink(p, 0);
	pthread_mutex_unlock(&p->lock);
	return CUDA_SUCCESS; /* it ends when its slack is next returned and nothing is left in it */
}

void pool_give(struct pool *p, uint64_t bytes)
{
	pthread_mutex_lock(&p->lock);
	p->used -= bytes;
	store_relaxed(&p->live, p->live - 1);
	if (knobs()->lazy) {
		p->pending += round_up(bytes, LEDGER_UNIT);
	} else {
		p->taken -= round_up(bytes, LEDGER_UNIT);
		if (knobs()->fragmented)
			p->holes += round_up(bytes, LEDGER_UNIT);
	}
	pthread_mutex_unlock(&p->lock);
}

/* Under the pool's lock: chunks as the driver takes them, less where that does not fit. */
static bool pool_grow(struct pool *p, uint64_t need)
{
	uint64_t more = round_up(need - p->reserved, POOL_CHUNK);

	if (p->props.maxSize != 0 && p->reserved + more > round_up(p->props.maxSize, POOL_CHUNK))
		return false;
	if (!p->managed && !machine_charge(p->device, KIND_DATA, more)) {
		more = round_up(need - p->reserved, POOL_SMALL_CHUNK);
		if (!machine_charge(p->device, KIND_DATA, more))
			return false;
	}
	p->reserved += more;
	if (p->reserved > p->reserved_high)
		p->reserved_high = p->reserved;
	fault_inside("poolGrow");
	return true;
}

CUresult pool_take(struct pool *p, uint64_t bytes)
{
	uint64_t rounded = round_up(bytes, LEDGER_UNIT);
	bool ok, again;

	if (bytes > machine_capacity(p->device))
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&p->lock);
	again = p->pending >= rounded;
	ok = !p->doomed && !p->imported &&
	     (again || p->taken + p->holes + rounded <= p->reserved || pool_grow(p, p->taken + p->holes + rounded));
	if (ok) {
		if (again)
			p->pending -= rounded;
		else
			p->taken += rounded;
		p->used += bytes;
		store_relaxed(&p->live, p->live + 1);
		if (p->used > p->used_high)
			p->used_high = p->used;
		fault_inside("poolAlloc");
	}
	pthread_mutex_unlock(&p->lock);
	return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
