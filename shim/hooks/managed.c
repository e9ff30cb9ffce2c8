#include "hooks/managed.h"

#include "charge.h"
#include "hooks/departure.h"
#include "log.h"
#include "overhead.h"

/* The keys of records in context_managed are addresses at which no allocation begins. */
static uint64_t managed_key(CUdeviceptr base, unsigned device) { return base + 1 + device; }

/* A record of managed memory on another device exists while calls that send the memory there
 * are under way (moves), and permanently once one of them has succeeded (RECORD_SENT). So a
 * call that the driver refuses returns its charge only if no other call relies on it. */
static bool managed_begin_move(struct alloc_record *r, void *arg)
{
	(void)arg;
	if (!(r->flags & RECORD_SENT))
		r->moves += r->moves < UINT16_MAX; /* at the maximum the count stays, and so does the record */
	return true;
}

static bool managed_end_move(struct alloc_record *r, void *moved)
{
	if (*(const bool *)moved)
		r->flags |= RECORD_SENT;
	if (!(r->flags & RECORD_SENT))
		r->moves -= r->moves < UINT16_MAX;
	return r->flags & RECORD_SENT || r->moves;
}

/* managed_charge charges a device for managed memory and stores the record r, unless there is
 * such a record. It returns CUDA_SUCCESS, or the error that the call must return. */
static int managed_charge(const struct alloc_record *r)
{
	struct alloc_record old;
	bool added;
	if (alloc_table_change(&context_managed, r->key, managed_begin_move, NULL, &old))
		return CUDA_SUCCESS;
	int refused = charge_add(r->device, RATION_DATA, r->bytes);
	if (refused)
		return refused;
	charge_mark_managed(r->device, r->bytes, true);
	if (!alloc_table_add(&context_managed, r, managed_begin_move, NULL, &added))
		log_warn("no memory to remember an allocation: it stays counted until this process ends");
	charge_arrived(r->device, r->bytes);
	if (!added) /* another thread sent it there at the same time */
		context_drop(r, RATION_DATA);
	return CUDA_SUCCESS;
}

int managed_add_variable(CUdeviceptr at, size_t bytes, const struct alloc_target *t, CUlibrary library)
{
	return managed_charge(&(struct alloc_record){.key = managed_key(at, t->device->index),
						     .bytes = bytes,
						     .device = (uint8_t)t->device->index,
						     .flags = RECORD_MANAGED | RECORD_SENT,
						     .context = t->context,
						     .other = (uintptr_t)library});
}

static void managed_drop(uint64_t key)
{
	struct alloc_record r;
	if (alloc_table_take(&context_managed, key, &r))
		context_drop(&r, RATION_DATA);
}

void managed_freed(const struct alloc_record *r)
{
	for (unsigned i = 0; i < RATION_DEVICES; i++)
		managed_drop(managed_key(r->key, i));
}

static bool managed_set_sent(struct alloc_record *r, void *arg)
{
	(void)arg;
	r->flags |= RECORD_SENT;
	return true;
}

/* Memory from a pool lives until the last context of the pool's device ends. So its records on
 * other devices belong to no context, and `other` has this value. It differs from all handles
 * of libraries, which are addresses. */
static uint64_t managed_home(unsigned device) { return 2 * (device + 1); }

struct managed_sweep {
	unsigned device;
	struct departure departure;
};

static bool managed_not_from(struct alloc_record *r, void *arg)
{
	struct managed_sweep *e = arg;
	if (r->context || r->other != managed_home(e->device))
		return true;
	departure_add(&e->departure, r);
	return false;
}

void managed_pools_emptied(unsigned device)
{
	struct managed_sweep s = {device, {.kind = RATION_DATA}};
	alloc_table_sweep(&context_managed, managed_not_from, &s);
	departure_begin(&s.departure);
	departure_end(&s.departure, true);
}

/* managed_find finds the record of managed memory by its first address, and changes *r into a
 * record for the device with this index. It returns false if the memory is not ours, or is
 * charged there already. */
static bool managed_find(CUdeviceptr base, unsigned index, struct alloc_record *r)
{
	bool found = alloc_table_get(&context_addresses, base, r) && r->flags & (RECORD_MANAGED | RECORD_MANAGED_POOL);
	for (unsigned i = 0; i < RATION_DEVICES && !found; i++)
		found = alloc_table_get(&context_managed, managed_key(base, i), r);
	if (!found || r->device == index)
		return false;
	if (r->flags & RECORD_MANAGED_POOL) {
		r->context = 0;
		r->other = managed_home(r->device);
	}
	r->key = managed_key(base, index);
	r->device = (uint8_t)index;
	r->flags = RECORD_MANAGED;
	r->moves = 1;
	return true;
}

/* A call that sends a range to a device, or to the host. */
struct managed_move {
	CUdeviceptr base;
	uint64_t key; /* key of the record of the charge there; 0: none */
};

/* managed_begin charges the device to which the range is sent. It returns CUDA_SUCCESS, or the
 * error that the call must return. */
static int managed_begin(struct managed_move *m, CUdeviceptr at, CUmemLocation to)
{
	struct alloc_record r;
	struct device *d = NULL;
	size_t size;
	*m = (struct managed_move){.base = 0};
	int denied = to.type == CU_MEM_LOCATION_TYPE_DEVICE ? init_enter_device(to.id, &d) : init_enter();
	if (denied || !d)
		return denied;
	if (REAL(cuMemGetAddressRange_v2, &m->base, &size, at) != CUDA_SUCCESS)
		m->base = at;
	if (!managed_find(m->base, d->index, &r))
		return CUDA_SUCCESS;
	int refused = managed_charge(&r);
	m->key = refused ? 0 : r.key;
	return refused;
}

static int managed_end(const struct managed_move *m, int result)
{
	struct alloc_record r;
	bool moved = result == CUDA_SUCCESS;
	if (!m->key)
		return result;
	if (moved) /* so that the free finds the record */
		alloc_table_change(&context_addresses, m->base, managed_set_sent, NULL, &r);
	if (alloc_table_change(&context_managed, m->key, managed_end_move, &moved, &r) && !(r.flags & RECORD_SENT || r.moves))
		context_drop(&r, RATION_DATA);
	return result;
}

#define MANAGED_DEVICE(device) ((CUmemLocation){(device) >= 0 ? CU_MEM_LOCATION_TYPE_DEVICE : 0, device})

int cuMemPrefetchAsync(CUdeviceptr at, size_t bytes, CUdevice device, CUstream stream)
{
	struct managed_move m;
	return managed_end(&m, REAL_UNLESS(managed_begin(&m, at, MANAGED_DEVICE(device)), cuMemPrefetchAsync, at, bytes, device, stream));
}

int cuMemPrefetchAsync_ptsz(CUdeviceptr at, size_t bytes, CUdevice device, CUstream stream)
{
	struct managed_move m;
	return managed_end(&m,
			   REAL_UNLESS(managed_begin(&m, at, MANAGED_DEVICE(device)), cuMemPrefetchAsync_ptsz, at, bytes, device, stream));
}

int cuMemPrefetchAsync_v2(CUdeviceptr at, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream)
{
	struct managed_move m;
	return managed_end(&m, REAL_UNLESS(managed_begin(&m, at, to), cuMemPrefetchAsync_v2, at, bytes, to, flags, stream));
}

int cuMemPrefetchAsync_v2_ptsz(CUdeviceptr at, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream)
{
	struct managed_move m;
	return managed_end(&m, REAL_UNLESS(managed_begin(&m, at, to), cuMemPrefetchAsync_v2_ptsz, at, bytes, to, flags, stream));
}
