/* Threads that allocate and free at random by every call there is: afterwards, and
 * at each barrier, our count is the driver's. Some have the smallest stack there is. */
#include <limits.h>
#include <pthread.h>

#include "seen.h"

enum { THREADS = 6, ROUNDS = 12, STEPS = 200, HELD = 24 };

static pthread_barrier_t barrier;
static CUcontext context;
static unsigned long wrong;

struct thing {
    enum { NOTHING, LINEAR, PITCH, ASYNC, PHYSICAL, ARRAY, MIPMAP, KINDS } kind;
    union {
        CUdeviceptr p;
        CUmemGenericAllocationHandle h;
        CUarray a;
        CUmipmappedArray m;
    };
};

static unsigned rnd(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static CUresult make(struct thing *t, unsigned *seed)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUDA_ARRAY3D_DESCRIPTOR desc = {1 + rnd(seed) % 300, rnd(seed) % 100, rnd(seed) % 4, CU_AD_FORMAT_FLOAT, 4, 0};
    size_t pitch;
    t->kind = 1 + rnd(seed) % (KINDS - 1);
    switch (t->kind) {
    case LINEAR: return cuMemAlloc_v2(&t->p, 1 + rnd(seed) % (3 * MIB));
    case PITCH: return cuMemAllocPitch_v2(&t->p, &pitch, 1 + rnd(seed) % 5000, 1 + rnd(seed) % 100, 4);
    case ASYNC: return cuMemAllocAsync(&t->p, 1 + rnd(seed) % (20 * MIB), NULL);
    case PHYSICAL: return cuMemCreate(&t->h, (1 + rnd(seed) % 4) * 2 * MIB, &prop, 0);
    case ARRAY: return cuArray3DCreate_v2(&t->a, &desc);
    default: return cuMipmappedArrayCreate(&t->m, &desc, 3);
    }
}

static CUresult unmake(struct thing *t, unsigned *seed)
{
    unsigned kind = t->kind;
    t->kind = NOTHING;
    switch (kind) {
    case NOTHING: return CUDA_SUCCESS;
    case LINEAR:
    case PITCH: return cuMemFree_v2(t->p);
    case ASYNC: return rnd(seed) % 2 ? cuMemFree_v2(t->p) : cuMemFreeAsync(t->p, NULL);
    case PHYSICAL: return cuMemRelease(t->h);
    case ARRAY: return cuArrayDestroy(t->a);
    default: return cuMipmappedArrayDestroy(t->m);
    }
}

static void *work(void *arg)
{
    unsigned seed = 7 + (unsigned)(uintptr_t)arg;
    static struct thing all[THREADS][HELD];
    struct thing *things = all[(uintptr_t)arg];
    unsigned long bad = cuCtxSetCurrent(context) != CUDA_SUCCESS;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < STEPS; i++) {
            struct thing *t = &things[rnd(&seed) % HELD];
            CUresult r = t->kind ? unmake(t, &seed) : make(t, &seed);
            if (r == CUDA_ERROR_OUT_OF_MEMORY)
                t->kind = NOTHING;
            else
                bad += r != CUDA_SUCCESS;
        }
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier); /* the main thread looks in between */
    }
    for (int i = 0; i < HELD; i++)
        bad += unmake(&things[i], &seed) != CUDA_SUCCESS;
    __atomic_fetch_add(&wrong, bad, __ATOMIC_RELAXED);
    return NULL;
}

int main(void)
{
    pthread_t t[THREADS];
    pthread_attr_t small;
    context = start();
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    pthread_attr_init(&small);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EQ(pthread_attr_setstacksize(&small, (size_t)PTHREAD_STACK_MIN), 0);
#endif
    for (uintptr_t i = 0; i < THREADS; i++)
        EQ(pthread_create(&t[i], i % 2 ? &small : NULL, work, (void *)i), 0);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&barrier);
        OK(cuCtxSynchronize());
        SAME();
        CHECK(region_used(region_here(), 0) <= limit_bytes(region_limit(region_here(), 0)));
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    EQ(wrong, 0);
    OK(cuCtxSynchronize());
    SAME();
    EQ(seen(RATION_DATA), 0);
    EQ(fakegpu_errors(), 0);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    return FINISH();
}
