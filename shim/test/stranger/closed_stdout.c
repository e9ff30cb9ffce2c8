/* A program without stdout that closes all it has open, as daemons do: the library's own
 * descriptor comes back out of the way of the program's, and what the program then prints
 * goes nowhere. The other two of the first three likewise. */
#include <fcntl.h>
#include <sys/stat.h>

#include "stranger.h"

/* Whether a descriptor is the job's region. */
static bool is_region(int fd)
{
	struct stat a, b;
	return fstat(fd, &a) == 0 && stat(getenv("RATION_REGION"), &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* In the child, whose descriptor `closed` is closed; exits with what was wrong. */
static int child(int closed)
{
	CUdeviceptr p, q;
	CUcontext c;
	int wrong = 0;
	if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&c, 0) != CUDA_SUCCESS || cuCtxSetCurrent(c) != CUDA_SUCCESS)
		return 1;
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	close(closed);
	/* Refused, so that it asks the kernel which of the others live. */
	if (cuMemAlloc_v2(&p, 2000 * MIB) != CUDA_ERROR_OUT_OF_MEMORY || cuMemAlloc_v2(&q, MIB) != CUDA_SUCCESS)
		wrong |= 2;
	for (int fd = 0; fd < 3; fd++)
		if (is_region(fd))
			wrong |= 4;
	if (write(closed, "this line is the program's own\n", 31) >= 0)
		wrong |= 8;
	if (cuMemFree_v2(q) != CUDA_SUCCESS || cuMemAlloc_v2(&q, MIB) != CUDA_SUCCESS)
		wrong |= 16;
	return wrong;
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "die")) {
		start();
		_exit(checks_failed > 0); /* with its context */
	}
	if (argc > 1)
		_exit(child(atoi(argv[1])));
	for (int fd = 0; fd < 3; fd++) {
		static const char *const names[] = {"0", "1", "2"};
		EQ(AGAIN("die", NULL), 0);
		EQ(AGAIN(names[fd], NULL), 0);
		/* The job is what it was: another process finds its way. */
		struct region r;
		static const struct region_limits none;
		EQ(region_open(&r, getenv("RATION_REGION"), &none), REGION_OK);
		if (r.m != NULL)
			region_close(&r);
		else
			unlink(getenv("RATION_REGION"));
	}
	return FINISH();
}
