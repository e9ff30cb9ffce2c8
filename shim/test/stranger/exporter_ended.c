/* Memory of a process that has ended stays charged to the job while there is a descriptor of it: the
 * driver keeps it, and lists no process with it. Without descriptors it is returned. */
#include "../later.h"
#include "descriptor.h"
#include "stranger.h"

#include <stdarg.h>
#include <sys/resource.h>

#define SIZE (300 * MIB)
#define CONTEXT (100 * MIB)

static const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

/* A process that exports memory and sends its descriptor. It is forked before this process uses
 * CUDA, and starts when it is told to. */
struct maker {
	pid_t pid;
	int control, mail; /* mail gets descriptors, and nothing else */
};

/* What the library finds as the kernel's list of locks, and whether it finds those of a descriptor. A
 * program's own open comes before the C library's. */
static const char *list_of_locks = "/proc/locks"; /* NULL: another one each time */
static bool no_fdinfo;

/* A list that changes after five readings, and has all locks once in a while. */
static int another_list(void)
{
	static unsigned times;
	if (++times % 24 == 0)
		return (int)syscall(SYS_openat, AT_FDCWD, "/proc/locks", O_RDONLY, 0);
	int fd = (int)syscall(SYS_memfd_create, "locks", 0);
	dprintf(fd, "1: OFDLCK ADVISORY  WRITE -1 00:01:%u 1 1\n", times / 5);
	lseek(fd, 0, SEEK_SET);
	return fd;
}

__attribute__((visibility("default"))) int open(const char *path, int flags, ...)
{
	va_list more;
	va_start(more, flags);
	unsigned mode = va_arg(more, unsigned);
	va_end(more);
	if (no_fdinfo && strstr(path, "/fdinfo/"))
		path = "/nonexistent";
	if (!list_of_locks && !strcmp(path, "/proc/locks"))
		return another_list();
	return (int)syscall(SYS_openat, AT_FDCWD, strcmp(path, "/proc/locks") ? path : list_of_locks, flags, mode);
}

/* How makers export: by shareable handles, by dma-bufs of linear memory, or by dma-bufs after there was
 * a descriptor of another file. */
static enum { BY_HANDLE, BY_DMA_BUF, BY_BOTH } exported_by;

/* A shareable handle whose descriptor is closed. */
static void export_and_close(void)
{
	CUmemGenericAllocationHandle h;
	int fd = -1;
	OK(cuMemCreate(&h, 2 * MIB, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	close(fd);
	OK(cuMemRelease(h));
}

static _Noreturn void maker_run(int control, int mail, unsigned copies, bool release)
{
	CUmemGenericAllocationHandle h = 0;
	CUdeviceptr p = 0;
	char byte;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (read(control, &byte, 1) != 1)
		_exit(0);
	start();
	if (exported_by == BY_BOTH)
		export_and_close();
	int result = exported_by == BY_HANDLE ? cuMemCreate(&h, SIZE, &prop, 0) : cuMemAlloc_v2(&p, SIZE);
	if (result == CUDA_SUCCESS) {
		for (unsigned i = 0; i < copies; i++) {
			int fd = -1;
			if (exported_by == BY_HANDLE)
				OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
			else
				OK(cuMemGetHandleForAddressRange(&fd, p, SIZE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
			descriptor_send(mail, fd);
			close(fd);
		}
		if (release)
			OK(exported_by == BY_HANDLE ? cuMemRelease(h) : cuMemFree_v2(p));
	}
	byte = (char)(result == CUDA_SUCCESS ? 'y' : 'n');
	if (byte == 'n')
		shutdown(mail, SHUT_WR); /* who waits for a descriptor gets none */
	EQ(write(control, &byte, 1), 1);
	if (read(control, &byte, 1) != 1)
		checks_failed++;
	exit(checks_failed > 0);
}

static struct maker make(unsigned copies, bool release)
{
	int control[2], mail[2];
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, control), 0);
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, mail), 0);
	struct maker m = {fork(), control[0], mail[0]};
	if (m.pid == 0)
		maker_run(control[1], mail[1], copies, release);
	return m;
}

static void begin(struct maker *m) { EQ(write(m->control, "", 1), 1); }

static int answer(struct maker *m)
{
	char byte = 0;
	EQ(read(m->control, &byte, 1), 1);
	return byte;
}

/* The maker's descriptor; -1 if it was refused the memory. */
static int made(struct maker *m)
{
	int answered = answer(m);
	EQ(answered, 'y');
	return answered == 'y' ? descriptor_receive(m->mail) : -1;
}

static void end(struct maker *m, bool killed)
{
	int status;
	if (killed)
		EQ(kill(m->pid, SIGKILL), 0);
	else
		EQ(write(m->control, "", 1), 1);
	EQ(waitpid(m->pid, &status, 0), m->pid);
	EQ(status, killed ? SIGKILL : 0);
}

