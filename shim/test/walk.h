/* Random steps through every call that takes or gives device memory, legal ones
 * only: a walker is one thread, with what it holds. Whether a step succeeds is the
 * driver's and the job's to say; a walker knows no more than what it got. */
#ifndef RATION_TEST_WALK_H
#define RATION_TEST_WALK_H

#include <pthread.h>
#include <sys/socket.h>

#include "held.h"

enum { DEVICES = 2, HELD = 24, POOLS = 4, OWN = 2, MOST_WALKERS = 4, MOST_PROCESSES = 8 };

enum kind {
    NOTHING, LINEAR, PITCH, MANAGED, ASYNC, POOLED, PHYSICAL, ARRAY, ARRAY3D, MIPMAP, /* often */
    MODULE, LIBRARY, GRAPH, KINDS,
    OPENED, IMPORTED, POOL_POINTER /* another process's */
};

struct thing {
    enum kind kind;
    int device;
    CUcontext context; /* that it was made in */
    CUdeviceptr p;     /* an address; of PHYSICAL and IMPORTED where it is mapped, or 0 */
    void *handle, *other;
    CUmemGenericAllocationHandle memory;
    size_t size;
    int pool;
    bool moved; /* MANAGED: it is on the device */
    bool again; /* GRAPH: it frees what it allocates */
};

struct walker {
    uint64_t random;
    int process, number;
    struct thing held[HELD];
    struct {
        CUmemoryPool handle;
        unsigned live;
        bool destroyed;
        int device;
    } pool[POOLS];
    CUcontext own[OWN];
    int own_device[OWN];
    unsigned long wrong;
};

/* What all walkers of a process share. */
static struct {
    CUcontext primary[DEVICES];
    bool calm;          /* no contexts, no modules: nothing that is measured afterwards */
    bool trace;         /* say every call */
    bool alone;         /* one walker: what would be a race otherwise may be done */
    uint64_t away[DEVICES]; /* bytes of managed memory that are charged and not on the device */
    unsigned orphans;   /* live allocations of destroyed pools */
    bool settling;      /* there were some since the last synchronisation */
    unsigned contexts[DEVICES];
    int current[DEVICES]; /* the pool that is the device's, plus one; 0: its own */
    int mail[MOST_PROCESSES], processes;
    bool strict;        /* contexts and modules come alone: what they take is exact by kind then */
    pthread_rwlock_t measured;
    pthread_mutex_t one; /* of them at a time */
} all = {.measured = PTHREAD_RWLOCK_INITIALIZER, .one = PTHREAD_MUTEX_INITIALIZER};

struct letter {
    enum kind kind;
    CUipcMemHandle ipc;
    CUmemPoolPtrExportData pointer;
    size_t size;
};

static const char ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n";

/* The code of the faults that are injected. */
#define UNKNOWN ((CUresult)999)

static unsigned below(struct walker *w, unsigned n)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (unsigned)((w->random * 0x2545f4914f6cdd1dull >> 33) % n);
}

/* Says whether a call did what it was to do; one that may not fail like that is
 * counted, and told. */
static bool good(struct walker *w, const char *call, CUresult r, bool may_lack)
{
    if (all.trace)
        fprintf(stderr, "%d.%d %d %s\n", w->process, w->number, r, call);
    if (r == CUDA_SUCCESS)
        return true;
    if (r == UNKNOWN || (may_lack && r == CUDA_ERROR_OUT_OF_MEMORY))
        return false;
    fprintf(stderr, "process %d, walker %d: %s returned %d\n", w->process, w->number, call, r);
    w->wrong++;
    return false;
}

/* Around what is told by the driver's count before and after. A step holds the lock
 * for reading. */
static void measure(void)
{
    if (all.strict) {
        pthread_rwlock_unlock(&all.measured);
        pthread_rwlock_wrlock(&all.measured);
    } else {
        pthread_mutex_lock(&all.one);
    }
}

static void measure_end(void)
{
    if (all.strict) {
        pthread_rwlock_unlock(&all.measured);
        pthread_rwlock_rdlock(&all.measured);
    } else {
        pthread_mutex_unlock(&all.one);
    }
}

#define MADE(call) good(w, #call, call, true)
#define DONE(call) good(w, #call, call, false)

static void count(uint64_t *n, int64_t by) { __atomic_fetch_add(n, (uint64_t)by, __ATOMIC_RELAXED); }

static void away(const struct thing *t, int sign)
{
    count(&all.away[t->device], sign * (int64_t)(units_for(t->size) * RATION_UNIT));
}

