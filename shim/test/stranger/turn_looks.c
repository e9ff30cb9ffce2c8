/* A process in whose turn to look for the host's PID the driver does not answer: another one looks
 * at that turn a bounded number of times, a millisecond apart, and passes it over. Looks are
 * counted, and time stands still. In a PID namespace, where the host's PID is not known. It looks
 * 200 times if it cannot see that process, and 1000 times if it sees that it runs. */
#include <sys/mount.h>

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

static void inside_with(const char *other)
{
	struct task a = {.run = retain};
	OK(cuInit(0));
	fakegpu_hold("cuDevicePrimaryCtxRetain", 1);
	task_begin(&a, NULL);
	EQ(fakegpu_held("cuDevicePrimaryCtxRetain", 1, LONG), 1);
	CHECK(load_acquire(&region_here()->m->header.host_pid_lock) & 0xffff); /* it has its turn */
	EQ(AGAIN(other, NULL), 0);
	fakegpu_open("cuDevicePrimaryCtxRetain");
	JOIN(&a);
	OK(a.result);
}

static void unseen(void) { inside_with("unseen"); }

/* With the namespace's own /proc. */
static void seen(void)
{
	EQ(unshare(CLONE_NEWNS), 0);
	EQ(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	EQ(mount("proc", "/proc", "proc", 0, NULL), 0);
	inside_with("seen");
}

int main(int argc, char **argv)
{
	CUcontext c;
	if (argc > 1) {
		bool sees = !strcmp(argv[1], "seen");
		OK(cuInit(0));
		store_release(&counts, 1);
		OK(cuDevicePrimaryCtxRetain(&c, 0));
		CHECK(load_acquire(&naps) >= (sees ? 900 : 1) && load_acquire(&naps) <= (sees ? 1100 : 220));
		fflush(NULL);
		_exit(checks_failed > 0);
	}
	pid_t first = fork(); /* a process can have one new namespace for its children */
	if (first == 0) {
		in_pid_namespace(unseen);
		fflush(NULL);
		_exit(checks_failed > 0);
	}
	int status;
	EQ(waitpid(first, &status, 0), first);
	EQ(status, 0);
	char region[4096]; /* another job, which does not know what a context costs */
	snprintf(region, sizeof region, "%s.seen", getenv("RATION_REGION"));
	setenv("RATION_REGION", region, 1);
	in_pid_namespace(seen);
	return FINISH();
}
