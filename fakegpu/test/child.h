/* Processes of a test: this program, started again in a role. */
#ifndef FAKEGPU_TEST_CHILD_H
#define FAKEGPU_TEST_CHILD_H

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "check.h"

struct child {
	pid_t pid;
	int from, to; /* pipes: its output, its input */
};

/* Starts this program in a role; it says one byte when it is ready, and ends when
 * its input does. */
static struct child spawn(const char *role)
{
	int out[2], in[2];
	struct child c = {-1, -1, -1};
	if (pipe2(out, O_CLOEXEC) != 0 || pipe2(in, O_CLOEXEC) != 0)
		return c;
	c.pid = fork();
	if (c.pid == 0) {
		dup2(out[1], 1);
		dup2(in[0], 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* no process outlives the test */
		execl("/proc/self/exe", "child", role, (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	close(in[0]);
	c.from = out[0];
	c.to = in[1];
	return c;
}

/* Ends a child by a signal, or by the end of its input, and returns its status. */
static int end(struct child c, int sig)
{
	int status = 0;
	if (sig != 0)
		kill(c.pid, sig);
	close(c.to);
	close(c.from);
	waitpid(c.pid, &status, 0);
	return status;
}

#endif
