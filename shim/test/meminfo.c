/* What the job sees is its ration: 2 GiB of device 0, 25 % of device 1. */
#include "held.h"

#define GIB (1024 * MIB)

CUresult cuDeviceTotalMem(unsigned *, CUdevice);

static nvmlDevice_t handle(unsigned index)
{
	nvmlDevice_t d = NULL;
	EQ(nvmlDeviceGetHandleByIndex_v2(index, &d), NVML_SUCCESS);
	return d;
}

static void memory(void)
{
	nvmlMemory_v2_t m2 = {.version = NVML_MEMORY_V2};
	size_t f, t, f2;
	unsigned f1, t1;
	nvmlMemory_t m;
	CUdeviceptr p;
	start();
	OK(cuDeviceTotalMem_v2(&t, 0));
	EQ(t, 2 * GIB);
	OK(cuDeviceTotalMem(&t1, 0));
	EQ(t1, 2 * GIB);
	OK(cuDeviceTotalMem_v2(&t, 1));
	EQ(t, 2 * GIB); /* a quarter of 8 */
	OK(cuMemGetInfo_v2(&f, &t));
	EQ(t, 2 * GIB);
	EQ(f, 2 * GIB - usage_of(0).total);
	OK(cuMemAlloc_v2(&p, 100 * MIB));
	OK(cuMemGetInfo_v2(&f2, &t));
	EQ(f - f2, 100 * MIB);
	OK(cuMemGetInfo(&f1, &t1));
	EQ(f1, f2);
	EQ(t1, 2 * GIB);
	EQ(nvmlInit_v2(), NVML_SUCCESS);
	EQ(nvmlDeviceGetMemoryInfo(handle(0), &m), NVML_SUCCESS);
	EQ(m.total, 2 * GIB);
	EQ(m.used, usage_of(0).total);
	EQ(m.free, f2);
	EQ(nvmlDeviceGetMemoryInfo_v2(handle(0), &m2), NVML_SUCCESS);
	EQ(m2.total, 2 * GIB);
	EQ(m2.used, m.used);
	EQ(m2.free + m2.used + m2.reserved, m2.total);
	EQ(nvmlDeviceGetMemoryInfo(handle(1), &m), NVML_SUCCESS);
	EQ(m.total, 2 * GIB);
	EQ(m.used, 0);
	OK(cuMemFree_v2(p));
}

/* Another process, outside of the job, is not in the lists. */
static void processes(void)
{
	nvmlProcessInfo_v1_t one[8];
	nvmlProcessInfo_t three[8];
	unsigned n = 8;
	int go[2], done[2];
	char c = 0;
	CHECK(pipe(go) == 0 && pipe(done) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		char in[16], out[16];
		snprintf(in, sizeof in, "%d", done[0]);
		snprintf(out, sizeof out, "%d", go[1]);
		unsetenv("LD_PRELOAD");
		execl("/proc/self/exe", "meminfo", in, out, (char *)NULL);
		_exit(127);
	}
	CHECK(read(go[0], &c, 1) == 1);
	EQ(nvmlDeviceGetComputeRunningProcesses_v3(handle(0), &n, three), NVML_SUCCESS);
	EQ(n, 1);
	EQ(three[0].pid, getpid());
	n = 8;
	EQ(nvmlDeviceGetComputeRunningProcesses(handle(0), &n, one), NVML_SUCCESS);
	EQ(n, 1);
	EQ(one[0].pid, getpid());
	n = 0;
	EQ(nvmlDeviceGetComputeRunningProcesses_v3(handle(0), &n, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
	EQ(n, 1);
	n = 8;
	EQ(nvmlDeviceGetGraphicsRunningProcesses_v3(handle(0), &n, three), NVML_SUCCESS);
	EQ(n, 0);
	CHECK(write(done[1], &c, 1) == 1);
	waitpid(pid, NULL, 0);
}

static int outsider(int in, int out)
{
	char c = 0;
	start();
	return write(out, &c, 1) == 1 && read(in, &c, 1) == 1 ? 0 : 1;
}

int main(int argc, char **argv)
{
	if (argc == 3)
		return outsider(atoi(argv[1]), atoi(argv[2]));
	memory();
	processes();
	OK(cuDevicePrimaryCtxRelease_v2(0));
	return FINISH();
}
