/* What a CUDA program sees, for `ration doctor`: the driver's libraries, and the size of
 * the first device by each way in which programs look up the call that returns it. A
 * preloaded library changes the answer. No context is made, so no device memory is used.
 *
 * Called as `probe context` it makes the primary context of the first device instead, says
 * `context` and the result, and keeps it until its input ends.
 *
 * Each line of output is a word and its value. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"

typedef CUresult (*init_call)(unsigned);
typedef CUresult (*total_call)(size_t *, CUdevice);
typedef CUresult (*retain_call)(CUcontext *, CUdevice);
typedef CUresult (*release_call)(CUdevice);
typedef CUresult (*version_call)(int *);
typedef CUresult (*proc_call)(const char *, void **, int, uint64_t);
typedef CUresult (*proc2_call)(const char *, void **, int, uint64_t, int *);
typedef nvmlReturn_t (*nvml_init_call)(void);
typedef nvmlReturn_t (*nvml_text_call)(char *, unsigned);
typedef nvmlReturn_t (*nvml_handle_call)(unsigned, nvmlDevice_t *);
typedef nvmlReturn_t (*nvml_memory_call)(nvmlDevice_t, nvmlMemory_t *);

/* file_of returns the library that has an address, or nothing. */
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
	/* A name that no preloaded library hooks: the file is the real driver. */
	printf("libcuda %s\n", file_of(dlsym(lib, "cuDriverGetVersion")));
	version_call get = (version_call)dlsym(lib, "cuDriverGetVersion");
	if (get && get(&version) == 0)
		printf("cuda %d\n", version);
	init_call init = (init_call)dlsym(lib, "cuInit");
	result = init ? init(0) : -1;
	printf("init %d\n", result);
	if (result)
		return 1;
	/* What the dynamic linker binds a program to that is linked with the driver. */
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

/* keep_context makes a context, and keeps it until the input ends. */
static int keep_context(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	CUcontext context;
	char c;
	if (!lib)
		return 1;
	init_call init = (init_call)dlsym(lib, "cuInit");
	retain_call retain = (retain_call)dlsym(lib, "cuDevicePrimaryCtxRetain");
	release_call release = (release_call)dlsym(lib, "cuDevicePrimaryCtxRelease_v2");
	if (!init || !retain || !release)
		return 1;
	CUresult result = init(0);
	if (!result)
		result = retain(&context, 0);
	printf("context %d\n", result);
	if (result)
		return 1;
	while (read(STDIN_FILENO, &c, 1) > 0)
		;
	return release(0) != CUDA_SUCCESS;
}

static void nvml(void)
{
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	nvmlDevice_t device;
	nvmlMemory_t memory;
	char text[96] = "";
	if (!lib) {
		printf("nvml-missing %s\n", dlerror());
		return;
	}
	nvml_init_call init = (nvml_init_call)dlsym(lib, "nvmlInit_v2");
	nvml_text_call version = (nvml_text_call)dlsym(lib, "nvmlSystemGetDriverVersion");
	nvml_handle_call handle = (nvml_handle_call)dlsym(lib, "nvmlDeviceGetHandleByIndex_v2");
	nvml_memory_call info = (nvml_memory_call)dlsym(lib, "nvmlDeviceGetMemoryInfo");
	if (!init || !version || !handle || !info || init() != 0)
		return;
	printf("nvml %s\n", file_of((void *)version));
	if (version(text, sizeof text) == 0)
		printf("driver %s\n", text);
	if (handle(0, &device) == 0 && info(device, &memory) == 0)
		printf("nvmlDeviceGetMemoryInfo %llu\n", memory.total);
}

/* print_preloaded prints the libraries that hook the driver: ours, and HAMi-core's. */
static int print_preloaded(struct dl_phdr_info *info, size_t size, void *arg)
{
	const char *base = strrchr(info->dlpi_name, '/');
	(void)size, (void)arg;
	base = base ? base + 1 : info->dlpi_name;
	if (!strcmp(base, "libration.so") || !strcmp(base, "libvgpu.so"))
		printf("between %s\n", info->dlpi_name);
	return 0;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 2 && !strcmp(argv[1], "context"))
		return keep_context();
	printf("glibc %s\n", gnu_get_libc_version());
	dl_iterate_phdr(print_preloaded, NULL);
	int failed = cuda();
	nvml();
	return failed;
}
