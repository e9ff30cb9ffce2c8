/* Worker processes of a test: this program, started again in the role "work", which does a step for each byte of its input
 * and says a byte for each that it has done. */
#ifndef SHIM_TEST_WORKER_H
#define SHIM_TEST_WORKER_H

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct worker {
	pid_t pid;
	int to, from;
};

/* worker_begin starts a worker with variables of the environment: names and values, up to a NULL. */
static struct worker worker_begin(const char *const *variables)
{
	int to[2], from[2];
	struct worker w;
	char ready = 0;
	EQ(pipe2(to, O_CLOEXEC), 0);
	EQ(pipe2(from, O_CLOEXEC), 0);
	w = (struct worker){fork(), to[1], from[0]};
	if (w.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(to[0], 0);
		dup2(from[1], 1);
		for (; variables[0]; variables += 2)
			setenv(variables[0], variables[1], 1);
		execl("/proc/self/exe", "worker", "work", (char *)NULL);
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	EQ(read(w.from, &ready, 1), 1);
	EQ(ready, 'r');
	return w;
}

static void tell(const struct worker *w, char step, char until)
{
	char said = 0;
	EQ(write(w->to, &step, 1), 1);
	EQ(read(w->from, &said, 1), 1);
	EQ(said, until);
}

static void finish_worker(struct worker *w, bool kill_it)
{
	int status;
	if (kill_it)
		kill(w->pid, SIGKILL);
	close(w->to); /* which ends it, too */
	waitpid(w->pid, &status, 0);
	EQ(kill_it ? WTERMSIG(status) : status, kill_it ? SIGKILL : 0);
	close(w->from);
}

#endif