/* Goes into one of the contexts there are. */
static int enter(struct walker *w, CUcontext *c)
{
    unsigned i = below(w, DEVICES + OWN);
    int device = (int)i;
    if (i >= DEVICES && w->own[i - DEVICES] != NULL) {
        *c = w->own[i - DEVICES];
        device = w->own_device[i - DEVICES];
    } else {
        device = (int)(i % DEVICES);
        *c = all.primary[device];
    }
    DONE(cuCtxSetCurrent(*c));
    return device;
}

/* Pools */

static int some_pool(struct walker *w, int device)
{
    int i = (int)below(w, POOLS);
    return w->pool[i].handle != NULL && !w->pool[i].destroyed && w->pool[i].device == device ? i : -1;
}

static void drained(struct walker *w, const struct thing *t)
{
    if (t->kind != POOLED || --w->pool[t->pool].live > 0 || !w->pool[t->pool].destroyed) {
        if (t->kind == POOLED && w->pool[t->pool].destroyed)
            __atomic_fetch_sub(&all.orphans, 1, __ATOMIC_RELAXED);
        return;
    }
    __atomic_fetch_sub(&all.orphans, 1, __ATOMIC_RELAXED);
    w->pool[t->pool].handle = NULL;
    w->pool[t->pool].destroyed = false;
}

static void step_pool(struct walker *w)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)below(w, DEVICES)}};
    int i = (int)below(w, POOLS);
    CUmemoryPool p = w->pool[i].handle;
    uint64_t threshold = (uint64_t)below(w, 3) * 48 * MIB;
    if (w->pool[i].destroyed)
        return;
    if (p == NULL) {
        if (MADE(cuMemPoolCreate(&p, &props))) {
            w->pool[i].handle = p;
            w->pool[i].device = props.location.id;
        }
        return;
    }
    switch (below(w, all.alone ? 5 : 4)) {
    case 0: DONE(cuMemPoolTrimTo(p, below(w, 2) * 32 * MIB)); break;
    case 1: DONE(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold)); break;
    case 2:
        if (DONE(cuDeviceGetDefaultMemPool(&p, w->pool[i].device)))
            DONE(cuMemPoolTrimTo(p, 0));
        break;
    case 3:
        if (!DONE(cuMemPoolDestroy(p)))
            return;
        if (all.current[w->pool[i].device] == i + 1)
            all.current[w->pool[i].device] = 0;
        if (w->pool[i].live == 0) {
            w->pool[i].handle = NULL;
            return;
        }
        w->pool[i].destroyed = true;
        __atomic_fetch_add(&all.orphans, w->pool[i].live, __ATOMIC_RELAXED);
        __atomic_store_n(&all.settling, true, __ATOMIC_RELAXED);
        break;
    default:
        if (DONE(cuDeviceSetMemPool(w->pool[i].device, p)))
            all.current[w->pool[i].device] = i + 1;
    }
}

/* Memory */

static bool make_graph(struct walker *w, struct thing *t)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, t->device}},
        .bytesize = 1 + below(w, 40 * MIB),
    };
    CUgraphNode a, f;
    CUgraphExec e = NULL;
    CUgraph g;
    if (!MADE(cuGraphCreate(&g, 0)))
        return false;
    bool inside = below(w, 2);
    bool ok = MADE(cuGraphAddMemAllocNode(&a, g, NULL, 0, &params)) &&
              (!inside || MADE(cuGraphAddMemFreeNode(&f, g, &a, 1, params.dptr))) && MADE(cuGraphInstantiateWithFlags(&e, g, 0)) &&
              MADE(cuGraphLaunch(e, NULL));
    if (!ok) {
        while (e != NULL && !DONE(cuGraphExecDestroy(e)))
            ;
        while (!DONE(cuGraphDestroy(g)))
            ;
        return false;
    }
    t->handle = g;
    t->other = e;
    t->p = inside ? 0 : params.dptr;
    t->again = inside;
    return true;
}

static bool make_measured(struct walker *w, struct thing *t)
{
    CUmodule m;
    bool ok;
    measure();
    if (t->kind == MODULE) {
        ok = MADE(cuModuleLoadData((CUmodule *)&t->handle, ptx));
    } else {
        ok = MADE(cuLibraryLoadData((CUlibrary *)&t->handle, ptx, NULL, NULL, 0, NULL, NULL, 0));
        if (ok && below(w, 4))
            MADE(cuLibraryGetModule(&m, t->handle));
    }
    measure_end();
    return ok;
}