/* The whole limit, but for this process's context and the bytes that others have. */
static CUresult take_all_but(uint64_t bytes)
{
	CUdeviceptr p;
	CUresult result = cuMemAlloc_v2(&p, limit_of(0) - CONTEXT - bytes);
	if (result == CUDA_SUCCESS)
		OK(cuMemFree_v2(p));
	return result;
}

/* The job is charged for that many bytes of processes that have ended. */
#define KEPT(bytes)                                                             \
	do {                                                                    \
		EQ(take_all_but((bytes) - MIB), CUDA_ERROR_OUT_OF_MEMORY);      \
		OK(take_all_but(bytes));                                        \
		BALANCED(0);                                                    \
		EQ(region_used(region_here(), 0), CONTEXT + (uint64_t)(bytes)); \
	} while (0)
#define RETURNED()                                          \
	do {                                                \
		OK(take_all_but(0));                        \
		BALANCED(0);                                \
		EQ(region_used(region_here(), 0), CONTEXT); \
	} while (0)

/* Not received, received, duplicated, and closed. */
static void passed_on(bool killed, bool release)
{
	struct maker m = make(1, release);
	begin(&m);
	int answered = answer(&m);
	unsigned reaped;
	EQ(answered, 'y');
	end(&m, killed);
	/* A process without a file of the driver cannot ask, and leaves it charged. */
	EQ(region_reap(region_here(), &reaped), REGION_OK);
	EQ(region_used(region_here(), 0), SIZE);
	start();
	KEPT(SIZE);
	int fd = answered == 'y' ? descriptor_receive(m.mail) : -1, copy = dup(fd);
	KEPT(SIZE);
	close(fd);
	KEPT(SIZE);
	close(copy);
	RETURNED();
}

static void killed(void) { passed_on(true, false); }
static void ended(void) { passed_on(false, false); }
static void released(void) { passed_on(true, true); }

/* No process that asks has a descriptor of the dma-buf's file. */
static void dma_buf(void)
{
	exported_by = BY_DMA_BUF;
	passed_on(true, false);
}

static void dma_buf_freed(void)
{
	exported_by = BY_DMA_BUF;
	passed_on(false, true);
}

static void both(void)
{
	exported_by = BY_BOTH;
	passed_on(true, false);
}

/* Where the kernel's list of locks cannot be read, a file of the driver is enough for its own
 * descriptors. */
static void no_list(void)
{
	list_of_locks = "/nonexistent";
	passed_on(true, false);
}

/* A dma-buf of a maker that has ended is charged while there is a descriptor, which this closes. */
static void kept_with(const char *list)
{
	exported_by = BY_DMA_BUF;
	list_of_locks = list;
	struct maker m = make(1, false);
	begin(&m);
	int fd = made(&m);
	end(&m, true);
	start();
	KEPT(SIZE);
	close(fd);
}

/* A dma-buf about which the kernel cannot be asked may be open as long as a process of the job lives. */
static void unknown(const char *list)
{
	kept_with(list);
	later();
	OK(cuCtxSynchronize());
	EQ(region_used(region_here(), 0), CONTEXT + SIZE);
	list_of_locks = "/proc/locks";
	RETURNED();
}

static void dma_buf_no_list(void) { unknown("/nonexistent"); }
static void dma_buf_empty_list(void) { unknown("/dev/null"); }
static void dma_buf_endless_list(void) { unknown("/dev/zero"); }

/* Of a list that changes all the time, many are read. */
static void dma_buf_changing_list(void)
{
	kept_with(NULL);
	RETURNED();
}

/* A process without CUDA has it. It is this process's child, and has no slot. */
static void by_stranger(void)
{
	struct maker m = make(1, false);
	int status;
	begin(&m);
	int fd = made(&m);
	pid_t holder = fork();
	if (holder == 0)
		pause(), _exit(0);
	close(fd);
	end(&m, true);
	start();
	KEPT(SIZE);
	EQ(kill(holder, SIGKILL), 0);
	EQ(waitpid(holder, &status, 0), holder);
	RETURNED();
}

/* One after the other, they cannot have more than the limit together. */
static void repeatedly(unsigned by)
{
	struct maker m[4];
	int fd[4] = {-1, -1, -1, -1};
	exported_by = by;
	for (unsigned i = 0; i < 4; i++)
		m[i] = make(1, i % 2);
	for (unsigned i = 0; i < 4; i++) {
		begin(&m[i]);
		if (i < 3)
			fd[i] = made(&m[i]);
		else
			EQ(answer(&m[i]), 'n');
		end(&m[i], true);
	}
	start();
	BALANCED(0);
	close(fd[1]);
	KEPT(2 * SIZE);
	close(fd[0]);
	close(fd[2]);
	RETURNED();
}

