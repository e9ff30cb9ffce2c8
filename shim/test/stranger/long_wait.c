/* A wait for another thread of more than 100 ms has a line in the log; one of less has none. The
 * clock goes on by as much as the test says each time it is read, and by itself not at all. */
#include "park.h"

static int64_t now_ms, step_ms;

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *t)
{
	long a[6] = {id, (long)t};
	if (id != CLOCK_MONOTONIC)
		return (int)raw_syscall(SYS_clock_gettime, a);
	int64_t ms = __atomic_add_fetch(&now_ms, __atomic_load_n(&step_ms, __ATOMIC_ACQUIRE), __ATOMIC_ACQ_REL);
	*t = (struct timespec){1000 + ms / 1000, (long)(ms % 1000) * 1000000};
	return 0;
}

static CUresult retain(struct task *t) { return cuDevicePrimaryCtxRetain(&t->made, 1); }

/* One thread makes the primary context of device 1, and another waits for it. */
static void wait_for_another(int64_t step)
{
	struct task a = {.run = retain}, b = {.run = retain};
	__atomic_store_n(&step_ms, step, __ATOMIC_RELEASE);
	fakegpu_hold("cuDevicePrimaryCtxRetain", 1);
	task_begin(&a, NULL);
	task_settle(&a, "cuDevicePrimaryCtxRetain", 1);
	uint32_t before = __atomic_load_n(&futex_waits, __ATOMIC_ACQUIRE);
	task_begin(&b, NULL);
	for (unsigned ms = 0; ms < LONG && __atomic_load_n(&futex_waits, __ATOMIC_ACQUIRE) == before; ms++)
		pause_ms(1);
	fakegpu_open("cuDevicePrimaryCtxRetain");
	JOIN(&a);
	JOIN(&b);
	OK(a.result);
	OK(b.result);
	OK(cuDevicePrimaryCtxReset_v2(1));
}

int main(void)
{
	OK(cuInit(0));
	wait_for_another(90);
	LOGGED(" waited ", 0);
	wait_for_another(130);
	LOGGED(": waited 130 ms for another thread that makes or ends the primary context\n", 1);
	LOGGED(" waited ", 1);
	return FINISH();
}
