/* Memory that was exported by an IPC handle stays charged to the job while a process of the job has it
 * open: the driver keeps it, also after its maker has freed it or ended. */
#include "../later.h"
#include "stranger.h"

#include <sys/socket.h>
#include <sys/stat.h>

#define SIZE (300 * MIB)
#define CONTEXT (100 * MIB)

/* A process that does what it is told, and answers with the driver's result. All are forked before this
 * process uses CUDA, and start when they are told the first thing. */
struct worker {
	pid_t pid;
	int control;
};

enum order {
	MAKE,  /* allocate, and make a handle */
	FREE,  /* free that */
	ALLOC, /* allocate as much, and free it again */
	OPEN,  /* open the handle, when a reading is due */
	CLOSE, /* close that */
	WAIT,  /* wait for the device, when a reading is due */
	RESET, /* end the context and all that is in it, and make another */
	HELD,  /* answer with the MiB that are charged as overhead */
	END,   /* exit */
};

struct message {
	enum order order;
	CUipcMemHandle handle;
};

static CUresult worker_obey(struct message *m)
{
	static CUdeviceptr made, opened;
	CUdeviceptr p;
	CUresult result = CUDA_SUCCESS;
	switch (m->order) {
	case MAKE: result = cuMemAlloc_v2(&made, SIZE); return result ? result : cuIpcGetMemHandle(&m->handle, made);
	case FREE: return cuMemFree_v2(made);
	case ALLOC: result = cuMemAlloc_v2(&p, SIZE); return result ? result : cuMemFree_v2(p);
	case OPEN: later(); return cuIpcOpenMemHandle_v2(&opened, m->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	case CLOSE: return cuIpcCloseMemHandle(opened);
	case WAIT: later(); return cuCtxSynchronize();
	case RESET:
		result = cuDevicePrimaryCtxReset_v2(0);
		start();
		return result;
	case HELD: return (CUresult)(held(RATION_OVERHEAD) / MIB);
	case END: exit(checks_failed > 0);
	}
	return CUDA_ERROR_INVALID_VALUE;
}

static _Noreturn void worker_run(int control)
{
	struct message m;
	bool started = false;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(control, &m, sizeof m) == sizeof m) {
		if (!started)
			start();
		started = true;
		CUresult result = worker_obey(&m);
		EQ(write(control, &result, sizeof result), (ssize_t)sizeof result);
		EQ(write(control, &m.handle, sizeof m.handle), (ssize_t)sizeof m.handle);
	}
	_exit(1);
}

static struct worker worker_new(void)
{
	int control[2];
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, control), 0);
	struct worker w = {fork(), control[0]};
	if (w.pid == 0) {
		close(control[0]);
		worker_run(control[1]);
	}
	close(control[1]);
	return w;
}

static CUipcMemHandle handle; /* made last */

static CUresult tell(const struct worker *w, enum order order)
{
	struct message m = {order, handle};
	CUresult result = CUDA_ERROR_UNKNOWN;
	EQ(write(w->control, &m, sizeof m), (ssize_t)sizeof m);
	EQ(read(w->control, &result, sizeof result), (ssize_t)sizeof result);
	EQ(recv(w->control, &handle, sizeof handle, MSG_WAITALL), (ssize_t)sizeof handle);
	return result;
}

static void end(struct worker *w, bool killed)
{
	struct message m = {.order = END};
	int status;
	if (killed)
		EQ(kill(w->pid, SIGKILL), 0);
	else
		EQ(write(w->control, &m, sizeof m), (ssize_t)sizeof m);
	EQ(waitpid(w->pid, &status, 0), w->pid);
	EQ(status, killed ? SIGKILL : 0);
	close(w->control);
}

/* The job's charge without this process's context, after dead processes have been reaped. */
static uint64_t charged(void)
{
	unsigned reaped;
	EQ(region_reap(region_here(), &reaped), REGION_OK);
	return region_used(region_here(), 0) - CONTEXT;
}

/* shows_life returns whether a process has a record lock in the region, beside the lock of the region's
 * mapping at the same byte, which has no PID. */
static bool shows_life(pid_t pid)
{
	char line[256], inode[32];
	int at;
	struct stat st;
	bool found = false;
	EQ(stat(getenv("RATION_REGION"), &st), 0);
	snprintf(inode, sizeof inode, ":%llu ", (unsigned long long)st.st_ino);
	FILE *f = fopen("/proc/locks", "re");
	while (f && fgets(line, sizeof line, f))
		found = found || (sscanf(line, "%*s POSIX %*s %*s %d", &at) == 1 && at == pid && strstr(line, inode));
	if (f)
		fclose(f);
	return found;
}

static uint64_t on_device(void) { return in_use(0) - CONTEXT; }

