/* A refusal whose line no process reads: stderr is a pipe that is full. The call returns as it
 * would have, and so does the next one. The program writes nothing to it either. */
#include <fcntl.h>

#include "stranger.h"

static CUresult refused(struct task *t) { return cuMemAlloc_v2(&t->p, 2000 * MIB); }

static void fill(int fd)
{
	static const char zeros[4096];
	int flags = fcntl(fd, F_GETFL);
	fcntl(fd, F_SETFL, flags | O_NONBLOCK);
	for (size_t n = sizeof zeros; n > 0; n /= 2)
		while (write(fd, zeros, n) > 0)
			;
	fcntl(fd, F_SETFL, flags); /* as a program's stderr is: a write waits */
}

int main(int argc, char **argv)
{
	int ends[2], status;
	(void)argv;
	if (argc > 1) {
		CUcontext c = start();
		CUdeviceptr p;
		fill(STDERR_FILENO);
		struct task t = {.run = refused};
		task_begin(&t, c);
		if (!task_returned(&t, LONG))
			_exit(2);
		pthread_join(t.thread, NULL);
		OK(cuMemAlloc_v2(&p, MIB));
		/* And it is still the program's: it waits there, if it wants to. */
		CHECK(!(fcntl(STDERR_FILENO, F_GETFL) & O_NONBLOCK));
		_exit(t.result == CUDA_ERROR_OUT_OF_MEMORY && checks_failed == 0 ? 0 : 1);
	}
	EQ(pipe(ends), 0);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(ends[1], STDERR_FILENO);
		close(ends[1]); /* the reading end stays open, in both */
		execl("/proc/self/exe", "full_stderr", "child", (char *)NULL);
		_exit(127);
	}
	EQ(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
		fprintf(stderr, "a refused call waits for a reader of stderr\n");
	EQ(status, 0);
	return FINISH();
}
