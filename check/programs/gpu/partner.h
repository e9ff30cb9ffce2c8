/* A second process of a program. It goes from step to step as its parent does (steps.h),
 * but talks to its parent instead of the tester. It ends when its parent has ended, since
 * its input ends then. */
#ifndef PARTNER_H
#define PARTNER_H

#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>

#include "steps.h"

struct partner {
	pid_t pid;
	int line; /* socket: its standard input and output */
};

/* partner_fork returns true in the new process. */
static inline bool partner_fork(struct partner *p)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		fail("socketpair: %s", strerror(errno));
	p->pid = fork();
	if (p->pid < 0)
		fail("fork: %s", strerror(errno));
	p->line = ends[0];
	if (p->pid == 0) {
		if (dup2(ends[1], STDIN_FILENO) < 0 || dup2(ends[1], STDOUT_FILENO) < 0)
			_exit(STEPS_FAILED);
		close(ends[0]);
	}
	close(ends[1]);
	return p->pid == 0;
}

/* partner_at waits until the partner is at a step. If it prints skip or fail, this process
 * does the same. */
static inline void partner_at(struct partner *p, const char *name)
{
	char line[256], wanted[64];
	size_t n = 0;
	ssize_t got;
	do {
		got = read(p->line, line + n, 1);
	} while ((got < 0 && errno == EINTR) || (got == 1 && line[n] != '\n' && ++n < sizeof line - 1));
	line[n] = '\0';
	snprintf(wanted, sizeof wanted, "step %s ", name);
	if (!strncmp(line, "skip ", 5))
		skip("%s", line + 5);
	if (!strncmp(line, "fail ", 5))
		fail("the other process: %s", line + 5);
	if (strncmp(line, wanted, strlen(wanted)) != 0)
		fail("the other process: printed \"%s\", not step %s", line, name);
}

/* partner_next lets the partner leave its step. */
static inline void partner_next(struct partner *p)
{
	if (send(p->line, "\n", 1, MSG_NOSIGNAL) != 1)
		fail("the other process: gone");
}

/* partner_end lets the partner leave its last step, and waits for its end. */
static inline void partner_end(struct partner *p)
{
	int status;
	partner_next(p);
	while (waitpid(p->pid, &status, 0) < 0)
		if (errno != EINTR)
			fail("waitpid: %s", strerror(errno));
	if (status != 0)
		fail("the other process: ended with wait status 0x%x", (unsigned)status);
	close(p->line);
}

#endif
