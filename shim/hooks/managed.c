#include "hooks/managed.h"

#include "charge.h"
#include "overhead.h"

/* Records in context_managed are by an address that no allocation begins at. */
static uint64_t managed_key(CUdeviceptr base, unsigned device) { return base + 1 + device; }

/* managed_charge charges a device for managed memory, and keeps the record r, unless it is
 * there: CUDA_SUCCESS, or what the call must return. *added says whether this call did. */
static int managed_charge(const struct alloc_record *r, bool *added)
{
	struct alloc_record old;
	*added = false;
	if (alloc_table_get(&context_managed, r->key, &old))
		return CUDA_SUCCESS;
	int refused = charge_add(r->device, RATION_DATA, r->bytes, false);
	if (refused)
		return refused;
	*added = true;
	context_replace(&context_managed, r, &old);
	charge_arrived(r->device, r->bytes);
	/* Another thread sent it there at the same time. */
	if (old.key)
		context_drop(&old, RATION_DATA);
	return CUDA_SUCCESS;
}

int managed_add_variable(CUdeviceptr at, size_t bytes, const struct alloc_target *t, CUlibrary library)
{
	bool added;
	return managed_charge(&(struct alloc_record){.key = managed_key(at, t->device->index),
						     .bytes = bytes,
						     .device = (uint8_t)t->device->index,
						     .flags = RECORD_MANAGED,
						     .context = t->context,
						     .other = (uintptr_t)library},
			      &added);
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

/* managed_find finds the record of managed memory by its first address, and makes it one
 * for the device with this index. False where it is not ours, or counts there already. */
static bool managed_find(CUdeviceptr base, unsigned index, struct alloc_record *r)
{
	bool found = alloc_table_get(&context_addresses, base, r) && r->flags & (RECORD_MANAGED | RECORD_MANAGED_POOL);
	for (unsigned i = 0; i < RATION_DEVICES && !found; i++)
		found = alloc_table_get(&context_managed, managed_key(base, i), r);
	if (!found || r->device == index)
		return false;
	r->key = managed_key(base, index);
	r->device = (uint8_t)index;
	r->flags = RECORD_MANAGED;
	r->pool = 0;
	return true;
}

/* A range that is sent to a device, or to the host. */
struct managed_move {
	CUdeviceptr base;
	uint64_t key; /* of the record that was added; 0: none */
};

/* managed_begin charges the device: CUDA_SUCCESS, or what the call must return. */
static int managed_begin(struct managed_move *m, CUdeviceptr at, CUmemLocation to)
{
	struct alloc_record r;
	struct device *d = NULL;
	size_t size;
	bool added = false;
	*m = (struct managed_move){.base = 0};
	int denied = to.type == CU_MEM_LOCATION_TYPE_DEVICE ? init_enter_device(to.id, &d) : init_enter();
	if (denied || !d)
		return denied;
	if (REAL(cuMemGetAddressRange_v2, &m->base, &size, at) != CUDA_SUCCESS)
		m->base = at;
	if (!managed_find(m->base, d->index, &r))
		return CUDA_SUCCESS;
	int refused = managed_charge(&r, &added);
	m->key = added ? r.key : 0;
	return refused;
}

static int managed_end(const struct managed_move *m, int result)
{
	struct alloc_record r;
	if (m->key && result != CUDA_SUCCESS)
		managed_drop(m->key);
	else if (m->key)
		alloc_table_change(&context_addresses, m->base, managed_set_sent, NULL, &r);
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