static void repeated(void) { repeatedly(BY_HANDLE); }
static void repeated_dma_bufs(void) { repeatedly(BY_DMA_BUF); }

/* An importer is charged when the last descriptor is closed, and not before. */
static void imported(void)
{
	struct maker m = make(2, false);
	CUmemGenericAllocationHandle h;
	begin(&m);
	int fd = made(&m), copy = fd < 0 ? -1 : descriptor_receive(m.mail);
	start();
	OK(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	end(&m, true);
	KEPT(SIZE);
	close(fd);
	KEPT(SIZE);
	close(copy);
	later();
	OK(cuCtxSynchronize());
	EQ(held(RATION_OVERHEAD), SIZE);
	KEPT(SIZE);
	OK(cuMemRelease(h));
	RETURNED();
}

/* A process that imports the maker's memory, closes the descriptor, and makes a call when it is told to: r for a
 * reading, f to release the memory, c to start a child that makes no call, and k to end it. It is forked before this process uses CUDA. */
static _Noreturn void importer_run(int control, int mail)
{
	CUmemGenericAllocationHandle h = 0;
	CUdeviceptr at = 0;
	char byte = 'y';
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	start();
	int fd = descriptor_receive(mail), child = -1, status;
	OK(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	OK(cuMemAddressReserve(&at, SIZE, 0, 0, 0));
	OK(cuMemMap(at, SIZE, 0, h, 0));
	OK(cuMemRelease(h)); /* the mapping keeps it */
	close(fd);
	do {
		if (byte == 'r') {
			later();
			OK(cuCtxSynchronize());
			EQ(held(RATION_OVERHEAD), SIZE);
		} else if (byte == 'f') {
			OK(cuMemUnmap(at, SIZE));
			EQ(held(RATION_OVERHEAD), 0);
		} else if (byte == 'c' && !(child = fork())) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			pause();
			_exit(0);
		} else if (byte == 'k') {
			EQ(kill(child, SIGKILL), 0);
			EQ(waitpid(child, &status, 0), child);
		}
		byte = (char)(checks_failed ? 'n' : 'y');
		EQ(write(control, &byte, 1), 1);
	} while (read(control, &byte, 1) == 1);
	_exit(0);
}

static struct maker import_by_other(struct maker *m)
{
	int control[2];
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, control), 0);
	struct maker i = {fork(), control[0], -1};
	if (i.pid == 0)
		importer_run(control[1], m->mail);
	close(control[1]);
	return i;
}

static void tell(struct maker *m, char what)
{
	EQ(write(m->control, &what, 1), 1);
	EQ(answer(m), 'y');
}

/* Memory stays charged to the job when its maker has ended, all descriptors are closed, and the process
 * that has imported it makes no call: that process is charged for it at its next reading. calls
 * is what it is told to do then. */
static void imported_by_idle(const char *calls)
{
	struct maker m = make(1, false), i = import_by_other(&m);
	begin(&m);
	EQ(answer(&m), 'y');
	EQ(answer(&i), 'y');
	end(&m, true);
	start();
	KEPT(CONTEXT + SIZE);
	for (; *calls; calls++) {
		tell(&i, *calls);
		KEPT(CONTEXT + (strchr("fk", *calls) ? 0 : SIZE));
	}
	end(&i, true);
	RETURNED();
}

static void idle_importer(void) { imported_by_idle(""); }
static void idle_importer_reads(void) { imported_by_idle("rrf"); }
static void idle_importer_releases(void) { imported_by_idle("f"); }
static void idle_importer_forks(void) { imported_by_idle("crfk"); }

