/* Two real-time threads of different priority on one CPU: where the lower one is
 * interrupted in the middle of a call, the higher one sleeps until it has gone on. One that
 * spins, or yields, has the CPU for ever. */
#include <sched.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "stranger.h"

enum { LOW = 10, HIGH = 20, WAKES = 2000 };

static sem_t go;
static uint32_t interrupted, over;
static _Thread_local bool is_low;

/* The library maps memory in the middle of some calls: there the higher thread runs. A
 * program's own mmap comes before the C library's. */
__attribute__((visibility("default"))) void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (is_low) {
        __atomic_fetch_add(&interrupted, 1, __ATOMIC_RELAXED);
        sem_post(&go);
    }
    return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
}

static CUresult low(struct task *t)
{
    CUdeviceptr p[64];
    is_low = true;
    for (int i = 0; i < 64; i++)
        if (cuMemAlloc_v2(&p[i], MIB) != CUDA_SUCCESS)
            return CUDA_ERROR_UNKNOWN;
    is_low = false;
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE))
        for (int i = 0; i < 64; i++)
            if (cuMemFree_v2(p[i]) != CUDA_SUCCESS || cuMemAlloc_v2(&p[i], MIB) != CUDA_SUCCESS)
                return CUDA_ERROR_UNKNOWN;
    (void)t;
    return CUDA_SUCCESS;
}

/* Addresses that are none reach every part of the library's records. */
static CUresult high(struct task *t)
{
    CUdeviceptr p;
    (void)t;
    for (int n = 0; n < WAKES; n++) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += 50000;
        soon.tv_sec += soon.tv_nsec / 1000000000;
        soon.tv_nsec %= 1000000000;
        if (sem_timedwait(&go, &soon) == 0)
            for (CUdeviceptr none = 1; none < 512; none++)
                (void)!cuMemFree_v2(none);
        if (cuMemAlloc_v2(&p, MIB) != CUDA_SUCCESS || cuMemFree_v2(p) != CUDA_SUCCESS)
            return CUDA_ERROR_UNKNOWN;
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

/* begin starts a task with a priority on a CPU of its own choice. */
static bool begin(struct task *t, CUcontext c, int priority, int cpu)
{
    pthread_attr_t a;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    t->context = c;
    pthread_attr_init(&a);
    pthread_attr_setinheritsched(&a, PTHREAD_EXPLICIT_SCHED);
    pthread_attr_setschedpolicy(&a, SCHED_FIFO);
    pthread_attr_setschedparam(&a, &(struct sched_param){.sched_priority = priority});
    pthread_attr_setaffinity_np(&a, sizeof set, &set);
    return pthread_create(&t->thread, &a, task_thread, t) == 0;
}

int main(void)
{
    struct task l = {.run = low}, h = {.run = high};
    cpu_set_t mine_;
    int cpu = 0;
    sem_init(&go, 0, 0);
    CUcontext c = start();
    EQ(sched_getaffinity(0, sizeof mine_, &mine_), 0);
    while (!CPU_ISSET(cpu, &mine_))
        cpu++;
    if (!begin(&h, c, HIGH, cpu)) {
        fprintf(stderr, "realtime.c: skipped, as threads may not have a real-time priority here\n");
        return FINISH();
    }
    CHECK(begin(&l, c, LOW, cpu));
    JOIN(&h);
    JOIN(&l);
    OK(h.result);
    OK(l.result);
    CHECK(interrupted > 0); /* or nothing was tried */
    SAME();
    return FINISH();
}
