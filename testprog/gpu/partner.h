/* A second process of a program, for what takes two. It goes from step to step as
 * its parent does (steps.h), but speaks to its parent instead of the tester, and
 * ends when its parent has ended, however that came about: its input ends then. */
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
	int line; /* to its standard input, and from its standard output */
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

/* partner_hear waits until the partner is at a step. What it says instead is said
 * here in its place. */
static inline void partner_hear(struct partner *p, const char *name)
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
		fail("the other process: said \"%s\", not that it is at %s", line, name);
}

/* partner_go lets it go on from where it is. */
static inline void partner_go(struct partner *p)
{
	if (send(p->line, "\n", 1, MSG_NOSIGNAL) != 1)
		fail("the other process: gone");
}

/* partner_end lets it go on from its last step, and waits for its end. */
static inline void partner_end(struct partner *p)
{
	int status;
	partner_go(p);
	while (waitpid(p->pid, &status, 0) < 0)
		if (errno != EINTR)
			fail("waitpid: %s", strerror(errno));
	if (status != 0)
		fail("the other process: ended with wait status 0x%x", (unsigned)status);
	close(p->line);
}

#endif
