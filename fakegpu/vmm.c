/* Virtual memory management: physical memory, reservations, and mappings between. Exported memory
 * is in records that all processes share (share.h). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "driver.h"
#include "knobs.h"
#include "space.h"

/* The granularity of mappings is the size to which the driver rounds large allocations. */
static uint64_t vmm_granularity(void) { return knobs()->block; }

struct physical {
	struct handle handle;
	CUmemAllocationProp prop;
	uint64_t size;
	uint64_t charged;
	unsigned device;
	unsigned long references; /* by handle; at 0 the handle is none any more */
	unsigned long mappings;   /* the memory stays until both are 0 */
	unsigned share;           /* of exported and imported memory: the number of its record, plus one; else 0 */
	bool imported;
	char *data; /* its contents, of this process only; NULL until it is first copied or filled */
};

struct mapping {
	CUdeviceptr at;
	uint64_t size;
	struct physical *memory;
	int access;
	struct mapping *next;
};

struct reservation {
	struct mapping *mappings;
};

static pthread_mutex_t vmm_lock = PTHREAD_MUTEX_INITIALIZER; /* over all of the above */

static bool vmm_granular(uint64_t n) { return n != 0 && n % vmm_granularity() == 0; }

static CUresult vmm_check_prop(const CUmemAllocationProp *prop)
{
	if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	switch (prop->location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE: return device_check(prop->location.id);
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
	default: return CUDA_ERROR_INVALID_VALUE;
	}
}

/* A live handle, or NULL. Under the lock. */
static struct physical *vmm_physical_get(CUmemGenericAllocationHandle h, const char *call)
{
	struct physical *m = handle_want((void *)(uintptr_t)h, HANDLE_PHYSICAL, call);
	return m != NULL && m->references > 0 ? m : NULL;
}

static void vmm_drop_unused(struct physical *m)
{
	if (m->references > 0 || m->mappings > 0)
		return;
	if (m->share > 0)
		machine_share_drop(m->share - 1, !m->imported);
	if (m->charged > 0)
		machine_return(m->device, KIND_DATA, m->charged);
	if (m->data != NULL)
		munmap(m->data, m->size);
	handle_drop(m);
}

