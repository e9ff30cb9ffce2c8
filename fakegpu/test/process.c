/* Many processes on one machine: what they hold, and what is left of the dead. */
#define _GNU_SOURCE
#include <time.h>

#include "check.h"
#include "child.h"

static const uint64_t CONTEXT = 300 * MIB;

static bool heard(struct child c, void *out, size_t n) { return read(c.from, out, n) == (ssize_t)n; }

static void say(const void *p, size_t n)
{
	if (write(1, p, n) != (ssize_t)n)
		_exit(1);
}

static void wait_for_end(void)
{
	char c;
	while (read(0, &c, 1) > 0) {
	}
}

/* A process with a context and 100 MiB. */
static int holder(void)
{
	CUdeviceptr p;
	start();
	OK(cuMemAlloc_v2(&p, 100 * MIB));
	say("r", 1);
	wait_for_end();
	OK(cuMemFree_v2(p));
	return checks_failed > 0;
}

/* A process that allocates and frees without pause. */
static int worker(void)
{
	enum { LIVE = 64 };
	CUdeviceptr p[LIVE] = {0};
	unsigned x = (unsigned)getpid() * 2654435761u;
	start();
	say("r", 1);
	for (;;) {
		unsigned i = (x = x * 1664525 + 1013904223) >> 26;
		if (p[i] != 0) {
			cuMemFree_v2(p[i]);
			p[i] = 0;
		} else {
			cuMemAlloc_v2(&p[i], 1 + (x >> 4) % (8 * MIB));
		}
	}
	return 0;
}

static int exporter(void)
{
	CUipcMemHandle h;
	CUdeviceptr p;
	start();
	OK(cuMemAlloc_v2(&p, 10 * MIB));
	OK(cuIpcGetMemHandle(&h, p));
	EQ(cuIpcOpenMemHandle_v2(&p, h, 1), CUDA_ERROR_INVALID_VALUE); /* not one's own */
	say(&h, sizeof h);
	wait_for_end();
	return checks_failed > 0;
}

/* Exports memory; frees it at a byte from its parent, and answers with one. */
static int exporter_frees(void)
{
	CUipcMemHandle h;
	CUdeviceptr p;
	char byte;
	start();
	OK(cuMemAlloc_v2(&p, 10 * MIB));
	OK(cuIpcGetMemHandle(&h, p));
	say(&h, sizeof h);
	EQ(read(0, &byte, 1), 1);
	OK(cuMemFree_v2(p));
	say(&byte, 1);
	wait_for_end();
	return checks_failed > 0;
}

/* Opens the handle that its parent sends, and answers with a byte. */
static int importer(void)
{
	CUipcMemHandle h;
	CUdeviceptr p;
	start();
	EQ(read(0, &h, sizeof h), (ssize_t)sizeof h);
	OK(cuIpcOpenMemHandle_v2(&p, h, 1));
	say(&h, 1);
	wait_for_end();
	return checks_failed > 0;
}

static void sums(void)
{
	enum { N = 5 };
	struct child c[N];
	char byte;
	for (int i = 0; i < N; i++)
		c[i] = spawn("holder");
	for (int i = 0; i < N; i++)
		CHECK(heard(c[i], &byte, 1));
	EQ(everybody(), CONTEXT + N * (CONTEXT + 100 * MIB));
	EQ(mine(), CONTEXT);
	EQ(WTERMSIG(end(c[0], SIGKILL)), SIGKILL);
	EQ(everybody(), CONTEXT + (N - 1) * (CONTEXT + 100 * MIB));
	for (int i = 1; i < N; i++)
		EQ(end(c[i], 0), 0);
	EQ(everybody(), CONTEXT);
}

