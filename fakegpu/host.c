/* Host memory that the device can reach: pinned, registered and managed. All of
 * it is really there, so that programs can touch it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

/* Sorted by base; ranges do not overlap. */
static struct host_range *ranges;
static size_t count, room;
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;

/* The first range that ends above the address. Under the lock. */
static size_t first_above(uintptr_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (ranges[mid].base + ranges[mid].size > address)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

bool host_find(uintptr_t address, struct host_range *out)
{
    bool found;
    size_t i;
    pthread_rwlock_rdlock(&lock);
    i = first_above(address);
    found = i < count && ranges[i].base <= address;
    if (found)
        *out = ranges[i];
    pthread_rwlock_unlock(&lock);
    return found;
}

static CUresult add(const struct host_range *r)
{
    CUresult result = CUDA_SUCCESS;
    size_t i;

    pthread_rwlock_wrlock(&lock);
    i = first_above(r->base);
    if (i < count && ranges[i].base < r->base + r->size) {
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    } else if (count == room) {
        size_t more = room == 0 ? 64 : room * 2;
        struct host_range *grown = realloc(ranges, more * sizeof *grown);
        if (grown == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            ranges = grown;
            room = more;
        }
    }
    if (result == CUDA_SUCCESS) {
        memmove(&ranges[i + 1], &ranges[i], (count - i) * sizeof *ranges);
        ranges[i] = *r;
        count++;
    }
    pthread_rwlock_unlock(&lock);
    return result;
}

static bool take_out(uintptr_t base, enum host_kind kind, struct host_range *out)
{
    bool found;
    size_t i;
    pthread_rwlock_wrlock(&lock);
    i = first_above(base);
    found = i < count && ranges[i].base == base && ranges[i].kind == kind;
    if (found) {
        *out = ranges[i];
        memmove(&ranges[i], &ranges[i + 1], (count - i - 1) * sizeof *ranges);
        count--;
    }
    pthread_rwlock_unlock(&lock);
    return found;
}

static CUresult map_range(struct host_range *r)
{
    void *p;

    TRY(current_context(&r->context));
    if (r->size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    p = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    r->base = (uintptr_t)p;
    if (add(r) != CUDA_SUCCESS) {
        munmap(p, r->size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

static CUresult alloc_pinned(size_t bytes, unsigned flags, void **out)
{
    struct host_range r = {.size = bytes, .kind = HOST_PINNED, .flags = flags};
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    TRY(map_range(&r));
    *out = (void *)r.base;
    return CUDA_SUCCESS;
}

/* Managed memory takes device memory from when it is moved there until it is moved
 * elsewhere or freed, always as a whole. What does not fit stays on the host, as an
 * oversubscribed device would have it. */
static void move(struct host_range *r, int device)
{
    uint64_t size = physical_size(r->size);
    if (r->resident > 0 && (int)r->device != device) {
        machine_return(r->device, KIND_DATA, r->resident);
        r->resident = 0;
    }
    if (device >= 0 && r->resident == 0 && machine_charge((unsigned)device, KIND_DATA, size)) {
        r->resident = size;
        r->device = (unsigned)device;
    }
}

CUresult host_new_managed(uint64_t bytes, unsigned flags, struct pool *pool, int device, CUdeviceptr *out)
{
    struct host_range r = {.size = bytes, .kind = HOST_MANAGED, .flags = flags, .pool = pool};
    move(&r, device);
    CUresult result = map_range(&r);
    if (result != CUDA_SUCCESS)
        move(&r, -1);
    else
        *out = (CUdeviceptr)r.base;
    return result;
}

static CUresult alloc_managed(CUdeviceptr *out, size_t bytes, unsigned flags)
{
    if (out == NULL || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    return host_new_managed(bytes, flags, NULL, -1, out);
}

bool host_free_managed(uintptr_t base)
{
    struct host_range r;
    if (!take_out(base, HOST_MANAGED, &r))
        return false;
    move(&r, -1);
    munmap((void *)r.base, r.size);
    if (r.pool != NULL)
        pool_give(r.pool, r.size);
    return true;
}

void host_end_managed(const struct context *context, bool last)
{
    uintptr_t base;
    do {
        base = 0;
        pthread_rwlock_rdlock(&lock);
        for (size_t i = 0; i < count && base == 0; i++)
            if (ranges[i].kind == HOST_MANAGED && ranges[i].context == context && (ranges[i].pool == NULL || last))
                base = ranges[i].base;
        pthread_rwlock_unlock(&lock);
    } while (base != 0 && host_free_managed(base));
}

static CUresult free_host(void *p)
{
    struct host_range r;
    TRY(driver_ready());
    if (p == NULL)
        return CUDA_SUCCESS;
    if (!take_out((uintptr_t)p, HOST_PINNED, &r)) {
        report_error("cuMemFreeHost: %p is no pinned allocation", p);
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap(p, r.size);
    return CUDA_SUCCESS;
}

static CUresult host_register(void *p, size_t bytes, unsigned flags)
{
    struct host_range r = {.base = (uintptr_t)p, .size = bytes, .kind = HOST_REGISTERED, .flags = flags};
    TRY(current_context(&r.context));
    if (p == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return add(&r);
}

static CUresult unregister(void *p)
{
    struct host_range r;
    TRY(driver_ready());
    if (take_out((uintptr_t)p, HOST_REGISTERED, &r))
        return CUDA_SUCCESS;
    report_error("cuMemHostUnregister: %p is not registered", p);
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

API cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags)
{
    ENTRY(cuMemAllocManaged, alloc_managed(out, bytes, flags));
}

API cuMemAllocHost_v2(void **out, size_t bytes) { ENTRY(cuMemAllocHost, alloc_pinned(bytes, 0, out)); }
API cuMemAllocHost(void **out, unsigned bytes) { ENTRY(cuMemAllocHost, alloc_pinned(bytes, 0, out)); }

API cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    ENTRY(cuMemHostAlloc, alloc_pinned(bytes, flags, out));
}

API cuMemFreeHost(void *p) { ENTRY(cuMemFreeHost, free_host(p)); }

API cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags)
{
    ENTRY(cuMemHostRegister, host_register(p, bytes, flags));
}

API cuMemHostRegister(void *p, size_t bytes, unsigned flags)
{
    ENTRY(cuMemHostRegister, host_register(p, bytes, flags));
}

API cuMemHostUnregister(void *p) { ENTRY(cuMemHostUnregister, unregister(p)); }

API cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned flags)
{
    struct host_range r;
    struct context *c;
    TRY(current_context(&c));
    if (out == NULL || flags != 0 || !host_find((uintptr_t)p, &r))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

/* Host memory lies above what 32 bits can name. */
API cuMemHostGetDevicePointer(CUdeviceptr_v1 *out, void *p, unsigned flags)
{
    CUdeviceptr d;
    TRY(cuMemHostGetDevicePointer_v2(&d, p, flags));
    if (out == NULL || d > UINT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr_v1)d;
    return CUDA_SUCCESS;
}

API cuMemHostGetFlags(unsigned *flags, void *p)
{
    struct host_range r;
    TRY(driver_ready());
    if (flags == NULL || !host_find((uintptr_t)p, &r))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = r.flags;
    return CUDA_SUCCESS;
}

/* To a device, by index, or to the host (-1). */
static CUresult prefetch(CUdeviceptr p, size_t bytes, int device)
{
    struct context *c;
    size_t i;

    TRY(current_context(&c));
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&lock);
    i = first_above((uintptr_t)p);
    if (i == count || ranges[i].base > p || ranges[i].kind != HOST_MANAGED ||
        ranges[i].base + ranges[i].size - p < bytes) {
        pthread_rwlock_unlock(&lock);
        return CUDA_ERROR_INVALID_VALUE;
    }
    move(&ranges[i], device);
    pthread_rwlock_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult prefetch_v1(CUdeviceptr p, size_t bytes, CUdevice device, CUstream s)
{
    TRY(stream_check(s));
    if (device == CU_DEVICE_CPU)
        return prefetch(p, bytes, -1);
    TRY(device_check(device));
    return prefetch(p, bytes, (int)device_index(device));
}

static CUresult prefetch_v2(CUdeviceptr p, size_t bytes, CUmemLocation where, CUstream s)
{
    return prefetch_v1(p, bytes, where.type == CU_MEM_LOCATION_TYPE_DEVICE ? where.id : CU_DEVICE_CPU, s);
}

API cuMemPrefetchAsync(CUdeviceptr p, size_t bytes, CUdevice device, CUstream s)
{
    ENTRY(cuMemPrefetchAsync, prefetch_v1(p, bytes, device, s));
}

API cuMemPrefetchAsync_ptsz(CUdeviceptr p, size_t bytes, CUdevice device, CUstream s)
{
    ENTRY(cuMemPrefetchAsync, prefetch_v1(p, bytes, device, per_thread(s)));
}

API cuMemPrefetchAsync_v2(CUdeviceptr p, size_t bytes, CUmemLocation where, unsigned flags, CUstream s)
{
    (void)flags;
    ENTRY(cuMemPrefetchAsync, prefetch_v2(p, bytes, where, s));
}

API cuMemPrefetchAsync_v2_ptsz(CUdeviceptr p, size_t bytes, CUmemLocation where, unsigned flags, CUstream s)
{
    (void)flags;
    ENTRY(cuMemPrefetchAsync, prefetch_v2(p, bytes, where, per_thread(s)));
}

API cuMemAdvise(CUdeviceptr p, size_t bytes, int advice, CUdevice device)
{
    struct host_range r;
    (void)bytes, (void)advice, (void)device;
    TRY(driver_ready());
    return host_find((uintptr_t)p, &r) && r.kind == HOST_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemAdvise_v2(CUdeviceptr p, size_t bytes, int advice, CUmemLocation where)
{
    return cuMemAdvise(p, bytes, advice, where.id);
}
