/* GPUs that are divided into MIG devices. */
#include "check.h"

/* A process sees one MIG device, which has its own UUID, name and memory. */
static int contained(const char *uuid)
{
	CUuuid own, gpu;
	CUdevice d;
	CUdeviceptr p;
	char name[96];
	size_t bytes;
	int count;

	OK(cuInit(0));
	OK(cuDeviceGetCount(&count));
	EQ(count, 1);
	OK(cuDeviceGet(&d, 0));
	OK(cuDeviceGetUuid_v2(&own, d));
	OK(cuDeviceGetUuid(&gpu, d));
	CHECK(memcmp(&own, &gpu, sizeof own) != 0);
	char text[64], *at = text + sprintf(text, "MIG-");
	for (int i = 0; i < 16; i++)
		at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)own.bytes[i]);
	CHECK(strcmp(text, uuid) == 0);
	OK(cuDeviceGetName(name, sizeof name, d));
	CHECK(strstr(name, "MIG 1g.10gb") != NULL);
	OK(cuDeviceTotalMem_v2(&bytes, d));
	EQ(bytes, 9984 * MIB);
	start();
	EQ(cuMemAlloc_v2(&p, 9984 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemAlloc_v2(&p, 100 * MIB));

	nvmlDevice_t part, whole;
	nvmlMemory_v2_t m = {.version = NVML_MEMORY_V2};
	unsigned n;
	EQ(nvmlInit_v2(), NVML_SUCCESS);
	EQ(nvmlDeviceGetHandleByUUID(uuid, &part), NVML_SUCCESS);
	EQ(nvmlDeviceGetMemoryInfo_v2(part, &m), NVML_SUCCESS);
	EQ(m.used, 400 * MIB);
	n = 4;
	nvmlProcessInfo_t list[4];
	EQ(nvmlDeviceGetComputeRunningProcesses_v3(part, &n, list), NVML_SUCCESS);
	EQ(n, 1);
	EQ(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part, &whole), NVML_SUCCESS);
	EQ(nvmlDeviceGetMemoryInfo_v2(whole, &m), NVML_SUCCESS);
	EQ(m.total, 81559 * MIB);
	EQ(m.used, 400 * MIB);
	n = 4;
	EQ(nvmlDeviceGetComputeRunningProcesses_v3(whole, &n, list), NVML_SUCCESS);
	EQ(n, 1);
	return checks_failed > 0;
}

int main(int argc, char **argv)
{
	char text[96], uuid[96], parent[96];
	nvmlDevice_t gpu, part, same;
	nvmlPciInfo_t pci;
	unsigned n, later;

	if (argc > 1)
		return contained(argv[1]);
	setenv("FAKEGPU", "h100migx9", 1);
	EQ(nvmlInit_v2(), NVML_SUCCESS);
	EQ(nvmlDeviceGetCount_v2(&n), NVML_SUCCESS);
	EQ(n, 2);
	EQ(nvmlDeviceGetHandleByIndex_v2(1, &gpu), NVML_SUCCESS);
	EQ(nvmlDeviceGetIndex(gpu, &n), NVML_SUCCESS);
	EQ(n, 1);
	EQ(nvmlDeviceGetMigMode(gpu, &n, &later), NVML_SUCCESS);
	EQ(n, 1);
	EQ(nvmlDeviceGetMaxMigDeviceCount(gpu, &n), NVML_SUCCESS);
	EQ(n, 7);
	EQ(nvmlDeviceGetName(gpu, text, sizeof text), NVML_SUCCESS);
	CHECK(strcmp(text, "NVIDIA H100 80GB HBM3") == 0);
	EQ(nvmlDeviceGetUUID(gpu, parent, sizeof parent), NVML_SUCCESS);
	CHECK(strncmp(parent, "GPU-", 4) == 0);
	EQ(nvmlDeviceGetHandleByUUID(parent, &same), NVML_SUCCESS);
	CHECK(same == gpu);
	EQ(nvmlDeviceGetPciInfo_v3(gpu, &pci), NVML_SUCCESS);
	CHECK(strcmp(pci.busId, "00000000:16:00.0") == 0);
	EQ(nvmlDeviceGetHandleByPciBusId_v2(pci.busId, &same), NVML_SUCCESS);
	CHECK(same == gpu);
	EQ(nvmlDeviceGetMigDeviceHandleByIndex(gpu, 2, &part), NVML_ERROR_NOT_FOUND);
	EQ(nvmlDeviceGetMigDeviceHandleByIndex(gpu, 7, &part), NVML_ERROR_INVALID_ARGUMENT);
	EQ(nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1, &part), NVML_SUCCESS);
	EQ(nvmlDeviceIsMigDeviceHandle(part, &n), NVML_SUCCESS);
	EQ(n, 1);
	EQ(nvmlDeviceIsMigDeviceHandle(gpu, &n), NVML_SUCCESS);
	EQ(n, 0);
	EQ(nvmlDeviceGetIndex(part, &n), NVML_SUCCESS);
	EQ(n, 1);
	EQ(nvmlDeviceGetUUID(part, uuid, sizeof uuid), NVML_SUCCESS);
	CHECK(strncmp(uuid, "MIG-", 4) == 0);
	EQ(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part, &same), NVML_SUCCESS);
	CHECK(same == gpu);
	EQ(AGAIN(uuid, "CUDA_VISIBLE_DEVICES", uuid), 0);
	return FINISH();
}
