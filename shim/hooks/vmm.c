/* Virtual memory. Physical memory is charged until the last of its handles and mappings is
 * gone. A record's `other` counts both. It is lowered before the driver is asked: as soon as a
 * handle is free, it may belong to another thread's memory. Imported memory has a record of 0
 * bytes. */
#include "cannot.h"
#include "charge.h"
#include "full.h"
#include "hooks/context_table.h"
#include "hooks/ipc.h"
#include "hooks/lane.h"
#include "import.h"
#include "log.h"
#include "nvml.h"
#include "overhead.h"
#include "region/words.h"

#define VMM_REFERENCE UINT64_C(1)
#define VMM_MAPPING (UINT64_C(1) << 32)

static struct alloc_table vmm_handles;  /* bytes, device, references and mappings */
static struct alloc_table vmm_mappings; /* by address: bytes, and in `other` the handle */

static bool vmm_add(struct alloc_record *r, void *by)
{
	r->other += *(const uint64_t *)by;
	return r->other != 0;
}

/* vmm_count adds `by` references or mappings to a handle's count; *now gets the record after
 * that. A count of 0 removes the record. It returns false if there is no record. */
static bool vmm_count(CUmemGenericAllocationHandle handle, uint64_t by, struct alloc_record *now)
{
	return alloc_table_change(&vmm_handles, handle, vmm_add, &by, now);
}

/* vmm_undo reverses a vmm_count, also one that removed the record. was is the record that
 * vmm_count returned. */
static void vmm_undo(CUmemGenericAllocationHandle handle, uint64_t by, struct alloc_record *was)
{
	struct alloc_record now;
	if (vmm_count(handle, -by, &now))
		return;
	was->other = -by;
	alloc_table_put(&vmm_handles, was);
}

/* vmm_valid asks the driver whether it would make such memory, given enough room. */
static bool vmm_valid(const void *out, size_t bytes, const CUmemAllocationProp *prop)
{
	size_t step = 0;
	return out && bytes && REAL(cuMemGetAllocationGranularity, &step, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS && step &&
	       bytes % step == 0;
}

int cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct device *d = NULL;
	bool on_device = prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
	int refused = on_device ? init_enter_device(prop->location.id, &d) : init_enter();
	/* Leave bad arguments to the driver. */
	if (d && unlikely(charge_would_refuse(d->index, bytes)) && !vmm_valid(out, bytes, prop))
		d = NULL;
	if (d)
		refused = charge_request(d->index, RATION_DATA, bytes);
	int result = REAL_UNLESS(refused, cuMemCreate, out, bytes, prop, flags);
	if (refused || !d)
		return result;
	if (result != CUDA_SUCCESS) {
		charge_return(d->index, RATION_DATA, bytes);
		full_log(d->index, bytes, result);
		return result;
	}
	struct alloc_record r = {.key = *out, .bytes = bytes, .device = (uint8_t)d->index, .other = VMM_REFERENCE};
	if (!alloc_table_put(&vmm_handles, &r))
		log_warn("no memory to remember a handle: it stays counted until this process ends");
	charge_arrived(d->index, bytes);
	overhead_tick();
	return result;
}

int cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct alloc_record r;
	bool known = attach_on() && vmm_count(handle, -VMM_REFERENCE, &r), last = known && r.other == 0;
	bool import = last && !r.bytes;
	if (last)
		charge_leaving(r.device, r.bytes);
	int result = REAL(cuMemRelease, handle);
	if (last && result == CUDA_SUCCESS)
		context_return(&r);
	else if (last)
		charge_arrived(r.device, r.bytes);
	if (known && result != CUDA_SUCCESS)
		vmm_undo(handle, -VMM_REFERENCE, &r);
	if (import && result == CUDA_SUCCESS)
		ipc_import_ended();
	return result;
}

int cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct alloc_record r;
	bool known = attach_on() && vmm_count(handle, VMM_MAPPING, &r);
	int result = REAL(cuMemMap, at, bytes, offset, handle, flags);
	if (known && result != CUDA_SUCCESS)
		vmm_count(handle, -VMM_MAPPING, &r);
	else if (known && bytes)
		alloc_table_put(&vmm_mappings, &(struct alloc_record){.key = at, .bytes = bytes, .other = handle});
	return result;
}

/* A range may end many mappings, each of which begins where the one before it ended. Mappings
 * of memory without a record have none: a range that contains some is walked in steps of VMM_STEP,
 * to which mappings are aligned, and after VMM_STEPS steps without a record the next one is
 * searched for in the whole table. While the driver is called the records are in vmm_unmapping.
 * If the mapping was the last holder of its memory, the record's context field has the size of
 * that memory, in units; if the memory was imported, `moves` is 1 instead. */
