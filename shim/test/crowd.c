/* Three hundred processes that start at once: all of them get what they ask for, and
 * nothing is left of them. */
#include "held.h"

enum { CROWD = 300 };

static int one(void)
{
	CUcontext c;
	CUdeviceptr p;
	return cuInit(0) || cuDevicePrimaryCtxRetain(&c, 0) || cuCtxSetCurrent(c) || cuMemAlloc_v2(&p, MIB) ? 1 : 0;
}

int main(int argc, char **argv)
{
	pid_t pids[CROWD];
	struct region_holding h[8];
	unsigned reaped;
	int gate[2], status;
	char byte;
	if (argc > 1) {
		/* Behind a gate that opens for all at once. */
		if (read(atoi(argv[1]), &byte, 1) != 0)
			return 2;
		return one();
	}
	CHECK(pipe(gate) == 0);
	for (int i = 0; i < CROWD; i++) {
		char fd[16];
		snprintf(fd, sizeof fd, "%d", gate[0]);
		pids[i] = fork();
		if (pids[i] == 0) {
			close(gate[1]);
			/* Half of them by fork alone, half by exec as well. */
			if (i % 2) {
				exit(read(gate[0], &byte, 1) == 0 ? one() : 2);
			} else {
				execl("/proc/self/exe", argv[0], fd, (char *)NULL);
				_exit(127);
			}
		}
		CHECK(pids[i] > 0);
	}
	close(gate[1]);
	for (int i = 0; i < CROWD; i++) {
		EQ(waitpid(pids[i], &status, 0), pids[i]);
		EQ(status, 0);
	}
	struct region *r = region_here();
	/* Each has said that it ends, and what it held goes to the next process that looks. */
	EQ(region_reap(r, &reaped), REGION_OK);
	EQ(region_holdings(r, 0, h, 8), 0);
	EQ(region_used(r, 0), 0);
	EQ(r->m->header.counters.reaped, 0);
	EQ(r->m->header.death_next, 0);
	EQ(r->m->header.counters.claims, CROWD);
	EQ(r->m->header.counters.refused, 0);
	OK(cuInit(0));
	EQ(everybody(), 0);
	return FINISH();
}