/* An allocation that only fits once a dead process is seen to be dead. */
static void refusal_reaps(void)
{
	struct child c = spawn("holder");
	CUdeviceptr p;
	size_t left, total;
	char byte;
	CHECK(heard(c, &byte, 1));
	OK(cuMemGetInfo_v2(&left, &total));
	EQ(cuMemAlloc_v2(&p, left + MIB), CUDA_ERROR_OUT_OF_MEMORY);
	end(c, SIGKILL);
	OK(cuMemAlloc_v2(&p, left + MIB));
	OK(cuMemFree_v2(p));
}

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void storm(unsigned ms)
{
	enum { N = 6 };
	struct child c[N];
	uint64_t until = now_ms() + ms;
	size_t left, total;
	unsigned kills = 0;
	char byte;

	srand(1);
	for (int i = 0; i < N; i++)
		c[i] = spawn("worker");
	for (int i = 0; i < N; i++)
		CHECK(heard(c[i], &byte, 1));
	while (now_ms() < until || kills < 20) {
		int i = rand() % N;
		usleep((useconds_t)(rand() % 3000));
		if (rand() % 8 == 0) { /* one that is stopped stops no other */
			kill(c[i].pid, SIGSTOP);
			OK(cuMemGetInfo_v2(&left, &total));
			CHECK(left <= total);
		}
		end(c[i], SIGKILL);
		kills++;
		c[i] = spawn("worker");
	}
	for (int i = 0; i < N; i++)
		end(c[i], SIGKILL);
	EQ(everybody(), CONTEXT);
	EQ(mine(), CONTEXT);
}

static void forked(void)
{
	CUdeviceptr p;
	int status, n;
	pid_t pid = fork();
	if (pid == 0) {
		bool ok = cuInit(0) == CUDA_ERROR_NOT_INITIALIZED && cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED &&
			  cuMemAlloc_v2(&p, 5) == CUDA_ERROR_NOT_INITIALIZED && cuDriverGetVersion(&n) == CUDA_SUCCESS;
		exit(ok ? 0 : 1);
	}
	waitpid(pid, &status, 0);
	EQ(status, 0);
	EQ(mine(), CONTEXT); /* the child's end took nothing along */
}

/* A child that outlives its parent keeps the parent's memory, as it has the driver's files. */
static int orphan(void)
{
	CUdeviceptr p;
	start();
	OK(cuMemAlloc_v2(&p, 50 * MIB));
	if (fork() == 0) {
		wait_for_end();
		_exit(0);
	}
	say("r", 1);
	raise(SIGKILL);
	return 1;
}

static void outlived(void)
{
	struct child c = spawn("orphan");
	int status;
	char byte;
	CHECK(heard(c, &byte, 1));
	waitpid(c.pid, &status, 0);
	EQ(everybody(), 2 * CONTEXT + 50 * MIB);
	close(c.to); /* ends the grandchild, whose end we cannot wait for */
	close(c.from);
	for (uint64_t until = now_ms() + 60000; everybody() != CONTEXT && now_ms() < until;)
		usleep(1000);
	EQ(everybody(), CONTEXT);
}

/* Holds memory, and becomes another program: one that does nothing, or holds again. */
static int becomes(const char *role)
{
	CUdeviceptr p;
	start();
	OK(cuMemAlloc_v2(&p, 50 * MIB));
	execl("/proc/self/exe", "process", role, (char *)NULL);
	return 1;
}

static int becomes_idle(void) { return becomes("idle"); }
static int becomes_holder(void) { return becomes("holder"); }

static int idle(void)
{
	say("r", 1);
	wait_for_end();
	return 0;
}

/* A program holds nothing of what it was before. */
static void became(void)
{
	char byte;
	struct child c = spawn("becomes-idle");
	CHECK(heard(c, &byte, 1));
	EQ(everybody(), CONTEXT);
	EQ(end(c, 0), 0);
	c = spawn("becomes-holder");
	CHECK(heard(c, &byte, 1));
	EQ(everybody(), 2 * CONTEXT + 100 * MIB);
	EQ(end(c, 0), 0);
	EQ(everybody(), CONTEXT);
}

