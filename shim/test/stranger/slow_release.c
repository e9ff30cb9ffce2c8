/* A process that ends has its memory until the driver's files are released, which the kernel
 * does after it has dropped the process's locks and before it makes it a zombie. Until then
 * what it held is not granted to another process, however it ends, and an orderly end
 * is no death.
 *
 * Here the release takes as long as the test wants: the process has a pipe open, and the kernel
 * needs the pipe's lock to release it; that a thread of the test has, which writes into
 * the pipe from memory that is not there yet. */
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "../../region/internal.h"
#include "stranger.h"

enum { HIGH = 700, HELD = 600 }; /* a descriptor; MiB */

static struct stall {
	int uffd, pipe[2];
	char *page;
	pthread_t thread;
} stall;

static void *stall_write(void *arg)
{
	EQ(write(stall.pipe[1], stall.page, 1), 1);
	return arg;
}

/* stall_prepare is false where this user may not do that. */
static bool stall_prepare(void)
{
	struct uffdio_api api = {.api = UFFD_API};
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	stall.uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (stall.uffd < 0)
		return false;
	stall.page = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = {.range = {(uintptr_t)stall.page, page}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	EQ(ioctl(stall.uffd, UFFDIO_API, &api), 0);
	EQ(ioctl(stall.uffd, UFFDIO_REGISTER, &range), 0);
	EQ(pipe(stall.pipe), 0);
	return true;
}

/* From here on no file of the pipe is released. */
static void stall_begin(void)
{
	struct uffd_msg fault;
	EQ(pthread_create(&stall.thread, NULL, stall_write, NULL), 0);
	EQ(read(stall.uffd, &fault, sizeof fault), sizeof fault); /* comes when the thread has the pipe's lock */
}

static void stall_end(void)
{
	struct uffdio_zeropage zero = {.range = {(uintptr_t)stall.page, (uintptr_t)sysconf(_SC_PAGESIZE)}};
	EQ(ioctl(stall.uffd, UFFDIO_ZEROPAGE, &zero), 0);
	EQ(pthread_join(stall.thread, NULL), 0);
}

/* The process that ends, with the pipe open as the lowest or the highest of its files: the first
 * or the last that it got, and so the last or the first that the kernel releases of those with a
 * descriptor. */
static int victim(const char *how, const char *pipe, int from, int to)
{
	char path[32], byte;
	CUdeviceptr p;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(path, sizeof path, "/proc/self/fd/%s", pipe);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return 1;
	if (!strstr(how, "foreign") && (fcntl(fd, F_DUPFD_CLOEXEC, HIGH) < 0 || close(fd) != 0))
		return 1;
	start();
	OK(cuMemAlloc_v2(&p, HELD * MIB));
	if (strstr(how, "alone"))
		lose_keep();
	if (checks_failed || write(to, "", 1) != 1 || read(from, &byte, 1) != 1)
		return 1;
	if (!strncmp(how, "exit", 4))
		exit(0);
	if (!strncmp(how, "_exit", 5))
		_exit(0);
	if (!strncmp(how, "exec", 4)) {
		snprintf(path, sizeof path, "%d", to);
		execl("/proc/self/exe", "slow_release", "became", path, (char *)NULL);
	}
	pause();
	return 1;
}

static pid_t victim_start(const char *how, int *in, int *out)
{
	int to[2], from[2];
	char byte;
	EQ(pipe(to) | pipe(from), 0);
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		char p[12], a[12], b[12];
		snprintf(p, sizeof p, "%d", stall.pipe[1]);
		snprintf(a, sizeof a, "%d", to[0]);
		snprintf(b, sizeof b, "%d", from[1]);
		execl("/proc/self/exe", "slow_release", how, p, a, b, (char *)NULL);
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	*in = from[0];
	*out = to[1];
	EQ(read(from[0], &byte, 1), 1);
	return pid;
}

static unsigned slot_of(pid_t pid)
{
	struct ration_region *m = region_here()->m;
	for (unsigned i = 0; i < RATION_SLOTS; i++)
		if (status_state(load_acquire(&m->status[i])) == RATION_SLOT_ACTIVE && load_acquire(&m->slots[i].pid) == (uint64_t)pid)
			return i;
	CHECK(!"its slot");
	return 0;
}

/* how: kill, exit, _exit or exec; "alone": it has only the lock of a process; "foreign": its PID
 * means nothing to us. */
static void ends(const char *how)
{
	CUdeviceptr p;
	int in, out, status;
	uint64_t reaped = region_here()->m->header.counters.reaped, deaths = region_here()->m->header.death_next;
	bool orderly = !strncmp(how, "exit", 4), lives_on = !strncmp(how, "exec", 4);
	if (!stall_prepare()) {
		fprintf(stderr, "slow_release.c: %s is left out: no userfaultfd for faults in the kernel\n", how);
		return;
	}
	start(); /* 100 MiB of 1000 */
	pid_t pid = victim_start(how, &in, &out);
	unsigned slot = slot_of(pid);
	if (strstr(how, "foreign")) {
		store_release(&region_here()->m->slots[slot].pidns, 1);
		store_release(&region_here()->m->slots[slot].host_pid, 0);
	}
	EQ(region_used(region_here(), 0), (200 + HELD) * MIB);
	stall_begin();
	if (!strncmp(how, "kill", 4))
		EQ(kill(pid, SIGKILL), 0);
	else
		EQ(write(out, "", 1), 1);
	for (unsigned ms = 0; ms < LONG && region_locked_by(region_here(), slot); ms++)
		pause_ms(1);
	EQ(region_locked_by(region_here(), slot), 0);
	/* Its lock is free, and it is no zombie. */
	EQ(waitpid(pid, &status, WNOHANG), 0);
	EQ(in_use(0), (200 + HELD) * MIB);
	EQ(cuMemAlloc_v2(&p, 400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(region_used(region_here(), 0), (200 + HELD) * MIB);
	WITHIN_LIMIT(0);
	stall_end();
	if (lives_on) {
		char byte;
		EQ(read(in, &byte, 1), 1); /* the other program runs */
	} else {
		EQ(waitpid(pid, &status, 0), pid);
	}
	EQ(region_used(region_here(), 0), (200 + HELD) * MIB); /* for the next process that needs it */
	OK(cuMemAlloc_v2(&p, 400 * MIB));
	BALANCED(0);
	EQ(in_use(0), 500 * MIB);
	EQ(region_here()->m->header.counters.reaped - reaped, !orderly);
	EQ(region_here()->m->header.death_next - deaths, !orderly);
	if (lives_on) {
		EQ(kill(pid, SIGKILL), 0);
		EQ(waitpid(pid, &status, 0), pid);
	}
}

static void killed(void) { ends("kill"); }
static void killed_alone(void) { ends("kill alone"); }
static void killed_foreign(void) { ends("kill foreign"); }
static void exits(void) { ends("exit"); }
static void exits_alone(void) { ends("exit alone"); }
static void exits_foreign(void) { ends("exit foreign"); }
static void exits_at_once(void) { ends("_exit"); }
static void becomes(void) { ends("exec"); }

int main(int argc, char **argv)
{
	static const struct part parts[] = {{"killed", killed},
					    {"killed alone", killed_alone},
					    {"killed, foreign", killed_foreign},
					    {"exits", exits},
					    {"exits alone", exits_alone},
					    {"exits, foreign", exits_foreign},
					    {"exits at once", exits_at_once},
					    {"becomes another", becomes},
					    {NULL, NULL}};
	if (argc == 3) { /* became */
		(void)!write(atoi(argv[2]), "", 1);
		pause();
	}
	if (argc == 5)
		return victim(argv[1], argv[2], atoi(argv[3]), atoi(argv[4]));
	return run_parts(argc, argv, parts, true, __FILE__);
}
