/* A process in whose turn to look for the host's PID the driver does not answer: another one looks
 * at that turn a bounded number of times, a millisecond apart, and passes it over. Looks are
 * counted, and time stands still. In a PID namespace, where the host's PID is not known. */
#include "stranger.h"

static uint64_t naps, counts; /* counts: it counts, and does not sleep */

__attribute__((visibility("default"))) int nanosleep(const struct timespec *t, struct timespec *left)
{
	if (load_acquire(&counts)) {
		fetch_add(&naps, 1);
		return 0;
	}
	return (int)syscall(SYS_nanosleep, t, left);
}

static CUresult retain(struct task *t) { return cuDevicePrimaryCtxRetain(&t->made, 0); }

static void inside(void)
{
	struct task a = {.run = retain};
	OK(cuInit(0));
	fakegpu_hold("cuDevicePrimaryCtxRetain", 1);
	task_begin(&a, NULL);
	EQ(fakegpu_held("cuDevicePrimaryCtxRetain", 1, LONG), 1);
	CHECK(load_acquire(&region_here()->m->header.host_pid_lock) & 0xffff); /* it has its turn */
	EQ(AGAIN("other", NULL), 0);
	fakegpu_open("cuDevicePrimaryCtxRetain");
	JOIN(&a);
	OK(a.result);
}

int main(int argc, char **argv)
{
	CUcontext c;
	if (argc > 1 && !strcmp(argv[1], "other")) {
		OK(cuInit(0));
		store_release(&counts, 1);
		OK(cuDevicePrimaryCtxRetain(&c, 0));
		CHECK(load_acquire(&naps) >= 1 && load_acquire(&naps) <= 1100);
		fflush(NULL);
		_exit(checks_failed > 0);
	}
	in_pid_namespace(inside);
	return FINISH();
}