static bool make(struct walker *w, struct thing *t)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)below(w, DEVICES)}};
    CUDA_ARRAY3D_DESCRIPTOR cube = {1 + below(w, 300), below(w, 100), below(w, 4), CU_AD_FORMAT_FLOAT, 4, 0};
    CUDA_ARRAY_DESCRIPTOR flat = {1 + below(w, 900), below(w, 300), CU_AD_FORMAT_HALF, 1 + (below(w, 2))};
    size_t pitch;
    *t = (struct thing){.device = enter(w, &t->context), .context = t->context, .size = 1 + below(w, 3 * MIB)};
    t->kind = 1 + (enum kind)below(w, below(w, 4) ? MIPMAP : KINDS - 1);
    switch (t->kind) {
    case LINEAR: return MADE(cuMemAlloc_v2(&t->p, t->size));
    case PITCH: return MADE(cuMemAllocPitch_v2(&t->p, &pitch, 1 + below(w, 5000), 1 + below(w, 100), 4));
    case MANAGED:
        if (all.strict && !all.alone)
            return false; /* it would hide what contexts take */
        return MADE(cuMemAllocManaged(&t->p, t->size, CU_MEM_ATTACH_GLOBAL)) ? away(t, 1), true : false;
    case ASYNC:
        if (!MADE(cuMemAllocAsync(&t->p, 1 + below(w, 20 * MIB), NULL)))
            return false;
        if ((t->pool = all.alone ? all.current[t->device] - 1 : -1) >= 0) {
            t->kind = POOLED;
            w->pool[t->pool].live++;
        }
        return true;
    case POOLED:
        if ((t->pool = some_pool(w, t->device)) < 0 ||
            !MADE(cuMemAllocFromPoolAsync(&t->p, 1 + below(w, 20 * MIB), w->pool[t->pool].handle, NULL)))
            return false;
        w->pool[t->pool].live++;
        return true;
    case PHYSICAL:
        t->device = prop.location.id;
        t->size = (1 + below(w, 4)) * 2 * MIB;
        return MADE(cuMemCreate(&t->memory, t->size, &prop, 0));
    case ARRAY: return MADE(cuArrayCreate_v2((CUarray *)&t->handle, &flat));
    case ARRAY3D: return MADE(cuArray3DCreate_v2((CUarray *)&t->handle, &cube));
    case MIPMAP: return MADE(cuMipmappedArrayCreate((CUmipmappedArray *)&t->handle, &cube, 1 + below(w, 4)));
    case GRAPH: return make_graph(w, t);
    default: return !all.calm && make_measured(w, t);
    }
}

static bool unmap(struct walker *w, struct thing *t)
{
    if (t->p == 0)
        return true;
    if (t->handle == NULL && !DONE(cuMemUnmap(t->p, t->size)))
        return false;
    t->handle = t; /* unmapped, and not yet given back */
    if (!DONE(cuMemAddressFree(t->p, t->size)))
        return false;
    t->p = 0;
    t->handle = NULL;
    return true;
}

static bool free_somehow(struct walker *w, CUdeviceptr p)
{
    return below(w, 2) ? DONE(cuMemFree_v2(p)) : DONE(cuMemFreeAsync(p, NULL));
}

static bool unmake_graph(struct walker *w, struct thing *t)
{
    if (t->p != 0 && !free_somehow(w, t->p))
        return false;
    t->p = 0;
    if (t->other != NULL && !DONE(cuGraphExecDestroy(t->other)))
        return false;
    t->other = NULL;
    return DONE(cuGraphDestroy(t->handle));
}

/* Takes a thing apart as far as the driver lets it. */
static bool unmake(struct walker *w, struct thing *t)
{
    CUcontext c;
    enter(w, &c);
    switch (t->kind) {
    case NOTHING: return true;
    case LINEAR:
    case PITCH:
    case ASYNC:
    case POOLED:
    case POOL_POINTER: return free_somehow(w, t->p);
    case MANAGED: return DONE(cuMemFree_v2(t->p));
    case PHYSICAL:
    case IMPORTED:
        if (below(w, 2) && t->memory != 0 && t->p != 0 && DONE(cuMemRelease(t->memory)))
            t->memory = 0; /* before what is mapped */
        return unmap(w, t) && (t->memory == 0 || DONE(cuMemRelease(t->memory)));
    case ARRAY:
    case ARRAY3D: return DONE(cuArrayDestroy(t->handle));
    case MIPMAP: return DONE(cuMipmappedArrayDestroy(t->handle));
    case MODULE: return DONE(cuModuleUnload(t->handle));
    case LIBRARY: return DONE(cuLibraryUnload(t->handle));
    case GRAPH: return unmake_graph(w, t);
    case OPENED: return DONE(cuIpcCloseMemHandle(t->p));
    default: return false;
    }
}