/* The maker, which is this process, lives and has released the memory: it stays charged for it until the importer is. */
static void living_maker(void)
{
	int mail[2];
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, mail), 0);
	struct maker i = import_by_other(&(struct maker){.mail = mail[1]});
	CUmemGenericAllocationHandle h;
	int fd = -1;
	start();
	OK(cuMemCreate(&h, SIZE, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	descriptor_send(mail[0], fd);
	close(fd);
	EQ(answer(&i), 'y');
	OK(cuMemRelease(h));
	KEPT(CONTEXT + SIZE);
	later();
	OK(cuCtxSynchronize());
	KEPT(CONTEXT + SIZE);
	tell(&i, 'r');
	KEPT(CONTEXT + SIZE);
	tell(&i, 'f');
	KEPT(CONTEXT);
	end(&i, true);
	RETURNED();
}

/* Without the list of a descriptor's locks, its maker may be any process of the job. */
static void idle_importer_no_fdinfo(void)
{
	no_fdinfo = true;
	imported_by_idle("rf");
}

/* An import keeps its maker's memory, and not that of another maker. */
static void another_maker(void)
{
	struct maker m = make(1, false), i = import_by_other(&m), another = make(1, false);
	begin(&another);
	int fd = made(&another);
	begin(&m);
	EQ(answer(&m), 'y');
	EQ(answer(&i), 'y');
	end(&m, true);
	end(&another, true);
	start();
	KEPT(CONTEXT + 2 * SIZE);
	close(fd);
	KEPT(CONTEXT + SIZE);
	end(&i, true);
	RETURNED();
}

/* An importer that has released its import keeps nothing, although it makes no call when the maker ends. */
static void former_importer(void)
{
	struct maker m = make(1, false), i = import_by_other(&m);
	begin(&m);
	EQ(answer(&m), 'y');
	EQ(answer(&i), 'y');
	tell(&i, 'f');
	end(&m, true);
	start();
	KEPT(CONTEXT);
	end(&i, true);
	RETURNED();
}

/* A reading returns it, also if nothing is asked for. */
static void by_reading(void)
{
	struct maker m = make(1, false);
	begin(&m);
	int fd = made(&m);
	end(&m, true);
	start();
	KEPT(SIZE);
	close(fd);
	later();
	OK(cuCtxSynchronize());
	EQ(region_used(region_here(), 0), CONTEXT);
}

/* A process that makes no other call than imports: the memory of makers that have ended is charged to
 * them until the next import, and then to this process. The job does not exceed its limit. */
static void only_imports(void)
{
	struct maker m[4];
	for (unsigned i = 0; i < 4; i++)
		m[i] = make(1, false);
	start();
	for (unsigned i = 0; i < 4; i++) {
		CUmemGenericAllocationHandle h;
		begin(&m[i]);
		if (i == 3) {
			EQ(answer(&m[i]), 'n');
		} else {
			int fd = made(&m[i]);
			later();
			OK(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
			EQ(held(RATION_OVERHEAD), i * SIZE);
			close(fd);
		}
		end(&m[i], true);
	}
}

/* A process whose first descriptor of the driver has a number above all that it looks through one by one. */
static void many_descriptors(void)
{
	struct rlimit limit = {0, 0};
	list_of_locks = "/nonexistent";
	struct maker m = make(1, false);
	EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limit.rlim_max < 4000 ? limit.rlim_max : 4000;
	EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
	begin(&m);
	int fd = made(&m);
	for (int i = 0; i < 1200; i++)
		CHECK(dup(m.control) >= 0);
	start();
	end(&m, true);
	KEPT(SIZE);
	close(fd);
	RETURNED();
}

/* For chaos_test.sh: a process that dies at a point of its export or import, if RATION_FAULT is set; and
 * then a process that finds what the job is charged for. */
static void die(void)
{
	CUmemGenericAllocationHandle h;
	int fd = -1;
	start();
	OK(cuMemCreate(&h, SIZE, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	checks_failed++; /* it should be dead */
}

static void import_and_die(void)
{
	struct maker m = make(1, false);
	CUmemGenericAllocationHandle h;
	begin(&m);
	int fd = made(&m);
	start();
	OK(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	end(&m, true);
	later();
	OK(cuCtxSynchronize());
	checks_failed++; /* it should be dead */
}

static void survive(void)
{
	start();
	RETURNED();
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {{"killed", killed},
					    {"ended", ended},
					    {"released", released},
					    {"dma_buf", dma_buf},
					    {"dma_buf_freed", dma_buf_freed},
					    {"both", both},
					    {"no_list", no_list},
					    {"dma_buf_no_list", dma_buf_no_list},
					    {"dma_buf_empty_list", dma_buf_empty_list},
					    {"dma_buf_endless_list", dma_buf_endless_list},
					    {"dma_buf_changing_list", dma_buf_changing_list},
					    {"by_stranger", by_stranger},
					    {"repeated", repeated},
					    {"repeated_dma_bufs", repeated_dma_bufs},
					    {"imported", imported},
					    {"idle_importer", idle_importer},
					    {"idle_importer_reads", idle_importer_reads},
					    {"idle_importer_releases", idle_importer_releases},
					    {"idle_importer_forks", idle_importer_forks},
					    {"living_maker", living_maker},
					    {"idle_importer_no_fdinfo", idle_importer_no_fdinfo},
					    {"another_maker", another_maker},
					    {"former_importer", former_importer},
					    {"by_reading", by_reading},
					    {"many_descriptors", many_descriptors},
					    {"only_imports", only_imports},
					    {NULL, NULL}};
	static const struct part apart[] = {{"die", die}, {"import_and_die", import_and_die}, {"survive", survive}, {NULL, NULL}};
	bool alone = argc > 1 && (strstr(argv[1], "die") || !strcmp(argv[1], "survive"));
	return run_parts(argc, argv, alone ? apart : parts, true, __FILE__);
}
