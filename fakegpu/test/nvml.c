/* NVML about the machine itself; process.c has the processes. */
#include "check.h"

int main(void)
{
	nvmlMemory_v2_t m2 = {.version = NVML_MEMORY_V2};
	nvmlMemory_t m;
	nvmlDevice_t d, same;
	nvmlPciInfo_t pci;
	CUdeviceptr p;
	char text[96];
	unsigned n;

	setenv("FAKEGPU", "h200x2", 1);
	EQ(nvmlDeviceGetCount_v2(&n), NVML_ERROR_UNINITIALIZED);
	EQ(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
	EQ(nvmlInit_v2(), NVML_SUCCESS);
	EQ(nvmlInit_v2(), NVML_SUCCESS);
	EQ(nvmlDeviceGetCount_v2(&n), NVML_SUCCESS);
	EQ(n, 2);
	EQ(nvmlDeviceGetHandleByIndex_v2(2, &d), NVML_ERROR_INVALID_ARGUMENT);
	EQ(nvmlDeviceGetHandleByIndex_v2(1, &d), NVML_SUCCESS);
	EQ(nvmlDeviceGetIndex(d, &n), NVML_SUCCESS);
	EQ(n, 1);
	EQ(nvmlDeviceGetName(d, text, sizeof text), NVML_SUCCESS);
	CHECK(strcmp(text, "NVIDIA H200") == 0);
	EQ(nvmlDeviceGetName(d, text, 4), NVML_ERROR_INSUFFICIENT_SIZE);
	EQ(nvmlDeviceGetUUID(d, text, sizeof text), NVML_SUCCESS);
	EQ(nvmlDeviceGetHandleByUUID(text, &same), NVML_SUCCESS);
	CHECK(same == d);
	EQ(nvmlDeviceGetPciInfo_v3(d, &pci), NVML_SUCCESS);
	EQ(nvmlDeviceGetHandleByPciBusId_v2(pci.busId, &same), NVML_SUCCESS);
	CHECK(same == d);
	n = 5;
	EQ(nvmlDeviceGetGraphicsRunningProcesses_v3(d, &n, NULL), NVML_SUCCESS);
	EQ(n, 0);
	EQ(nvmlDeviceGetIndex((nvmlDevice_t)&n, &n), NVML_ERROR_INVALID_ARGUMENT);

	start();
	OK(cuMemAlloc_v2(&p, MIB));
	EQ(nvmlDeviceGetHandleByIndex_v2(0, &d), NVML_SUCCESS);
	EQ(nvmlDeviceGetMemoryInfo_v2(d, &m2), NVML_SUCCESS);
	EQ(m2.total, 143771 * MIB);
	EQ(m2.used, 519 * MIB);
	EQ(m2.reserved, 629824 * KIB);
	EQ(m2.total, m2.used + m2.reserved + m2.free);
	EQ(nvmlDeviceGetMemoryInfo(d, &m), NVML_SUCCESS);
	EQ(m.used, m2.used + m2.reserved);
	EQ(m.free, m2.free);
	m2.version = 1;
	EQ(nvmlDeviceGetMemoryInfo_v2(d, &m2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	OK(cuMemFree_v2(p));
	EQ(nvmlShutdown(), NVML_SUCCESS);
	EQ(nvmlShutdown(), NVML_SUCCESS);
	EQ(nvmlDeviceGetCount_v2(&n), NVML_ERROR_UNINITIALIZED);
	EQ(mine(), 518 * MIB); /* NVML's end is not CUDA's */
	return FINISH();
}