/* The maker frees it. It cannot have as much again while the importer, which makes no call, has it. */
static void freed(void)
{
	struct worker maker = worker_new(), importer = worker_new();
	start();
	OK(tell(&maker, MAKE));
	OK(tell(&importer, OPEN));
	CHECK(shows_life(importer.pid));
	EQ(charged(), 2 * CONTEXT + SIZE);
	OK(tell(&maker, FREE));
	EQ(on_device(), 2 * CONTEXT + SIZE);
	EQ(charged(), 2 * CONTEXT + SIZE);
	OK(tell(&maker, ALLOC));
	OK(tell(&maker, MAKE));
	OK(tell(&maker, FREE));
	EQ(charged(), 2 * CONTEXT + SIZE); /* this one was not opened */
	OK(tell(&importer, WAIT));         /* the importer is charged now */
	OK(tell(&maker, WAIT));
	EQ(charged(), 2 * CONTEXT + SIZE);
	OK(tell(&importer, CLOSE));
	EQ(charged(), 2 * CONTEXT);
	end(&maker, false);
	end(&importer, false);
	EQ(charged(), 0);
}

/* Readings that find nothing new, until the next one would be left out. */
static void settle(const struct worker *w)
{
	for (unsigned i = 0; i < 3; i++)
		OK(tell(w, WAIT));
}

/* Neither the importer nor the maker leaves a reading out, although the device has as many bytes as before
 * and neither has allocated or freed. The memory counts for both from the importer's reading to the maker's. */
static void settled(void)
{
	struct worker maker = worker_new(), importer = worker_new();
	start();
	OK(tell(&maker, MAKE));
	OK(tell(&importer, OPEN));
	settle(&importer);
	EQ(tell(&importer, HELD), 0);
	OK(tell(&maker, FREE));
	settle(&maker);
	EQ(charged(), 2 * CONTEXT + SIZE);
	OK(tell(&importer, WAIT));
	EQ(tell(&importer, HELD), SIZE / MIB);
	EQ(charged(), 2 * CONTEXT + 2 * SIZE);
	OK(tell(&maker, WAIT));
	EQ(charged(), 2 * CONTEXT + SIZE);
	end(&importer, false);
	end(&maker, false);
}

static CUresult load(struct task *t)
{
	static const char large[] = PTX(BIG_100M);
	return cuModuleLoadData(&t->module, large);
}

static CUresult create(struct task *t) { return cuCtxCreate_v2(&t->made, 0, 0); }

/* The driver lists the memory with this process, the importer, while it makes a module or a context. These are
 * charged for it, but not longer than this process has it open. */