static CUresult vmm_create(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop)
{
	struct physical *m;
	bool on_device;

	TRY(driver_ready());
	if (out == NULL || !vmm_granular(size))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(vmm_check_prop(prop));
	on_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
	if (on_device && !machine_charge(device_index(prop->location.id), KIND_DATA, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	m = handle_new(sizeof *m, HANDLE_PHYSICAL, NULL);
	if (m == NULL) {
		if (on_device)
			machine_return(device_index(prop->location.id), KIND_DATA, size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	m->prop = *prop;
	m->size = size;
	m->device = on_device ? device_index(prop->location.id) : 0;
	m->charged = on_device ? size : 0;
	m->references = 1;
	*out = (uintptr_t)m;
	return CUDA_SUCCESS;
}

static CUresult vmm_release(CUmemGenericAllocationHandle h)
{
	struct physical *m;
	TRY(driver_ready());
	pthread_mutex_lock(&vmm_lock);
	m = vmm_physical_get(h, "cuMemRelease");
	if (m != NULL) {
		m->references--;
		vmm_drop_unused(m);
	}
	pthread_mutex_unlock(&vmm_lock);
	return m == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult vmm_reserve(CUdeviceptr *out, size_t size, size_t alignment)
{
	struct block b = {.kind = BLOCK_RESERVATION, .size = size, .alignment = alignment};
	TRY(driver_ready());
	if (out == NULL || !vmm_granular(size) || (alignment & (alignment - 1)) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	b.owner = calloc(1, sizeof(struct reservation));
	if (b.owner == NULL || !space_take(&b, false)) {
		free(b.owner);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = b.address;
	return CUDA_SUCCESS;
}

/* The reservation that holds all of the range, or NULL. Under the lock. */
static struct reservation *vmm_reservation_of(CUdeviceptr p, uint64_t size, struct block *b)
{
	if (!space_find(p, b) || b->kind != BLOCK_RESERVATION || b->address + b->size - p < size)
		return NULL;
	return b->owner;
}

static CUresult vmm_free_address(CUdeviceptr p, size_t size)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct reservation *r;
	struct block b;

	TRY(driver_ready());
	pthread_mutex_lock(&vmm_lock);
	r = vmm_reservation_of(p, size, &b);
	if (r != NULL && b.address == p && b.size == size && r->mappings == NULL &&
	    space_remove(p, 1u << BLOCK_RESERVATION, &b) == SPACE_OK) {
		free(r);
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&vmm_lock);
	return result;
}

static bool vmm_overlaps(const struct mapping *m, CUdeviceptr p, uint64_t size) { return p < m->at + m->size && m->at < p + size; }

static CUresult vmm_map_locked(CUdeviceptr p, uint64_t size, CUmemGenericAllocationHandle h)
{
	struct block b;
	struct reservation *r = vmm_reservation_of(p, size, &b);
	struct physical *memory = vmm_physical_get(h, "cuMemMap");
	struct mapping *m;

	if (memory == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (size != memory->size)
		return CUDA_ERROR_NOT_SUPPORTED; /* the driver maps whole allocations only */
	if (r == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	for (m = r->mappings; m != NULL; m = m->next)
		if (vmm_overlaps(m, p, size))
			return CUDA_ERROR_INVALID_VALUE;
	m = malloc(sizeof *m);
	if (m == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*m = (struct mapping){.at = p, .size = size, .memory = memory, .next = r->mappings};
	r->mappings = m;
	memory->mappings++;
	return CUDA_SUCCESS;
}

static CUresult vmm_map(CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle h)
{
	CUresult r;
	TRY(driver_ready());
	if (!vmm_granular(size) || p % vmm_granularity() != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (offset != 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&vmm_lock);
	r = vmm_map_locked(p, size, h);
	pthread_mutex_unlock(&vmm_lock);
	return r;
}

/* The bytes of a range that mappings lie in wholly; a mapping that is cut makes it 0. */
static uint64_t vmm_covered(const struct reservation *r, CUdeviceptr p, uint64_t size)
{
	uint64_t sum = 0;
	for (const struct mapping *m = r->mappings; m != NULL; m = m->next) {
		if (!vmm_overlaps(m, p, size))
			continue;
		if (m->at < p || m->at + m->size > p + size)
			return 0;
		sum += m->size;
	}
	return sum;
}

static CUresult vmm_unmap(CUdeviceptr p, size_t size)
{
	struct reservation *r;
	struct block b;

	TRY(driver_ready());
	pthread_mutex_lock(&vmm_lock);
	r = size == 0 ? NULL : vmm_reservation_of(p, size, &b);
	if (r == NULL || vmm_covered(r, p, size) != size) {
		pthread_mutex_unlock(&vmm_lock);
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (struct mapping **at = &r->mappings, *m; (m = *at) != NULL;) {
		if (!vmm_overlaps(m, p, size)) {
			at = &m->next;
			continue;
		}
		*at = m->next;
		m->memory->mappings--;
		vmm_drop_unused(m->memory);
		free(m);
	}
	pthread_mutex_unlock(&vmm_lock);
	return CUDA_SUCCESS;
}

static CUresult vmm_set_access(CUdeviceptr p, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	struct reservation *r;
	struct block b;
	bool ok;

	TRY(driver_ready());
	if (desc == NULL || count == 0 || size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&vmm_lock);
	r = vmm_reservation_of(p, size, &b);
	ok = r != NULL && vmm_covered(r, p, size) == size;
	for (struct mapping *m = ok ? r->mappings : NULL; m != NULL; m = m->next)
		if (vmm_overlaps(m, p, size))
			m->access = desc[count - 1].flags;
	pthread_mutex_unlock(&vmm_lock);
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The mapping at an address, or NULL. Under the lock. */
static struct mapping *vmm_mapping_at(CUdeviceptr p)
{
	struct block b;
	struct reservation *r = vmm_reservation_of(p, 1, &b);
	struct mapping *m = r == NULL ? NULL : r->mappings;
	while (m != NULL && !vmm_overlaps(m, p, 1))
		m = m->next;
	return m;
}

/* Maps the contents of memory if they are not mapped yet. Under the lock. */
static char *vmm_data(struct physical *m)
{
	if (m->data == NULL) {
		void *at = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		m->data = at == MAP_FAILED ? NULL : at;
	}
	return m->data;
}

CUresult vmm_contents(CUdeviceptr p, uint64_t n, void **out)
{
	struct mapping *m;
	pthread_mutex_lock(&vmm_lock);
	m = vmm_mapping_at(p);
	bool ok = m != NULL && m->access == CU_MEM_ACCESS_READWRITE;
	*out = ok && n <= m->size - (p - m->at) && vmm_data(m->memory) != NULL ? m->memory->data + (p - m->at) : NULL;
	pthread_mutex_unlock(&vmm_lock);
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	(void)flags;
	ENTRY(cuMemCreate, vmm_create(out, size, prop));
}

API cuMemRelease(CUmemGenericAllocationHandle h) { ENTRY(cuMemRelease, vmm_release(h)); }

API cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
	(void)hint, (void)flags;
	ENTRY(cuMemAddressReserve, vmm_reserve(out, size, alignment));
}

API cuMemAddressFree(CUdeviceptr p, size_t size) { ENTRY(cuMemAddressFree, vmm_free_address(p, size)); }

API cuMemMap(CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags)
{
	(void)flags;
	ENTRY(cuMemMap, vmm_map(p, size, offset, h));
}

API cuMemUnmap(CUdeviceptr p, size_t size) { ENTRY(cuMemUnmap, vmm_unmap(p, size)); }

API cuMemSetAccess(CUdeviceptr p, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	ENTRY(cuMemSetAccess, vmm_set_access(p, size, desc, count));
}

API cuMemGetAccess(unsigned long long *flags, const CUmemLocation *where, CUdeviceptr p)
{
	struct mapping *m;
	TRY(driver_ready());
	if (flags == NULL || where == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&vmm_lock);
	m = vmm_mapping_at(p);
	if (m != NULL)
		*flags = (unsigned)m->access;
	pthread_mutex_unlock(&vmm_lock);
	return m == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
	struct mapping *m;
	TRY(driver_ready());
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&vmm_lock);
	m = vmm_mapping_at((CUdeviceptr)(uintptr_t)address);
	if (m != NULL) {
		m->memory->references++;
		*out = (uintptr_t)m->memory;
	}
	pthread_mutex_unlock(&vmm_lock);
	return m == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop, int option)
{
	(void)option;
	TRY(driver_ready());
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(vmm_check_prop(prop));
	*out = vmm_granularity();
	return CUDA_SUCCESS;
}

API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUmemGenericAllocationHandle h)
{
	struct physical *m;
	TRY(driver_ready());
	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&vmm_lock);
	m = vmm_physical_get(h, "cuMemGetAllocationPropertiesFromHandle");
	if (m != NULL)
		*out = m->prop;
	pthread_mutex_unlock(&vmm_lock);
	return m == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Moves the memory to a record, unless it has one. The caller holds the lock. */
static bool vmm_share(struct physical *m)
{
	int number = m->share > 0 ? -1 : machine_share(m->device, m->charged);
	if (number >= 0) {
		m->share = (unsigned)number + 1;
		m->charged = 0;
	}
	return m->share > 0;
}

static CUresult vmm_export_handle(void *out, CUmemGenericAllocationHandle h, int type)
{
	struct physical *m;
	int fd = -1;

	TRY(driver_ready());
	if (out == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&vmm_lock);
	m = vmm_physical_get(h, "cuMemExportToShareableHandle");
	if (m != NULL && (m->imported || (m->share == 0 && m->charged == 0) || (m->prop.requestedHandleTypes & type) == 0))
		m = NULL;
	if (m != NULL && vmm_share(m))
		fd = machine_share_export(m->share - 1, false);
	pthread_mutex_unlock(&vmm_lock);
	if (fd < 0)
		return m == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

/* The real driver takes ranges of several mappings, too. */
CUresult vmm_dma_buf(int *out, CUdeviceptr p, uint64_t size)
{
	struct mapping *m;
	int fd = -1;

	pthread_mutex_lock(&vmm_lock);
	m = vmm_mapping_at(p);
	if (m != NULL && (m->at + m->size - p < size || m->memory->imported || (m->memory->share == 0 && m->memory->charged == 0)))
		m = NULL;
	if (m != NULL && vmm_share(m->memory))
		fd = machine_share_export(m->memory->share - 1, true);
	pthread_mutex_unlock(&vmm_lock);
	if (fd < 0)
		return m == NULL ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_OUT_OF_MEMORY;
	*out = fd;
	return CUDA_SUCCESS;
}

static CUresult vmm_import_handle(CUmemGenericAllocationHandle *out, void *os_handle, int type)
{
	struct physical *m;
	CUdevice ordinal = 0;
	unsigned device;
	uint64_t bytes;

	TRY(driver_ready());
	if (out == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	int number = machine_share_import((int)(intptr_t)os_handle, &device, &bytes);
	if (number < 0)
		return CUDA_ERROR_INVALID_VALUE;
	while ((unsigned)ordinal < visible_devices() && device_index(ordinal) != device)
		ordinal++;
	m = (unsigned)ordinal < visible_devices() ? handle_new(sizeof *m, HANDLE_PHYSICAL, NULL) : NULL;
	if (m == NULL) {
		machine_share_drop((unsigned)number, false);
		return (unsigned)ordinal < visible_devices() ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
	}
	m->prop = (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = type, .location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal}};
	m->size = bytes;
	m->device = device;
	m->references = 1;
	m->imported = true;
	m->share = (unsigned)number + 1;
	*out = (uintptr_t)m;
	return CUDA_SUCCESS;
}

API cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle h, int type, unsigned long long flags)
{
	(void)flags;
	ENTRY(cuMemExportToShareableHandle, vmm_export_handle(out, h, type));
}

API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle, int type)
{
	ENTRY(cuMemImportFromShareableHandle, vmm_import_handle(out, os_handle, type));
}
