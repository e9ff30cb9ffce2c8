/* A machine of which a container has some of the devices: the others are not there, whatever is asked. */
#include "check.h"

static void grant(const char *uuids)
{
	char path[512];
	FILE *f;
	snprintf(path, sizeof path, "%s/present", getenv("FAKEGPU_STATE"));
	f = fopen(path, "we");
	CHECK(f != NULL && fputs(uuids, f) >= 0 && fclose(f) == 0);
}

/* The first of three devices and the last are all there is, in the machine's order. */
static int contained(const char *last)
{
	char text[96], bus[32];
	nvmlPciInfo_t pci;
	nvmlDevice_t d, same;
	CUcontext context;
	unsigned n;
	int count;

	OK(cuInit(0));
	OK(cuDeviceGetCount(&count));
	EQ(count, 2);
	EQ(nvmlInit_v2(), NVML_SUCCESS);
	EQ(nvmlDeviceGetCount_v2(&n), NVML_SUCCESS);
	EQ(n, 2);
	EQ(nvmlDeviceGetHandleByIndex_v2(2, &d), NVML_ERROR_INVALID_ARGUMENT);
	EQ(nvmlDeviceGetHandleByIndex_v2(1, &d), NVML_SUCCESS);
	EQ(nvmlDeviceGetUUID(d, text, sizeof text), NVML_SUCCESS);
	CHECK(strcmp(text, last) == 0);
	EQ(nvmlDeviceGetIndex(d, &n), NVML_SUCCESS);
	EQ(n, 1);
	EQ(nvmlDeviceGetMinorNumber(d, &n), NVML_SUCCESS);
	EQ(n, 2);
	EQ(nvmlDeviceGetPciInfo_v3(d, &pci), NVML_SUCCESS);
	EQ(nvmlDeviceGetHandleByPciBusId_v2(pci.busId, &same), NVML_SUCCESS);
	CHECK(same == d);
	snprintf(bus, sizeof bus, "00000000:%02X:00.0", 0x16); /* of the second, which is not there */
	EQ(nvmlDeviceGetHandleByPciBusId_v2(bus, &same), NVML_ERROR_NOT_FOUND);

	/* What CUDA takes of its second device is the last one's. */
	OK(cuDevicePrimaryCtxRetain(&context, 1));
	nvmlMemory_v2_t m = {.version = NVML_MEMORY_V2};
	EQ(nvmlDeviceGetMemoryInfo_v2(d, &m), NVML_SUCCESS);
	CHECK(m.used > 0);
	EQ(nvmlDeviceGetHandleByIndex_v2(0, &d), NVML_SUCCESS);
	EQ(nvmlDeviceGetMemoryInfo_v2(d, &m), NVML_SUCCESS);
	EQ(m.used, 0);
	return checks_failed > 0;
}

int main(int argc, char **argv)
{
	char uuid[3][96], list[300];
	nvmlDevice_t d;

	if (argc > 1 && strcmp(argv[1], "none") == 0)
		return cuInit(0) != CUDA_ERROR_NO_DEVICE;
	if (argc > 1)
		return contained(argv[1]);
	setenv("FAKEGPU", "h200x3", 1);
	EQ(nvmlInit_v2(), NVML_SUCCESS);
	for (unsigned i = 0; i < 3; i++) {
		EQ(nvmlDeviceGetHandleByIndex_v2(i, &d), NVML_SUCCESS);
		EQ(nvmlDeviceGetUUID(d, uuid[i], sizeof uuid[i]), NVML_SUCCESS);
	}
	snprintf(list, sizeof list, "%s\nGPU-of-another-machine\n%s\n", uuid[2], uuid[0]);
	grant(list);
	EQ(AGAIN(uuid[2], "FAKEGPU_QUIET", "1"), 0);
	EQ(WEXITSTATUS(AGAIN("none", "CUDA_VISIBLE_DEVICES", uuid[1])), 0);
	EQ(WEXITSTATUS(AGAIN("none", "CUDA_VISIBLE_DEVICES", "2")), 0);
	grant("\n");
	EQ(WEXITSTATUS(AGAIN("none", "FAKEGPU_QUIET", "1")), 0);
	return FINISH();
}