static void ipc(void)
{
	struct child c = spawn("exporter");
	CUipcMemHandle h;
	CUdeviceptr p, base;
	size_t size;
	CHECK(heard(c, &h, sizeof h));
	OK(cuIpcOpenMemHandle_v2(&p, h, 1));
	OK(cuMemGetAddressRange_v2(&base, &size, p));
	EQ(size, 10 * MIB);
	EQ(mine(), CONTEXT); /* the exporter's */
	EQ(everybody(), 2 * CONTEXT + 10 * MIB);
	EQ(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	OK(cuIpcCloseMemHandle(p));
	EQ(cuIpcCloseMemHandle(p), CUDA_ERROR_INVALID_VALUE);
	EQ(end(c, 0), 0);
	EQ(cuIpcOpenMemHandle_v2(&p, h, 1), CUDA_ERROR_INVALID_VALUE);
}

/* Memory that its maker has freed, or left, counts for the process that opened it last. */
static void ipc_kept(bool killed)
{
	struct child maker = spawn(killed ? "exporter" : "exporter-frees"), other = spawn("importer");
	CUipcMemHandle h;
	CUdeviceptr p, late;
	char byte;
	CHECK(heard(maker, &h, sizeof h));
	OK(cuIpcOpenMemHandle_v2(&p, h, 1));
	EQ(write(other.to, &h, sizeof h), (ssize_t)sizeof h);
	CHECK(heard(other, &byte, 1));
	if (killed) {
		EQ(end(maker, SIGKILL), SIGKILL);
	} else {
		EQ(write(maker.to, &byte, 1), 1);
		CHECK(heard(maker, &byte, 1));
	}
	/* A process that has it open can open it once more, and is not the last one by that. */
	OK(cuIpcOpenMemHandle_v2(&late, h, 1));
	OK(cuIpcCloseMemHandle(late));
	EQ(mine(), CONTEXT);
	EQ(everybody(), (killed ? 2 : 3) * CONTEXT + 10 * MIB);
	EQ(end(other, 0), 0);
	EQ(mine(), CONTEXT + 10 * MIB);
	OK(cuIpcCloseMemHandle(p));
	EQ(cuIpcOpenMemHandle_v2(&late, h, 1), CUDA_ERROR_INVALID_VALUE);
	EQ(mine(), CONTEXT);
	if (!killed)
		EQ(end(maker, 0), 0);
	EQ(everybody(), CONTEXT);
}

static void listed(void)
{
	struct child c = spawn("holder");
	nvmlProcessInfo_t list[8];
	nvmlProcessInfo_v1_t old[8];
	unsigned n = 8, found = 0;
	nvmlDevice_t d;
	char byte, name[64];
	CHECK(heard(c, &byte, 1));
	EQ(nvmlInit_v2(), NVML_SUCCESS);
	EQ(nvmlDeviceGetHandleByIndex_v2(0, &d), NVML_SUCCESS);
	EQ(nvmlDeviceGetComputeRunningProcesses_v3(d, &n, list), NVML_SUCCESS);
	EQ(n, 2);
	for (unsigned i = 0; i < n && i < 8; i++) {
		found += list[i].pid == (unsigned)c.pid && list[i].usedGpuMemory == CONTEXT + 100 * MIB;
		found += list[i].pid == (unsigned)getpid() && list[i].usedGpuMemory == CONTEXT;
		EQ((int)list[i].gpuInstanceId, -1);
	}
	EQ(found, 2);
	n = 8;
	EQ(nvmlDeviceGetComputeRunningProcesses(d, &n, old), NVML_SUCCESS);
	EQ(old[1].usedGpuMemory + old[0].usedGpuMemory, 2 * CONTEXT + 100 * MIB);
	n = 1;
	EQ(nvmlDeviceGetComputeRunningProcesses_v3(d, &n, list), NVML_ERROR_INSUFFICIENT_SIZE);
	EQ(n, 2);
	EQ(nvmlSystemGetProcessName((unsigned)c.pid, name, sizeof name), NVML_SUCCESS);
	EQ(end(c, SIGKILL), SIGKILL);
	n = 8;
	EQ(nvmlDeviceGetComputeRunningProcesses_v3(d, &n, list), NVML_SUCCESS);
	EQ(n, 1);
	EQ(nvmlShutdown(), NVML_SUCCESS);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(void);
	} roles[] = {
		{"holder", holder},     {"worker", worker}, {"exporter", exporter},         {"exporter-frees", exporter_frees},
		{"importer", importer}, {"orphan", orphan}, {"becomes-idle", becomes_idle}, {"becomes-holder", becomes_holder},
		{"idle", idle},
	};
	setenv("FAKEGPU", "a100", 1);
	for (size_t i = 0; argc > 1 && i < sizeof roles / sizeof *roles; i++)
		if (strcmp(argv[1], roles[i].name) == 0)
			return roles[i].run();
	start();
	sums();
	refusal_reaps();
	storm(2000);
	forked();
	outlived();
	became();
	ipc();
	ipc_kept(false);
	ipc_kept(true);
	listed();
	return FINISH();
}
