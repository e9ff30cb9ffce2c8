/* usage: syscalls [-o FILE] PROGRAM ARG...
 *
 * Runs a program and counts the system calls that all its threads and children make while
 * it counts: a number that does not vary with the load of the machine, as time does. The
 * program says from when to when by a system call that does nothing (marks.h). FILE gets a
 * line for each system call that was made, `NAME COUNT`. Ends as the program does. */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "marks.h"

enum { CALLS = 1024 };

static const char *const names[CALLS] = {
#include "syscall_names.h"
};

static uint64_t count[CALLS]; /* since the program began, while it counts */
static uint64_t since;        /* all of them, since the last mark */
static bool counting;

static void syscalls_die(const char *what)
{
	fprintf(stderr, "syscalls: %s: %s\n", what, strerror(errno));
	exit(125);
}

/* A thread is about to make a system call, or, where info says so, has made one. */
static void syscalls_at(pid_t thread)
{
	struct __ptrace_syscall_info info;
	if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) <= 0 || info.op != PTRACE_SYSCALL_INFO_ENTRY)
		return; /* ESRCH: it was killed meanwhile */
	if (info.entry.nr == SYS_getpriority && info.entry.args[0] == MARK) {
		uint64_t answer = info.entry.args[2];
		if (answer && ptrace(PTRACE_POKEDATA, thread, answer, since) && errno != ESRCH)
			syscalls_die("answering a mark");
		counting = info.entry.args[1];
		since = 0;
	} else if (counting && info.entry.nr < CALLS) {
		count[info.entry.nr]++;
		since++;
	}
}

/* Deals with one stop, and returns the signal that the thread goes on with. */
static int syscalls_stop(pid_t thread, int status)
{
	int sig = WSTOPSIG(status), event = status >> 16;
	if (sig == (SIGTRAP | 0x80)) {
		syscalls_at(thread);
		return 0;
	}
	return event ? 0 : sig;
}

/* Goes on until all have ended; returns the status of the first. */
static int syscalls_trace(pid_t first)
{
	int status, result = 0;
	pid_t thread;
	while ((thread = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR) {
		if (thread < 0)
			continue;
		if (!WIFSTOPPED(status)) {
			if (thread == first)
				result = status;
			continue;
		}
		/* Stopped by job control: it stays so until it is continued. */
		bool stopped = status >> 16 == PTRACE_EVENT_STOP && WSTOPSIG(status) != SIGTRAP;
		int sig = stopped ? 0 : syscalls_stop(thread, status);
		if (ptrace(stopped ? PTRACE_LISTEN : PTRACE_SYSCALL, thread, 0, sig) && errno != ESRCH)
			syscalls_die("going on");
	}
	return result;
}

static pid_t syscalls_start(char **argv)
{
	int go[2];
	char c;
	if (pipe(go))
		syscalls_die("pipe");
	pid_t child = fork();
	if (child < 0)
		syscalls_die("fork");
	if (child == 0) {
		close(go[1]);
		if (read(go[0], &c, 1) != 1)
			_exit(125);
		close(go[0]);
		execvp(argv[0], argv);
		syscalls_die(argv[0]);
	}
	close(go[0]);
	if (ptrace(PTRACE_SEIZE, child, 0,
		   PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC |
			   PTRACE_O_EXITKILL))
		syscalls_die("tracing (is ptrace allowed here?)");
	/* Stopped once, it goes on from call to call. */
	if (ptrace(PTRACE_INTERRUPT, child, 0, 0) || write(go[1], "", 1) != 1)
		syscalls_die("starting");
	close(go[1]);
	return child;
}

static void syscalls_write(const char *path)
{
	FILE *out = fopen(path, "we");
	if (out == NULL)
		syscalls_die(path);
	for (unsigned i = 0; i < CALLS; i++)
		if (count[i] > 0)
			fprintf(out, "%s %llu\n", names[i] ? names[i] : "unnamed", (unsigned long long)count[i]);
	if (fclose(out))
		syscalls_die(path);
}

int main(int argc, char **argv)
{
	const char *path = NULL;
	argv++;
	if (argc > 2 && !strcmp(argv[0], "-o")) {
		path = argv[1];
		argv += 2;
	}
	if (argv[0] == NULL) {
		fprintf(stderr, "usage: syscalls [-o FILE] PROGRAM ARG...\n");
		return 64;
	}
	int status = syscalls_trace(syscalls_start(argv));
	if (path)
		syscalls_write(path);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
