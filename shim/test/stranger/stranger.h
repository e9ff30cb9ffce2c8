/* What these programs share: threads that may hang, and what the job and the driver count. Nothing here
 * counts on time: LONG only bounds what must come, SOON what may come or not. */
#ifndef RATION_TEST_STRANGER_H
#define RATION_TEST_STRANGER_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/syscall.h>
#include <time.h>

#include "../../region/atomics.h"
#include "../held.h"

enum { LONG = 10000, SOON = 300 }; /* milliseconds */

/* A call in a thread of its own, in the primary context of device 0. */
struct task {
	CUresult (*run)(struct task *t);
	CUresult result;
	uint32_t returned;
	CUcontext context; /* current in the thread */
	CUcontext made;
	CUdeviceptr p;
	size_t bytes;
	CUmodule module;
	CUlibrary library;
	CUgraphExec exec;
	pthread_t thread;
	pid_t tid; /* atomic; 0 until it runs */
};

static inline void *task_thread(void *arg)
{
	struct task *t = arg;
	CUcontext c;
	__atomic_store_n(&t->tid, gettid(), __ATOMIC_RELEASE);
	/* Without retaining it again, which would be one more call that could hang. */
	if (cuCtxGetCurrent(&c) == CUDA_SUCCESS && c == NULL && t->context != NULL)
		(void)!cuCtxSetCurrent(t->context);
	t->result = t->run(t);
	__atomic_store_n(&t->returned, 1, __ATOMIC_RELEASE);
	return NULL;
}

static inline void task_begin(struct task *t, CUcontext c)
{
	t->context = c;
	EQ(pthread_create(&t->thread, NULL, task_thread, t), 0);
}

static inline void pause_ms(unsigned ms) { nanosleep(&(struct timespec){ms / 1000, (long)(ms % 1000) * 1000000}, NULL); }

/* Whether a task has returned, within so many milliseconds. */
static inline bool task_returned(struct task *t, unsigned ms)
{
	for (; !__atomic_load_n(&t->returned, __ATOMIC_ACQUIRE) && ms > 0; ms--)
		pause_ms(1);
	return __atomic_load_n(&t->returned, __ATOMIC_ACQUIRE);
}

/* Ends the program without waiting for threads that hang. */
static inline _Noreturn void finish_now(const char *file)
{
	int status = finish(file);
	fflush(NULL);
	_exit(status);
}

/* Waits for the end of a task that must end; where it does not, the program is over. */
static inline void task_join(struct task *t, const char *file, int line)
{
	if (!task_returned(t, LONG)) {
		fprintf(stderr, "%s:%d: a call does not return\n", file, line);
		checks_failed++;
		finish_now(file);
	}
	EQ(pthread_join(t->thread, NULL), 0);
}

#define JOIN(task) task_join(task, __FILE__, __LINE__)

/* Whether the task's thread sleeps in a futex, as one that waits for a lock does. */
static inline bool task_waits(struct task *t)
{
	char path[64], line[32] = "";
	snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)__atomic_load_n(&t->tid, __ATOMIC_ACQUIRE));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	(void)!read(fd, line, sizeof line - 1);
	close(fd);
	return line[0] >= '0' && line[0] <= '9' && atol(line) == SYS_futex;
}

/* Waits until a call is held at a gate, waits for another thread's, or has returned without
 * coming there. A thread that is only about to take a lock that is free may pass for one that
 * waits: what follows is then less of a test, but none that fails. */
static inline void task_settle(struct task *t, const char *call, unsigned held)
{
	unsigned waits = 0;
	for (unsigned ms = 0; ms < LONG && waits < 10 && fakegpu_held(call, held, 0) < held && !task_returned(t, 0); ms++) {
		waits = task_waits(t) ? waits + 1 : 0;
		pause_ms(1);
	}
}

static inline void set_limit(unsigned device, uint64_t bytes) { EQ(region_set_limit(region_here(), device, make_limit(bytes)), REGION_OK); }

/* The job's limit, and what the driver says is in use of a device. */
static inline uint64_t limit_of(unsigned device) { return limit_bytes(region_limit(region_here(), device)); }

static inline uint64_t in_use(int device)
{
	uint64_t n = 0;
	EQ(fakegpu_truth(device, NULL, &n), 0);
	return n;
}

#define WITHIN_LIMIT(device) CHECK(in_use(device) <= limit_of(device))

