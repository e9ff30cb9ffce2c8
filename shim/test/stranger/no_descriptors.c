/* A process that has no descriptor left asks whether another lives, one that has lost its
 * lock: a failure to ask is not an answer, so the other keeps what it holds. */
#include <fcntl.h>
#include <sys/resource.h>

#include "stranger.h"

static int ready[2], over[2];

static int holder(void)
{
	CUdeviceptr p;
	char byte;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(over[1]);
	start();
	OK(cuMemAlloc_v2(&p, 600 * MIB));
	lose_lock();
	EQ(write(ready[1], "", 1), 1);
	EQ(read(over[0], &byte, 1), 0);
	OK(cuMemFree_v2(p)); /* it has lost nothing */
	return checks_failed > 0;
}

/* Until there is none left. */
static void take_descriptors(void)
{
	struct rlimit few = {256, 256};
	EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
	while (dup(STDERR_FILENO) >= 0)
		;
	EQ(errno, EMFILE);
}

int main(void)
{
	CUdeviceptr p;
	char byte;
	int status;
	EQ(pipe(ready) | pipe(over), 0);
	pid_t pid = fork();
	if (pid == 0)
		_exit(holder());
	close(over[0]);
	EQ(read(ready[0], &byte, 1), 1);
	start();
	region_here();
	uint64_t before = in_use(0);
	take_descriptors();
	EQ(cuMemAlloc_v2(&p, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(mine() <= 100 * MIB);
	for (int fd = 3; fd < 256; fd++)
		if (fd != over[1])
			close(fd);
	EQ(region_used(region_here(), 0), before);
	EQ(cuMemAlloc_v2(&p, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY); /* nor with them */
	close(over[1]);
	EQ(waitpid(pid, &status, 0), pid);
	EQ(status, 0);
	return FINISH();
}