static const uint64_t VMM_STEP = 2 << 20;
enum { VMM_STEPS = 1024 };

static struct alloc_table vmm_unmapping;

/* Finds the first record at or after an address. */
struct vmm_search {
	uint64_t from, found;
};

static bool vmm_compare(struct alloc_record *r, void *arg)
{
	struct vmm_search *s = arg;
	if (r->key >= s->from && r->key < s->found)
		s->found = r->key;
	return true;
}

/* vmm_walk calls step at each address of a range at which there may be a record of a table.
 * step returns the size of the mapping there, or 0 if there is none. */
static void vmm_walk(struct alloc_table *t, CUdeviceptr at, uint64_t bytes, uint64_t (*step)(CUdeviceptr at, bool ended), bool ended)
{
	unsigned without = 0;
	for (uint64_t done = 0; done < bytes;) {
		uint64_t size = step(at + done, ended);
		without = size ? 0 : without + 1;
		done += size ? size : VMM_STEP;
		if (without < VMM_STEPS || done >= bytes)
			continue;
		struct vmm_search s = {at + done, at + bytes};
		alloc_table_sweep(t, vmm_compare, &s);
		done = s.found - at;
		without = 0;
	}
}

/* vmm_unmap_begin moves the record of the mapping at an address to vmm_unmapping. It returns
 * the size of the mapping, or 0. */
static uint64_t vmm_unmap_begin(CUdeviceptr at, bool ended)
{
	struct alloc_record m, r;
	(void)ended;
	if (!alloc_table_take(&vmm_mappings, at, &m))
		return 0;
	m.context = 0;
	if (vmm_count(m.other, -VMM_MAPPING, &r) && r.other == 0) {
		m.context = (uint32_t)units_for(r.bytes);
		m.moves = !r.bytes;
		m.device = r.device;
		m.flags = r.flags;
		charge_leaving(m.device, r.bytes);
	}
	alloc_table_put(&vmm_unmapping, &m);
	return m.bytes;
}

/* vmm_unmap_end returns the charge if the ended mapping was the last holder of its memory; if
 * the driver did not end the mapping, it reverses vmm_unmap_begin. It returns the size of the
 * mapping, or 0. */
static uint64_t vmm_unmap_end(CUdeviceptr at, bool ended)
{
	struct alloc_record m;
	if (!alloc_table_take(&vmm_unmapping, at, &m))
		return 0;
	struct alloc_record r = {.key = m.other, .bytes = (uint64_t)m.context * RATION_UNIT, .device = m.device, .flags = m.flags};
	if (ended) {
		context_return(&r);
		if (m.moves)
			ipc_import_ended();
	} else {
		m.moves = 0;
		charge_arrived(m.device, r.bytes);
		vmm_undo(m.other, -VMM_MAPPING, &r);
		alloc_table_put(&vmm_mappings, &m);
	}
	return m.bytes;
}

int cuMemUnmap(CUdeviceptr at, size_t bytes)
{
	/* No address space is larger than 2^47 bytes: the driver reports the error. */
	if (!attach_on() || bytes > UINT64_C(1) << 47 || at + bytes < at)
		return REAL(cuMemUnmap, at, bytes);
	vmm_walk(&vmm_mappings, at, bytes, vmm_unmap_begin, false);
	int result = REAL(cuMemUnmap, at, bytes);
	vmm_walk(&vmm_unmapping, at, bytes, vmm_unmap_end, result == CUDA_SUCCESS);
	return result;
}

int cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *at)
{
	struct alloc_record r;
	/* As for other memory of cuMemAlloc: a handle would keep it on the device when the lane moves it. */
	if (unlikely(lane_has((uintptr_t)at)))
		return CUDA_ERROR_INVALID_VALUE;
	int result = REAL(cuMemRetainAllocationHandle, out, at);
	if (result == CUDA_SUCCESS && attach_on())
		vmm_count(*out, VMM_REFERENCE, &r);
	return result;
}

/* vmm_import adds a record of imported memory, or a reference if there is one. */
static void vmm_import(CUmemGenericAllocationHandle handle)
{
	uint64_t by = VMM_REFERENCE;
	struct alloc_record r = {.key = handle, .other = by};
	bool added;
	if (!alloc_table_add(&vmm_handles, &r, vmm_add, &by, &added))
		log_warn("no memory to remember an import: it is shown in the region until this process ends");
	else if (!added)
		import_end(); /* a record is one import */
}

int cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *handle, int type)
{
	bool on = attach_on();
	if (on)
		import_begin(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? (int)(intptr_t)handle : -1);
	bool begun = cannot_begin(RATION_CANNOT_IMPORTED);
	int result = cannot_made(RATION_CANNOT_IMPORTED, begun, REAL(cuMemImportFromShareableHandle, out, handle, type));
	if (on && result == CUDA_SUCCESS)
		vmm_import(*out);
	else if (on)
		import_end();
	overhead_tick();      /* earlier imports may count for this process, which perhaps makes no other call */
	overhead_read_soon(); /* the driver may count it as the importer's when the descriptor is closed */
	return result;
}

static bool vmm_export(struct alloc_record *r, void *first)
{
	*(bool *)first = !(r->flags & RECORD_EXPORTED);
	r->flags |= RECORD_EXPORTED;
	return true;
}

/* vmm_mark_exported marks memory as exported, before the driver is asked: another thread may release it
 * meanwhile, and this process may be killed as soon as it has the descriptor. It returns false if there
 * is no record, or the memory is imported. */
static bool vmm_mark_exported(struct alloc_table *t, uint64_t key, struct alloc_record *r)
{
	bool first = false, known = alloc_table_change(t, key, vmm_export, &first, r) && r->bytes;
	if (known && first) {
		nvml_start(); /* now: overhead_lend may be called with the lock of a primary context held */
		charge_export(r->device, r->bytes);
	}
	return known;
}

int cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
	struct alloc_record r = {.key = 0};
	bool begun = cannot_begin(RATION_CANNOT_EXPORTED);
	bool known = attach_on() && vmm_mark_exported(&vmm_handles, handle, &r);
	int result = REAL(cuMemExportToShareableHandle, out, handle, type, flags);
	if (known && result == CUDA_SUCCESS && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		charge_descriptor(r.device, *(const int *)out, false);
	if (begun) /* memory with a record counts for itself */
		cannot_end(RATION_CANNOT_EXPORTED, known || result != CUDA_SUCCESS);
	return result;
}

int cuMulticastCreate(CUmemGenericAllocationHandle *out, const void *prop)
{
	bool begun = cannot_begin(RATION_CANNOT_GROUP);
	return cannot_made(RATION_CANNOT_GROUP, begun, REAL(cuMulticastCreate, out, prop));
}

/* Finds the first record that lies in a range, wholly or in part. */
struct vmm_range {
	uint64_t from, to;
	struct alloc_record first; /* its key is 0 if there is none */
};

static bool vmm_in_range(struct alloc_record *r, void *arg)
{
	struct vmm_range *s = arg;
	if (r->key < s->to && r->key + r->bytes > s->from && (!s->first.key || r->key < s->first.key))
		s->first = *r;
	return true;
}

/* vmm_export_range marks the memory behind a range as exported. It returns the devices that the memory
 * is on, as bits. A dma-buf keeps all of an allocation, also if it is of a part. Memory of pools and
 * managed memory are not marked: the driver makes no dma-bufs of them. */
static uint32_t vmm_export_range(CUdeviceptr at, uint64_t bytes)
{
	struct alloc_table *const tables[] = {&context_addresses, &vmm_mappings};
	uint32_t devices = 0;
	for (unsigned i = 0; i < 2; i++) {
		struct vmm_range s = {.from = at, .to = at + bytes};
		for (; alloc_table_sweep(tables[i], vmm_in_range, &s), s.first.key; s.first.key = 0) {
			struct alloc_record r, m = s.first;
			bool mapping = tables[i] == &vmm_mappings;
			s.from = m.key + m.bytes;
			if (m.pool || m.flags & (RECORD_MANAGED | RECORD_MANAGED_POOL))
				continue;
			if (mapping ? vmm_mark_exported(&vmm_handles, m.other, &r) : vmm_mark_exported(&context_addresses, m.key, &r))
				devices |= UINT32_C(1) << r.device;
		}
	}
	return devices;
}

int cuMemGetHandleForAddressRange(void *out, CUdeviceptr at, size_t bytes, int type, unsigned long long flags)
{
	bool dma_buf = type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD && attach_on();
	bool begun = cannot_begin(RATION_CANNOT_EXPORTED);
	uint32_t devices = dma_buf ? vmm_export_range(at, bytes) : 0;
	int result = REAL(cuMemGetHandleForAddressRange, out, at, bytes, type, flags);
	for (unsigned i = 0; i < RATION_DEVICES && result == CUDA_SUCCESS; i++)
		if (devices >> i & 1)
			charge_descriptor(i, *(const int *)out, true);
	if (begun)
		cannot_end(RATION_CANNOT_EXPORTED, devices || result != CUDA_SUCCESS);
	return result;
}