/* The job counts of a device what the driver counts, of all kinds together. */
#define BALANCED(device) EQ(region_used(region_here(), (unsigned)(device)), in_use(device))

static inline uint64_t remembered_cost(void)
{
	return context_cost_for(load_acquire(&region_here()->m->devices[0].context_cost), region_here()->limits->device[0].uuid);
}

/* Parts of a program, each a process of its own in one job. The first, "remember", has a
 * context and ends, so that the job knows what one costs. */
struct part {
	const char *name;
	void (*run)(void);
};

static inline int run_parts(int argc, char **argv, const struct part *parts, bool remember, const char *file)
{
	if (argc > 1 && !strcmp(argv[1], "remember")) {
		start();
		return checks_failed > 0;
	}
	for (; argc > 1 && parts->name != NULL; parts++)
		if (!strcmp(argv[1], parts->name)) {
			parts->run();
			fflush(NULL);
			_exit(checks_failed > 0); /* some thread may hang */
		}
	if (remember)
		EQ(AGAIN("remember", NULL), 0);
	for (; parts->name != NULL; parts++) {
		int status = AGAIN(parts->name, NULL);
		if (status != 0)
			fprintf(stderr, "%s: status %#x\n", parts->name, (unsigned)status);
		EQ(status, 0);
		unsigned reaped; /* it left without giving back what it held */
		EQ(region_reap(region_here(), &reaped), REGION_OK);
	}
	return finish(file);
}

#define RUN_PARTS(remember, ...)                                                \
	int main(int argc, char **argv)                                         \
	{                                                                       \
		static const struct part parts[] = {__VA_ARGS__, {NULL, NULL}}; \
		return run_parts(argc, argv, parts, remember, __FILE__);        \
	}

/* How many lines of the log, which is in a file, have the text in them. */
static inline unsigned log_lines(const char *text)
{
	char buf[4096];
	unsigned n = 0;
	FILE *f = fopen(getenv("RATION_LOG_FILE"), "r");
	while (f && fgets(buf, sizeof buf, f))
		n += strstr(buf, text) != NULL;
	if (f)
		fclose(f);
	return n;
}

/* LOGGED checks that n lines have the text in them, and shows the log where they are not so many. */
#define LOGGED(text, n)                     \
	do {                                \
		if (log_lines(text) != (n)) \
			log_show();         \
		EQ(log_lines(text), n);     \
	} while (0)

static inline void log_show(void)
{
	char buf[4096];
	FILE *f = fopen(getenv("RATION_LOG_FILE"), "r");
	while (f && fgets(buf, sizeof buf, f))
		fputs(buf, stderr);
	if (f)
		fclose(f);
}

/* Unmaps the page whose file keeps this process's bytes counted until the driver has freed them. */
static inline void lose_keep(void)
{
	char line[1024];
	unsigned long from, to;
	unsigned unmapped = 0;
	FILE *f = fopen("/proc/self/maps", "re");
	while (f && fgets(line, sizeof line, f))
		if (strstr(line, getenv("RATION_REGION")) && sscanf(line, "%lx-%lx ---s", &from, &to) == 2 && strstr(line, " ---s "))
			unmapped += munmap((void *)from, to - from) == 0;
	if (f)
		fclose(f);
	EQ(unmapped, 1);
}

/* Closes the library's descriptor of the region, and with it drops the lock. */
static inline void lose_lock(void)
{
	struct stat a, b;
	unsigned closed = 0;
	EQ(stat(getenv("RATION_REGION"), &b), 0);
	for (int fd = 3; fd < 1024; fd++)
		if (fstat(fd, &a) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
			closed += close(fd) == 0;
	CHECK(closed > 0);
}

/* Runs the rest of a test in a process of a new PID namespace, where the host's PID is not known. Does
 * nothing if the kernel does not permit that. */
static inline void in_pid_namespace(void (*inside)(void))
{
	int status = -1;
	if (unshare(CLONE_NEWPID) != 0)
		return;
	pid_t pid = fork();
	if (pid == 0) {
		inside();
		fflush(NULL);
		_exit(checks_failed > 0);
	}
	EQ(waitpid(pid, &status, 0), pid);
	EQ(status, 0);
}

/* PTX with a variable of so many bytes. */
#define PTX(variable) ".version 7.0\n.target sm_80\n.address_size 64\n" variable ".visible .entry k() { ret; }\n"
#define BIG_100M ".visible .global .align 4 .b8 big[104000000];\n" /* 100 MiB with its code */

#endif
