/* Virtual memory: physical memory lives until the last of its handles and its
 * mappings is gone. A record's `other` counts them, and goes down before the driver
 * is asked: a handle may be another thread's as soon as it is free. */
#include "charge.h"
#include "hooks/context.h"
#include "overhead.h"
#include "attach.h"
#include "log.h"
#include "region/words.h"

#define REFERENCE UINT64_C(1)
#define MAPPING (UINT64_C(1) << 32)

static struct alloc_table handles;  /* bytes, device, references and mappings */
static struct alloc_table mappings; /* by address: bytes, and in other the handle */

static bool count(struct alloc_record *r, void *by)
{
	r->other += *(const uint64_t *)by;
	return r->other != 0;
}

static bool change(CUmemGenericAllocationHandle handle, uint64_t by, struct alloc_record *now)
{
	return alloc_table_change(&handles, handle, count, &by, now);
}

/* undo brings back what change took away. */
static void undo(CUmemGenericAllocationHandle handle, uint64_t by, struct alloc_record *was)
{
	struct alloc_record now;
	if (change(handle, -by, &now))
		return;
	was->other = -by;
	alloc_table_put(&handles, was);
}

int cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct device *d;
	ENTER(cuMemCreate, out, bytes, prop, flags);
	if (!prop || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return REAL(cuMemCreate, out, bytes, prop, flags);
	int found = device_of(prop->location.id, &d);
	if (found <= 0)
		return found < 0 ? CUDA_ERROR_OPERATING_SYSTEM : REAL(cuMemCreate, out, bytes, prop, flags);
	int result = charge_add(d->index, RATION_DATA, bytes, false);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemCreate, out, bytes, prop, flags);
	if (result != CUDA_SUCCESS) {
		charge_return(d->index, RATION_DATA, bytes);
		return result;
	}
	struct alloc_record r = {.key = *out, .bytes = bytes, .device = (uint8_t)d->index, .other = REFERENCE};
	if (!alloc_table_put(&handles, &r))
		log_warn("no memory to remember a handle: it stays counted until this process ends");
	overhead_tick();
	return result;
}

int cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct alloc_record r;
	LEAVE_ALONE(cuMemRelease, handle);
	bool known = change(handle, -REFERENCE, &r);
	int result = REAL(cuMemRelease, handle);
	if (known && result != CUDA_SUCCESS)
		undo(handle, -REFERENCE, &r);
	else if (known && r.other == 0)
		charge_return(r.device, RATION_DATA, r.bytes);
	return result;
}

int cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct alloc_record r;
	LEAVE_ALONE(cuMemMap, at, bytes, offset, handle, flags);
	bool known = change(handle, MAPPING, &r);
	int result = REAL(cuMemMap, at, bytes, offset, handle, flags);
	if (known && result != CUDA_SUCCESS)
		change(handle, -MAPPING, &r);
	else if (known && bytes)
		alloc_table_put(&mappings, &(struct alloc_record){.key = at, .bytes = bytes, .other = handle});
	return result;
}

/* A range may end many mappings: one after the other, each begins where the last
 * one ended. Those of imported memory were never recorded; a range that has any is
 * walked in the steps mappings come in. While the driver is asked they wait in
 * leaving, with the size of the memory (in units) where theirs was the last hold. */
static const uint64_t STEP = 2 << 20;

static struct alloc_table leaving;

static uint64_t leave(CUdeviceptr at)
{
	struct alloc_record m, r;
	if (!alloc_table_take(&mappings, at, &m))
		return STEP;
	m.flags = 0;
	if (change(m.other, -MAPPING, &r) && r.other == 0) {
		m.flags = (uint32_t)units_for(r.bytes);
		m.device = r.device;
	}
	alloc_table_put(&leaving, &m);
	return m.bytes;
}

static uint64_t left(CUdeviceptr at, bool gone)
{
	struct alloc_record m;
	if (!alloc_table_take(&leaving, at, &m))
		return STEP;
	if (gone) {
		charge_return(m.device, RATION_DATA, (uint64_t)m.flags * RATION_UNIT);
	} else {
		struct alloc_record r = {.key = m.other, .bytes = (uint64_t)m.flags * RATION_UNIT, .device = m.device};
		undo(m.other, -MAPPING, &r);
		alloc_table_put(&mappings, &m);
	}
	return m.bytes;
}

int cuMemUnmap(CUdeviceptr at, size_t bytes)
{
	LEAVE_ALONE(cuMemUnmap, at, bytes);
	/* No address space is that large: the driver will say so. */
	if (bytes > UINT64_C(1) << 47 || at + bytes < at)
		return REAL(cuMemUnmap, at, bytes);
	for (uint64_t done = 0; done < bytes;)
		done += leave(at + done);
	int result = REAL(cuMemUnmap, at, bytes);
	for (uint64_t done = 0; done < bytes;)
		done += left(at + done, result == CUDA_SUCCESS);
	return result;
}

int cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *at)
{
	struct alloc_record r;
	LEAVE_ALONE(cuMemRetainAllocationHandle, out, at);
	int result = REAL(cuMemRetainAllocationHandle, out, at);
	if (result == CUDA_SUCCESS)
		change(*out, REFERENCE, &r);
	return result;
}

int cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *handle, int type)
{
	struct alloc_record r;
	LEAVE_ALONE(cuMemImportFromShareableHandle, out, handle, type);
	int result = REAL(cuMemImportFromShareableHandle, out, handle, type);
	/* One that this process has itself, by the same handle. */
	if (result == CUDA_SUCCESS)
		change(*out, REFERENCE, &r);
	return result;
}