static void drop(struct walker *w, struct thing *t)
{
    drained(w, t);
    if (t->kind == MANAGED && !t->moved)
        away(t, -1);
    t->kind = NOTHING;
}

static bool measured(enum kind k) { return k == MODULE || k == LIBRARY; }

static void step_unmake(struct walker *w, struct thing *t)
{
    bool slow = measured(t->kind);
    if (slow)
        measure();
    if (unmake(w, t))
        drop(w, t);
    if (slow)
        measure_end();
}

/* Changes of what there is */

static void change(struct walker *w, struct thing *t)
{
    CUmemGenericAllocationHandle again;
    int fd;
    switch (t->kind) {
    case MANAGED:
        /* Where others measure, what it hid would show all at once. */
        if (all.alone && DONE(cuMemPrefetchAsync(t->p, t->size, t->moved ? CU_DEVICE_CPU : t->device, NULL))) {
            away(t, t->moved ? 1 : -1);
            t->moved = !t->moved;
        }
        break;
    case PHYSICAL:
    case IMPORTED:
        if (t->p == 0 && t->memory != 0) {
            if (!DONE(cuMemAddressReserve(&t->p, t->size, 0, 0, 0)))
                t->p = 0;
            else if (!DONE(cuMemMap(t->p, t->size, 0, t->memory, 0)))
                t->handle = t; /* reserved only */
        } else if (t->p != 0 && t->handle == NULL && below(w, 2)) {
            if (!DONE(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)t->p)))
                return;
            while (!DONE(cuMemRelease(again)))
                ;
        } else if (t->p != 0) {
            if (t->memory != 0)
                unmap(w, t);
        }
        if (t->kind == PHYSICAL && t->memory != 0 && below(w, 2) &&
            DONE(cuMemExportToShareableHandle(&fd, t->memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))) {
            if (DONE(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)))
                while (!DONE(cuMemRelease(again)))
                    ;
            close(fd);
        }
        break;
    case GRAPH:
        if (t->again && t->other != NULL && below(w, 2))
            MADE(cuGraphLaunch(t->other, NULL));
        else
            DONE(cuDeviceGraphMemTrim(t->device));
        break;
    default:
        if (!DONE(below(w, 2) ? cuCtxSynchronize() : cuStreamSynchronize(NULL)))
            return;
        if (all.alone && all.orphans == 0)
            all.settling = false;
    }
}

/* Contexts */

/* Whatever was in a context is gone with it; and what pools handed out, with the
 * last one of a device. */
static void gone(struct walker *w, CUcontext c, int device)
{
    bool last = __atomic_sub_fetch(&all.contexts[device], 1, __ATOMIC_RELAXED) == 0;
    for (int i = 0; i < HELD; i++) {
        struct thing *t = &w->held[i];
        bool pool = t->kind == ASYNC || t->kind == POOLED || t->kind == POOL_POINTER;
        bool stays = t->kind == PHYSICAL || t->kind == IMPORTED || t->kind == LIBRARY || t->kind == GRAPH || pool;
        if ((t->context == c && !stays) || (pool && last && t->device == device))
            drop(w, t);
    }
}

static void step_context(struct walker *w)
{
    unsigned i = below(w, OWN);
    int device = (int)below(w, DEVICES);
    CUcontext c = NULL;
    if (all.calm)
        return;
    measure();
    if (all.alone && below(w, 4) == 0) {
        /* It must be possible to make it again. */
        if (region_used(region_here(), 0) + 64 * MIB < limit_bytes(region_limit(region_here(), 0)) &&
            DONE(below(w, 2) ? cuDevicePrimaryCtxReset_v2(device) : cuDevicePrimaryCtxRelease_v2(device))) {
            unsigned flags;
            int active;
            gone(w, all.primary[device], device);
            while (cuDevicePrimaryCtxRelease_v2(device) != CUDA_SUCCESS && cuDevicePrimaryCtxGetState(device, &flags, &active) == 0 &&
                   active)
                ;
            while (!MADE(cuDevicePrimaryCtxRetain(&all.primary[device], device)))
                ;
            all.contexts[device]++;
        }
    } else if (w->own[i] == NULL) {
        if (MADE(cuCtxCreate_v2(&c, 0, device))) {
            DONE(cuCtxPopCurrent_v2(&c));
            w->own[i] = c;
            w->own_device[i] = device;
            __atomic_fetch_add(&all.contexts[device], 1, __ATOMIC_RELAXED);
        }
    } else {
        c = w->own[i];
        if (DONE(cuCtxDestroy_v2(c))) {
            w->own[i] = NULL;
            gone(w, c, w->own_device[i]);
        }
    }
    measure_end();
}

