/* A program that has closed its standard streams, and then the descriptors it did not
 * open itself, still prints. The region, which the library has to open again, is never
 * what it prints into. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>

#include "held.h"

enum { LOWEST = 56 }; /* FILE_LOWEST_FD */

/* The region's descriptor: how many there are, the number of one, and whether it is
 * closed by exec. */
struct descriptor {
	unsigned count;
	int number;
	bool close_on_exec;
};

static struct descriptor region_descriptor(bool take_away)
{
	struct descriptor found = {.number = -1};
	DIR *dir = opendir("/proc/self/fd");
	char to[PATH_MAX];
	for (struct dirent *e; (e = readdir(dir));) {
		ssize_t n = readlinkat(dirfd(dir), e->d_name, to, sizeof to - 1);
		to[n > 0 ? n : 0] = 0;
		if (strcmp(to, getenv("RATION_REGION")))
			continue;
		found.count++;
		found.number = atoi(e->d_name);
		found.close_on_exec = fcntl(found.number, F_GETFD) & FD_CLOEXEC;
		if (take_away)
			close(found.number);
	}
	closedir(dir);
	return found;
}

static unsigned low_descriptors(void)
{
	unsigned mask = 0;
	for (int fd = 0; fd <= 2; fd++)
		mask |= (fcntl(fd, F_GETFD) >= 0) << fd;
	return mask;
}

enum when { BEFORE, AFTER, AFTER_FEW, WHENS };

/* closed takes some of the streams away before or after the library has opened the
 * region, and lets it open the region again. Its status says at which step it failed:
 * nothing can be printed. */
static int closed(unsigned streams, enum when when)
{
	static const char text[] = "this is what the program has to say\n";
	CUcontext context;
	CUdeviceptr p;
	for (int fd = 0; when == BEFORE && fd <= 2; fd++)
		if (streams >> fd & 1)
			close(fd);
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
		return 11;
	struct descriptor d = region_descriptor(true);
	if (d.count != 1 || d.number < LOWEST || !d.close_on_exec)
		return 12;
	if (when == BEFORE)
		return 0; /* the driver may have taken the low ones */
	for (int fd = 0; fd <= 2; fd++)
		if (streams >> fd & 1)
			close(fd);
	unsigned low = low_descriptors();
	if (when == AFTER_FEW && setrlimit(RLIMIT_NOFILE, &(struct rlimit){LOWEST, LOWEST}))
		return 13; /* no high number can be had */
	/* What the driver took is read after this, and NVML is started, which keeps files open. */
	if (cuCtxSynchronize() || low_descriptors() != low)
		return 19;
	/* Now and then a charge makes sure of the lock, and finds the descriptor gone. */
	for (unsigned i = 0; i < 5000; i++)
		if (cuMemAlloc_v2(&p, MIB) || cuMemFree_v2(p))
			return 14;
	d = region_descriptor(false);
	if (d.count != 1 || d.number < (when == AFTER_FEW ? 3 : LOWEST) || !d.close_on_exec)
		return 15;
	if (low_descriptors() != low)
		return 16;
	for (int fd = 0; fd <= 2; fd++)
		if (streams >> fd & 1 && (write(fd, text, sizeof text) >= 0 || errno != EBADF))
			return 17;
	return cuMemAlloc_v2(&p, MIB) ? 18 : 0;
}

int main(int argc, char **argv)
{
	char streams[4];
	unsigned reaped;
	if (argc > 1)
		return closed((unsigned)atoi(argv[1]) / WHENS, (enum when)(atoi(argv[1]) % WHENS));
	for (unsigned mask = 0; mask < 8 * WHENS; mask++) {
		snprintf(streams, sizeof streams, "%u", mask);
		EQ(again("/proc/self/exe", streams, NULL), 0);
		EQ(region_here()->m->header.magic, RATION_MAGIC);
		EQ(region_reap(region_here(), &reaped), REGION_OK);
		EQ(region_used(region_here(), 0), 0);
	}
	return FINISH();
}
