/* The host memory of a checkpoint has huge pages; other mappings stay as they were asked for. */
#include <signal.h>
#include <sys/mman.h>

#include "check.h"
#include "child.h"

/* The stand-in maps a thousandth of what it puts aside (fakegpu/README.md). */
#define ASIDE 1024ull

/* Mappings of the children, and of their checkpoints. No others have these sizes. */
enum { LEAST = 64, ROOM = 70, SMALL_ROOM = 40, OWN = 90 };

/* sleeper holds so many MiB times ASIDE of device memory. It has also mapped memory itself, in the
 * way the driver does. */
static int sleeper(unsigned mib)
{
	CUdeviceptr p;
	char c = 0;
	start();
	/* The context is put aside, too: it is less than one block of 2 MiB there. */
	OK(cuMemAlloc_v2(&p, mib * ASIDE * MIB - 1024 * MIB));
	void *own = mmap(NULL, OWN * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	CHECK(own != MAP_FAILED);
	EQ(madvise(own, OWN * MIB, MADV_DONTFORK), 0); /* so that the kernel does not join it to its neighbour */
	c = checks_failed > 0;
	return write(1, &c, 1) != 1 || read(0, &c, 1) != 0;
}

/* A mapping of a process, by its size. */
struct mapping {
	unsigned count;
	unsigned long long kib, resident_kib;
	bool huge; /* the kernel was asked for huge pages */
};

static struct mapping mapping_of(pid_t pid, unsigned mib)
{
	char path[64], line[512];
	struct mapping m = {.count = 0};
	unsigned long long from, to, n;
	bool here = false;
	snprintf(path, sizeof path, "/proc/%d/smaps", (int)pid);
	FILE *f = fopen(path, "r");
	CHECK(f != NULL);
	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%llx-%llx ", &from, &to) == 2) {
			here = to - from == mib * MIB;
			m.count += here;
		} else if (here && sscanf(line, "Rss: %llu kB", &n) == 1) {
			m.resident_kib = n;
		} else if (here && !strncmp(line, "VmFlags:", 8)) {
			m.huge = strstr(line, " hg") != NULL;
		}
	}
	if (f)
		fclose(f);
	return m;
}

/* slept returns the mapping that a checkpoint of a process with so much memory made, and checks that
 * the process can be woken. */
static struct mapping slept(unsigned mib)
{
	char role[16], ready = 1;
	snprintf(role, sizeof role, "%u", mib);
	struct child c = spawn(role);
	EQ(read(c.from, &ready, 1), 1);
	EQ(ready, 0);
	EQ(mapping_of(c.pid, mib).count, 0);
	OK(cuCheckpointProcessLock(c.pid, NULL));
	OK(cuCheckpointProcessCheckpoint(c.pid, NULL));
	struct mapping room = mapping_of(c.pid, mib), own = mapping_of(c.pid, OWN);
	EQ(room.count, 1);
	EQ(own.count, 1);
	CHECK(!own.huge);
	EQ(own.resident_kib, OWN * 1024);
	OK(cuCheckpointProcessRestore(c.pid, NULL));
	EQ(mapping_of(c.pid, mib).count, 0);
	OK(cuCheckpointProcessUnlock(c.pid, NULL));
	EQ(end(c, 0), 0);
	return room;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return sleeper((unsigned)atoi(argv[1]));
	OK(cuInit(0));
	struct mapping room = slept(ROOM);
	CHECK(room.huge);
	EQ(room.resident_kib, 0); /* the stand-in writes nothing into it */
	CHECK(slept(LEAST).huge);
	room = slept(SMALL_ROOM);
	CHECK(!room.huge);
	EQ(room.resident_kib, SMALL_ROOM * 1024);
	return FINISH();
}
