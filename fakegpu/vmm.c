/* Virtual memory management: physical memory, reservations, and mappings between.
 *
 * Shareable memory lives as long as any process has a handle, a mapping or a descriptor of it. As
 * seen on an H200, once its maker has released it: NVML lists it for no process while there is a
 * descriptor, and after that for its importer. Here the maker holds it until then, unlisted. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"
#include "knobs.h"
#include "space.h"
#include "ticket.h"

/* The granularity of mappings is the size to which the driver rounds large allocations. */
static uint64_t vmm_granularity(void) { return knobs()->block; }

/* Data that the maker and the importers of shareable memory share, in the file behind the
 * descriptor. */
struct share {
	struct ticket ticket;
	char name[48];      /* of the file */
	uint32_t importers; /* handles and mappings of others; atomic, as the rest */
	uint32_t released;  /* by the maker */
	uint32_t adopted;   /* an importer holds it now */
};

struct physical {
	struct handle handle;
	CUmemAllocationProp prop;
	uint64_t size;
	uint64_t charged;
	unsigned device;
	unsigned long references; /* by handle; at 0 the handle is none any more */
	unsigned long mappings;   /* the memory stays until both are 0 */
	struct ticket from;       /* of imported memory */
	struct physical *next;    /* imported, too, or lent */
	struct share *share;      /* of exported and imported memory */
	int own;                  /* a descriptor of exported memory that the driver keeps */
	bool imported;
};

/* The driver's own descriptors are from here on, and do not count. */
enum { VMM_OWN_DESCRIPTORS = 700 };

static struct physical *vmm_imports;
static struct physical *vmm_lent; /* released, and perhaps still reachable */

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

/* Whether a process, of those that can be looked at, has a descriptor of it. */
static bool vmm_descriptor_left(const struct share *share)
{
	bool found = false;
	DIR *processes = opendir("/proc");
	for (struct dirent *p; processes != NULL && !found && (p = readdir(processes)) != NULL;) {
		char folder[300];
		snprintf(folder, sizeof folder, "/proc/%s/fd", p->d_name);
		DIR *files = p->d_name[0] >= '0' && p->d_name[0] <= '9' ? opendir(folder) : NULL;
		for (struct dirent *f; files != NULL && !found && (f = readdir(files)) != NULL;) {
			char target[128] = "";
			found = atoi(f->d_name) < VMM_OWN_DESCRIPTORS &&
				readlinkat(dirfd(files), f->d_name, target, sizeof target - 1) > 0 && strstr(target, share->name) != NULL;
		}
		if (files != NULL)
			closedir(files);
	}
	if (processes != NULL)
		closedir(processes);
	return found;
}

/* Returns exported memory that no process can reach any more, or that an importer has taken over. */
static void vmm_settle_lent(void)
{
	for (struct physical **at = &vmm_lent, *m; (m = *at) != NULL;) {
		if (load_relaxed(&m->share->adopted) == 0 && (load_relaxed(&m->share->importers) > 0 || vmm_descriptor_left(m->share))) {
			at = &m->next;
			continue;
		}
		*at = m->next;
		machine_unlist(m->device, -(int64_t)m->charged);
		machine_return(m->device, KIND_DATA, m->charged);
		munmap(m->share, sizeof *m->share);
		close(m->own);
		handle_drop(m);
	}
}

static void vmm_drop_unused(struct physical *m)
{
	if (m->references > 0 || m->mappings > 0)
		return;
	if (m->share != NULL && !m->imported) {
		machine_unlist(m->device, (int64_t)m->charged);
		__atomic_store_n(&m->share->released, 1, __ATOMIC_RELEASE);
		m->next = vmm_lent;
		vmm_lent = m;
		vmm_settle_lent();
		return;
	}
	if (m->share != NULL) {
		__atomic_fetch_sub(&m->share->importers, 1, __ATOMIC_ACQ_REL);
		munmap(m->share, sizeof *m->share);
	}
	if (m->charged > 0)
		machine_return(m->device, KIND_DATA, m->charged);
	for (struct physical **at = &vmm_imports; *at != NULL; at = &(*at)->next)
		if (*at == m) {
			*at = m->next;
			break;
		}
	handle_drop(m);
}

/* Whether imported memory is this process's now: its maker has ended, or has released it and there is no descriptor. */
static bool vmm_is_ours(const struct physical *m)
{
	if (!machine_alive(m->from.slot, m->from.identity))
		return knobs()->orphans;
	return __atomic_load_n(&m->share->released, __ATOMIC_ACQUIRE) != 0 && load_relaxed(&m->share->adopted) == 0 &&
	       !vmm_descriptor_left(m->share);
}

void imports_adopt(void)
{
	pthread_mutex_lock(&vmm_lock);
	for (struct physical *m = vmm_imports; m != NULL; m = m->next)
		if (m->charged == 0 && vmm_is_ours(m) && machine_charge(m->device, KIND_DATA, m->size)) {
			m->charged = m->size;
			store_relaxed(&m->share->adopted, 1);
		}
	vmm_settle_lent();
	pthread_mutex_unlock(&vmm_lock);
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

/* Makes the shared data of exported memory, and a descriptor that the driver itself keeps. The
 * caller holds the lock. */
static bool vmm_share(struct physical *m)
{
	static unsigned names;
	char name[sizeof m->share->name];
	snprintf(name, sizeof name, "fakegpu-share-%d-%u.", (int)getpid(), ++names);
	int fd = memfd_create(name, MFD_CLOEXEC), own = fcntl(fd, F_DUPFD_CLOEXEC, VMM_OWN_DESCRIPTORS);
	if (fd >= 0)
		close(fd);
	struct share *share = own >= 0 && ftruncate(own, sizeof *share) == 0
				      ? mmap(NULL, sizeof *share, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0)
				      : MAP_FAILED;
	if (share == MAP_FAILED)
		return false;
	share->ticket = ticket_new(TICKET_PHYSICAL, m->device, 0, m->size);
	strcpy(share->name, name);
	m->share = share;
	m->own = own;
	return true;
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
	if (m != NULL && (m->imported || (m->prop.requestedHandleTypes & type) == 0))
		m = NULL;
	if (m != NULL && (m->share != NULL || vmm_share(m)))
		fd = fcntl(m->own, F_DUPFD_CLOEXEC, 0);
	pthread_mutex_unlock(&vmm_lock);
	if (fd < 0)
		return m == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

static CUresult vmm_import_handle(CUmemGenericAllocationHandle *out, void *os_handle, int type)
{
	struct share *share;
	struct physical *m;
	struct ticket t;
	CUdevice ordinal;
	int fd = (int)(intptr_t)os_handle;

	TRY(driver_ready());
	if (out == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !ticket_from_fd(fd, &t) ||
	    !ticket_good(&t, TICKET_PHYSICAL, &ordinal))
		return CUDA_ERROR_INVALID_VALUE;
	share = mmap(NULL, sizeof *share, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	m = share == MAP_FAILED ? NULL : handle_new(sizeof *m, HANDLE_PHYSICAL, NULL);
	if (m == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->prop = (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = type, .location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal}};
	m->size = t.size;
	m->device = t.device;
	m->references = 1;
	m->from = t;
	m->imported = true;
	m->share = share;
	__atomic_fetch_add(&share->importers, 1, __ATOMIC_ACQ_REL);
	pthread_mutex_lock(&vmm_lock);
	m->next = vmm_imports;
	vmm_imports = m;
	pthread_mutex_unlock(&vmm_lock);
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