static void made_meanwhile(const char *call, CUresult (*run)(struct task *))
{
	struct worker maker = worker_new();
	struct task t = {.run = run};
	CUcontext c = start();
	CUdeviceptr p;
	OK(tell(&maker, MAKE));
	OK(cuIpcOpenMemHandle_v2(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	fakegpu_hold(call, 1);
	task_begin(&t, c);
	EQ(fakegpu_held(call, 1, LONG), 1);
	OK(tell(&maker, FREE));
	fakegpu_open(call);
	JOIN(&t);
	OK(t.result);
	OK(tell(&maker, WAIT));
	BALANCED(0);
	later();
	OK(cuCtxSynchronize());
	OK(cuIpcCloseMemHandle(p));
	OK(cuMemAlloc_v2(&p, limit_of(0) - in_use(0)));
	SAME();
	end(&maker, false);
}

static void module_meanwhile(void) { made_meanwhile("cuModuleLoadData", load); }
static void context_meanwhile(void) { made_meanwhile("cuCtxCreate", create); }

/* Nor can it go on so. */
static void freed_repeatedly(void)
{
	struct worker maker = worker_new(), importer = worker_new();
	start();
	for (unsigned i = 0; i < 2; i++) {
		OK(tell(&maker, MAKE));
		OK(tell(&importer, OPEN));
		OK(tell(&maker, FREE));
		CHECK(charged() >= 2 * CONTEXT + (i + 1) * SIZE);
	}
	EQ(tell(&maker, MAKE), CUDA_ERROR_OUT_OF_MEMORY);
	end(&importer, true);
	OK(tell(&maker, MAKE));
	end(&maker, true);
	EQ(charged(), 0);
}

/* An importer that only opens handles is charged for what it had opened before. */
static void opened_before(void)
{
	struct worker maker = worker_new(), importer = worker_new();
	start();
	OK(tell(&maker, MAKE));
	OK(tell(&importer, OPEN));
	OK(tell(&maker, FREE));
	OK(tell(&maker, MAKE));
	EQ(tell(&importer, HELD), 0);
	OK(tell(&importer, OPEN));
	EQ(tell(&importer, HELD), SIZE / MIB);
	end(&importer, true);
	end(&maker, true);
}

/* The memory goes with the maker's context. */
static void context_reset(void)
{
	struct worker maker = worker_new(), importer = worker_new();
	start();
	OK(tell(&maker, MAKE));
	OK(tell(&importer, OPEN));
	OK(tell(&maker, RESET));
	EQ(on_device(), 2 * CONTEXT + SIZE);
	EQ(charged(), 2 * CONTEXT + SIZE);
	OK(tell(&importer, CLOSE));
	OK(tell(&maker, WAIT));
	EQ(charged(), 2 * CONTEXT);
	end(&maker, true);
	end(&importer, true);
}

/* The maker ends. The importer makes no call, and then waits for its device. */
static void outlived(bool killed)
{
	struct worker maker = worker_new(), importer = worker_new(), another = worker_new();
	start();
	OK(tell(&maker, MAKE));
	OK(tell(&importer, OPEN));
	end(&maker, killed);
	EQ(on_device(), CONTEXT + SIZE);
	EQ(charged(), CONTEXT + SIZE);
	OK(tell(&another, ALLOC));
	EQ(charged(), 2 * CONTEXT + SIZE);
	OK(tell(&importer, WAIT));
	EQ(charged(), 2 * CONTEXT + SIZE);
	OK(tell(&importer, CLOSE));
	EQ(charged(), 2 * CONTEXT);
	end(&importer, false);
	end(&another, false);
	EQ(charged(), 0);
}

static void maker_ended(void) { outlived(false); }
static void maker_killed(void) { outlived(true); }

/* Both end, in either order. */
static void all_killed(void)
{
	struct worker maker = worker_new(), importer = worker_new(), another = worker_new();
	start();
	OK(tell(&another, ALLOC));
	OK(tell(&maker, MAKE));
	OK(tell(&importer, OPEN));
	end(&maker, true);
	EQ(charged(), 2 * CONTEXT + SIZE);
	end(&importer, true);
	EQ(charged(), CONTEXT);
	end(&another, false);
}

/* No process has it open: it goes with its maker. */
static void not_open(void)
{
	struct worker maker = worker_new(), importer = worker_new();
	start();
	OK(tell(&maker, MAKE));
	OK(tell(&importer, OPEN));
	OK(tell(&importer, CLOSE));
	memset(&handle, 0, sizeof handle);
	EQ(tell(&importer, OPEN), CUDA_ERROR_INVALID_VALUE);
	end(&maker, true);
	EQ(on_device(), CONTEXT);
	EQ(charged(), CONTEXT);
	end(&importer, false);
}

/* cuMemGetInfo returns what processes held that have ended, each time. */
static void asked(void)
{
	struct worker maker[2] = {worker_new(), worker_new()};
	size_t left, total;
	start();
	for (unsigned i = 0; i < 2; i++) {
		OK(tell(&maker[i], MAKE));
		end(&maker[i], true);
		pause_ms(120); /* it asks the kernel ten times a second at most */
		OK(cuMemGetInfo_v2(&left, &total));
		EQ(total - left, CONTEXT);
	}
}

/* Two importers: the driver lists it with the one that opened it last, and then with the other. */
static void two_importers(void)
{
	struct worker maker = worker_new(), first = worker_new(), last = worker_new();
	start();
	OK(tell(&maker, MAKE));
	OK(tell(&first, OPEN));
	OK(tell(&last, OPEN));
	OK(tell(&maker, FREE));
	OK(tell(&first, WAIT));
	EQ(charged(), 3 * CONTEXT + SIZE);
	end(&maker, false);
	EQ(charged(), 2 * CONTEXT + SIZE);
	OK(tell(&first, WAIT));
	EQ(charged(), 2 * CONTEXT + SIZE);
	OK(tell(&last, WAIT));
	EQ(charged(), 2 * CONTEXT + SIZE);
	OK(tell(&last, CLOSE));
	OK(tell(&first, WAIT));
	EQ(on_device(), 2 * CONTEXT + SIZE);
	EQ(charged(), 2 * CONTEXT + SIZE);
	OK(tell(&first, CLOSE));
	EQ(charged(), 2 * CONTEXT);
	end(&first, false);
	end(&last, false);
}

RUN_PARTS(true, {"freed", freed}, {"freed-repeatedly", freed_repeatedly}, {"ended", maker_ended}, {"killed", maker_killed},
	  {"all-killed", all_killed}, {"not-open", not_open}, {"opened-before", opened_before}, {"context-reset", context_reset},
	  {"asked", asked}, {"two-importers", two_importers}, {"settled", settled}, {"module-meanwhile", module_meanwhile},
	  {"context-meanwhile", context_meanwhile})
