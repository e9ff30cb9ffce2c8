/* What a CUDA program sees from inside, for `ration doctor`: which libraries of the
 * driver there are, and how large the first device is by each way in which programs
 * reach the call that tells. A library that stands in between shows by its answer.
 * No context is made, so nothing is taken from the device.
 *
 * One fact a line: a word and its value. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int (*init_call)(unsigned);
typedef int (*total_call)(size_t *, int);
typedef int (*version_call)(int *);
typedef int (*proc_call)(const char *, void **, int, uint64_t);
typedef int (*proc2_call)(const char *, void **, int, uint64_t, int *);
typedef int (*nvml_call)(void);
typedef int (*nvml_text_call)(char *, unsigned);
typedef int (*nvml_handle_call)(unsigned, void **);
typedef int (*nvml_memory_call)(void *, uint64_t *);

static const char *file_of(void *address)
{
	Dl_info info;
	return address && dladdr(address, &info) ? info.dli_fname : "";
}

static void total_by(const char *way, total_call total)
{
	size_t bytes = 0;
	if (!total)
		printf("%s none\n", way);
	else if (total(&bytes, 0) == 0)
		printf("%s %zu\n", way, bytes);
	else
		printf("%s error\n", way);
}

static int cuda(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW), *found = NULL;
	int version = 0, status = 0, result;
	if (!lib) {
		printf("libcuda-missing %s\n", dlerror());
		return 1;
	}
	/* By a name that nobody hooks: where the real one is. */
	printf("libcuda %s\n", file_of(dlsym(lib, "cuDriverGetVersion")));
	version_call get = (version_call)dlsym(lib, "cuDriverGetVersion");
	if (get && get(&version) == 0)
		printf("cuda %d\n", version);
	init_call init = (init_call)dlsym(lib, "cuInit");
	result = init ? init(0) : -1;
	printf("init %d\n", result);
	if (result)
		return 1;
	/* What a program that is linked with the driver would be bound to. */
	dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	total_by("link", (total_call)dlsym(RTLD_DEFAULT, "cuDeviceTotalMem_v2"));
	total_by("dlsym", (total_call)dlsym(lib, "cuDeviceTotalMem_v2"));
	proc_call proc = (proc_call)dlsym(lib, "cuGetProcAddress");
	if (proc && proc("cuDeviceTotalMem", &found, 11030, 0) == 0)
		total_by("cuGetProcAddress", (total_call)found);
	proc2_call proc2 = (proc2_call)dlsym(lib, "cuGetProcAddress_v2");
	if (proc2 && proc2("cuDeviceTotalMem", &found, version, 0, &status) == 0)
		total_by("cuGetProcAddress_v2", (total_call)found);
	return 0;
}

static void nvml(void)
{
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device;
	char text[96] = "";
	uint64_t memory[3] = {0, 0, 0}; /* total, free, used */
	if (!lib) {
		printf("nvml-missing %s\n", dlerror());
		return;
	}
	nvml_call init = (nvml_call)dlsym(lib, "nvmlInit_v2");
	nvml_text_call version = (nvml_text_call)dlsym(lib, "nvmlSystemGetDriverVersion");
	nvml_handle_call handle = (nvml_handle_call)dlsym(lib, "nvmlDeviceGetHandleByIndex_v2");
	nvml_memory_call info = (nvml_memory_call)dlsym(lib, "nvmlDeviceGetMemoryInfo");
	if (!init || !version || !handle || !info || init() != 0)
		return;
	printf("nvml %s\n", file_of((void *)version));
	if (version(text, sizeof text) == 0)
		printf("driver %s\n", text);
	if (handle(0, &device) == 0 && info(device, memory) == 0)
		printf("nvmlDeviceGetMemoryInfo %llu\n", (unsigned long long)memory[0]);
}

/* Libraries that stand between programs and the driver: ours, and HAMi-core's. */
static int between(struct dl_phdr_info *info, size_t size, void *arg)
{
	const char *base = strrchr(info->dlpi_name, '/');
	(void)size, (void)arg;
	base = base ? base + 1 : info->dlpi_name;
	if (!strcmp(base, "libration.so") || !strcmp(base, "libvgpu.so"))
		printf("between %s\n", info->dlpi_name);
	return 0;
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("glibc %s\n", gnu_get_libc_version());
	dl_iterate_phdr(between, NULL);
	int failed = cuda();
	nvml();
	return failed;
}