/* Between processes */

static void post(struct walker *w, struct thing *t)
{
    struct letter letter = {.kind = NOTHING, .size = t->size};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec body = {&letter, sizeof letter};
    struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1};
    int fd = -1, to = (w->process + 1 + (int)below(w, (unsigned)all.processes - 1)) % all.processes;
    if (t->kind == LINEAR && DONE(cuIpcGetMemHandle(&letter.ipc, t->p)))
        letter.kind = OPENED;
    if (t->kind == PHYSICAL && t->memory != 0 &&
        DONE(cuMemExportToShareableHandle(&fd, t->memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)))
        letter.kind = IMPORTED;
    if (t->kind == POOLED && !w->pool[t->pool].destroyed && DONE(cuMemPoolExportPointer(&letter.pointer, t->p)) &&
        DONE(cuMemPoolExportToShareableHandle(&fd, w->pool[t->pool].handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)))
        letter.kind = POOL_POINTER;
    if (fd >= 0) {
        m.msg_control = &control;
        m.msg_controllen = sizeof control;
        control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    }
    if (letter.kind != NOTHING)
        sendmsg(all.mail[to], &m, MSG_DONTWAIT); /* a full box is no matter */
    if (fd >= 0)
        close(fd);
}

/* Who sent a letter may be dead by now. */
static bool receive(struct walker *w, struct thing *t, int box)
{
    struct letter letter;
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec body = {&letter, sizeof letter};
    struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    CUmemoryPool pool;
    CUresult r = UNKNOWN;
    int fd = -1;
    if (recvmsg(box, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof letter)
        return false;
    if (CMSG_FIRSTHDR(&m) != NULL)
        memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
    *t = (struct thing){.kind = letter.kind, .size = letter.size, .device = enter(w, &t->context), .context = t->context};
    if (t->kind == OPENED)
        r = cuIpcOpenMemHandle_v2(&t->p, letter.ipc, 1);
    if (t->kind == IMPORTED)
        r = cuMemImportFromShareableHandle(&t->memory, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (t->kind == POOL_POINTER &&
        (r = cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)) == CUDA_SUCCESS) {
        r = cuMemPoolImportPointer(&t->p, pool, &letter.pointer);
        while (!DONE(cuMemPoolDestroy(pool)))
            ;
    }
    if (fd >= 0)
        close(fd);
    return r == CUDA_ERROR_INVALID_VALUE ? false : good(w, "opening another's memory", r, false);
}

static void some_step(struct walker *w, int box)
{
    struct thing *t = &w->held[below(w, HELD)];
    CUcontext c;
    switch (below(w, 16)) {
    case 0: step_pool(w); return;
    case 1: if (below(w, 4) == 0) step_context(w); return;
    case 2:
    case 3: enter(w, &c); change(w, t); return;
    case 4:
        if (box >= 0) {
            enter(w, &c);
            post(w, t);
        }
        return;
    case 5:
        if (box < 0 || t->kind != NOTHING)
            return;
        if (!receive(w, t, box))
            t->kind = NOTHING;
        return;
    default:
        if (t->kind != NOTHING)
            step_unmake(w, t);
        else if (!make(w, t))
            t->kind = NOTHING;
    }
}

/* One step. box is where letters come from, or -1. */
static void step(struct walker *w, int box)
{
    pthread_rwlock_rdlock(&all.measured);
    some_step(w, box);
    pthread_rwlock_unlock(&all.measured);
}

/* Gives back everything. */
static void walk_home(struct walker *w)
{
    pthread_rwlock_rdlock(&all.measured);
    for (int i = 0; i < HELD; i++)
        for (int tries = 0; w->held[i].kind != NOTHING && tries < 20; tries++)
            step_unmake(w, &w->held[i]);
    for (int i = 0; i < POOLS; i++)
        while (w->pool[i].handle != NULL && !w->pool[i].destroyed && !DONE(cuMemPoolDestroy(w->pool[i].handle)))
            ;
    measure();
    for (int i = 0; i < OWN; i++)
        while (w->own[i] != NULL && !DONE(cuCtxDestroy_v2(w->own[i])))
            ;
    measure_end();
    pthread_rwlock_unlock(&all.measured);
}

#endif
