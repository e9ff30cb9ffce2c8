/* Two real-time threads of different priority on one CPU: where the lower one is
 * interrupted in the middle of a call, the higher one sleeps until it has gone on. One that
 * spins, or yields, has the CPU for ever. */
#include <sys/mman.h>
#include <sys/syscall.h>

#include "realtime.h"

enum { WAKES = 2000 };

static uint32_t over;

/* The library maps memory in the middle of some calls: there the higher thread runs. A
 * program's own mmap comes before the C library's. */
__attribute__((visibility("default"))) void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
	interrupt_low();
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

int main(void)
{
	struct task l = {.run = low}, h = {.run = high};
	CUcontext c = start();
	if (realtime_run(&l, &h, c))
		SAME();
	return FINISH();
}
