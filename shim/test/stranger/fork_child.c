/* A fork child has the driver's files that its parent had open, and with them keeps the parent's
 * memory, whatever becomes of the parent, until it ends or becomes another program. Until
 * then those bytes are not granted again. A child that was made before the driver was started
 * keeps nothing. */
#include "stranger.h"

enum { HELD = 600 }; /* MiB */
#define OUTLIVED "(ended; a fork child has its files of the driver open) 700 MiB"

/* The child waits until the gate is shut. It was made as "how" says. */
static void child(const char *how, int gate, int to)
{
	char fd[12], byte;
	if (!strcmp(how, "exec")) {
		snprintf(fd, sizeof fd, "%d", gate);
		execl("/proc/self/exe", "fork_child", "waits", fd, (char *)NULL);
	}
	(void)!write(to, "", 1);
	_exit(read(gate, &byte, 1) != 0);
}

static int waits(int gate)
{
	char byte;
	return read(gate, &byte, 1) != 0;
}

/* A process that holds memory and has a child, and ends. */
static int parent(const char *how, int gate, int to)
{
	CUdeviceptr p;
	char byte;
	int from[2];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (pipe(from) != 0)
		return 1;
	fcntl(from[1], F_SETFD, FD_CLOEXEC); /* closed by exec, when the driver's files are */
	if (!strcmp(how, "before") && fork() == 0)
		child(how, gate, from[1]);
	start();
	OK(cuMemAlloc_v2(&p, HELD * MIB));
	if (strcmp(how, "before") && (strcmp(how, "bare") ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) == 0)
		child(how, gate, from[1]);
	close(from[1]);
	/* The child is there; or another program runs in its place. */
	EQ(read(from[0], &byte, 1), strcmp(how, "exec") ? 1 : 0);
	if (checks_failed || write(to, "", 1) != 1)
		return 1;
	if (!strcmp(how, "exits"))
		exit(0);
	pause();
	return 1;
}

static void outlived(const char *how, bool keeps)
{
	int gate[2], from[2], status;
	uint64_t deaths = region_here()->m->header.death_next;
	unsigned said = log_lines(OUTLIVED);
	CUdeviceptr p;
	char byte;
	EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	start(); /* 100 MiB of 1000 */
	EQ(pipe(gate) | pipe(from), 0);
	fcntl(gate[1], F_SETFD, FD_CLOEXEC);
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		char a[12], b[12];
		snprintf(a, sizeof a, "%d", gate[0]);
		snprintf(b, sizeof b, "%d", from[1]);
		execl("/proc/self/exe", "fork_child", how, a, b, (char *)NULL);
		_exit(127);
	}
	EQ(read(from[0], &byte, 1), 1);
	if (strcmp(how, "exits"))
		EQ(kill(pid, SIGKILL), 0);
	EQ(waitpid(pid, &status, 0), pid);
	EQ(in_use(0), (keeps ? 200 + HELD : 100) * MIB);
	if (keeps) {
		EQ(cuMemAlloc_v2(&p, 400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
		EQ(region_used(region_here(), 0), (200 + HELD) * MIB);
		close(gate[1]);
		EQ(waitpid(-1, &status, 0) > 0, true); /* the child, which is ours now */
		EQ(log_lines(OUTLIVED) - said, 1);
	}
	OK(cuMemAlloc_v2(&p, 400 * MIB));
	EQ(in_use(0), 500 * MIB);
	BALANCED(0);
	EQ(region_here()->m->header.death_next - deaths, strcmp(how, "exits") ? 1 : 0);
	if (!keeps) {
		close(gate[1]);
		EQ(waitpid(-1, &status, 0) > 0, true);
	}
}

static void forked(void) { outlived("fork", true); }
static void cloned(void) { outlived("bare", true); }
static void exits(void) { outlived("exits", true); }
static void forked_before(void) { outlived("before", false); }
static void becomes(void) { outlived("exec", false); }

int main(int argc, char **argv)
{
	static const struct part parts[] = {{"forked", forked},           {"cloned", cloned},
					    {"exits first", exits},       {"forked before the driver", forked_before},
					    {"becomes another", becomes}, {NULL, NULL}};
	if (argc == 3)
		return waits(atoi(argv[2]));
	if (argc == 4)
		return parent(argv[1], atoi(argv[2]), atoi(argv[3]));
	return run_parts(argc, argv, parts, true, __FILE__);
}
