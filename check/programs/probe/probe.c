/* What a CUDA program sees, for `ration doctor`: the driver's libraries, and the size of
 * the first device by each way in which programs look up the call that returns it. A
 * preloaded library changes the answer. No context is made, so no device memory is used.
 *
 * Called as `probe look` it tells the preloaded library of a policy that it only looks, as ration
 * itself does: then it takes no ration of its user, and does not wait for one. Called as `probe
 * load` it says only which preloaded libraries it has.
 *
 * Called as `probe context` it makes the primary context of the first device instead, says
 * `context` and the result, and keeps it until its input ends.
 *
 * Called as `probe work` it loads a kernel as well and says `work` and the result. From the next
 * byte of its input until the input ends it keeps the device at work, and then says `done` and how
 * much it did.
 *
 * Each line of output is a word and its value. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"

typedef CUresult (*init_call)(unsigned);
typedef CUresult (*total_call)(size_t *, CUdevice);
typedef CUresult (*retain_call)(CUcontext *, CUdevice);
typedef CUresult (*release_call)(CUdevice);
typedef CUresult (*current_call)(CUcontext);
typedef CUresult (*load_call)(CUmodule *, const void *);
typedef CUresult (*function_call)(CUfunction *, CUmodule, const char *);
typedef CUresult (*alloc_call)(CUdeviceptr *, size_t);
typedef CUresult (*launch_call)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
				void **);
typedef CUresult (*event_create_call)(CUevent *, unsigned);
typedef CUresult (*event_record_call)(CUevent, CUstream);
typedef CUresult (*event_call)(CUevent);
typedef CUresult (*version_call)(int *);
typedef CUresult (*proc_call)(const char *, void **, int, uint64_t);
typedef CUresult (*proc2_call)(const char *, void **, int, uint64_t, int *);
typedef nvmlReturn_t (*nvml_init_call)(void);
typedef nvmlReturn_t (*nvml_text_call)(char *, unsigned);
typedef nvmlReturn_t (*nvml_handle_call)(unsigned, nvmlDevice_t *);
typedef nvmlReturn_t (*nvml_name_call)(nvmlDevice_t, char *, unsigned);
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

/* make_context makes the primary context of the first device. */
static CUresult make_context(void *lib, CUcontext *context)
{
	init_call init = (init_call)dlsym(lib, "cuInit");
	retain_call retain = (retain_call)dlsym(lib, "cuDevicePrimaryCtxRetain");
	CUresult result = init && retain ? init(0) : CUDA_ERROR_NOT_FOUND;
	return result ? result : retain(context, 0);
}

/* keep_context makes a context, and keeps it until the input ends. */
static int keep_context(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	CUcontext context;
	char c;
	if (!lib)
		return 1;
	release_call release = (release_call)dlsym(lib, "cuDevicePrimaryCtxRelease_v2");
	CUresult result = release ? make_context(lib, &context) : CUDA_ERROR_NOT_FOUND;
	printf("context %d\n", result);
	if (result)
		return 1;
	while (read(STDIN_FILENO, &c, 1) > 0)
		;
	return release(0) != CUDA_SUCCESS;
}

/* A kernel that goes round a loop n times; its result depends on all of them. */
static const char loop_ptx[] = ".version 6.0\n.target sm_52\n.address_size 64\n"
			       ".visible .entry loop(.param .u64 to, .param .u32 n)\n{\n"
			       ".reg .pred %p<2>;\n.reg .b32 %r<5>;\n.reg .b64 %d<3>;\n"
			       "ld.param.u64 %d1, [to];\nld.param.u32 %r1, [n];\n"
			       "cvta.to.global.u64 %d2, %d1;\nmov.u32 %r2, 1;\n"
			       "again:\nmad.lo.u32 %r2, %r2, 1664525, 1013904223;\n"
			       "sub.u32 %r1, %r1, 1;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra again;\n"
			       "st.global.u32 [%d2], %r2;\nret;\n}\n";

enum { BATCH = 32, BATCHES = 4, LONGEST = 1 << 28 };

static struct {
	CUfunction loop;
	CUdeviceptr to;
	launch_call launch;
	event_record_call record;
	event_call synchronize;
	CUevent ended[BATCHES];
} device;

static CUresult launch_loops(uint32_t n, unsigned times, CUevent ended)
{
	CUresult result = CUDA_SUCCESS;
	while (!result && times--)
		result = device.launch(device.loop, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&device.to, &n}, NULL);
	return result ? result : device.record(ended, NULL);
}

static CUresult prepare_work(void *lib)
{
	CUcontext context;
	CUmodule module;
	current_call set_current = (current_call)dlsym(lib, "cuCtxSetCurrent");
	load_call load = (load_call)dlsym(lib, "cuModuleLoadData");
	function_call get = (function_call)dlsym(lib, "cuModuleGetFunction");
	alloc_call alloc = (alloc_call)dlsym(lib, "cuMemAlloc_v2");
	event_create_call create = (event_create_call)dlsym(lib, "cuEventCreate");
	device.launch = (launch_call)dlsym(lib, "cuLaunchKernel");
	device.record = (event_record_call)dlsym(lib, "cuEventRecord");
	device.synchronize = (event_call)dlsym(lib, "cuEventSynchronize");
	if (!set_current || !load || !get || !alloc || !create || !device.launch || !device.record || !device.synchronize)
		return CUDA_ERROR_NOT_FOUND;
	CUresult result = make_context(lib, &context);
	if (result || (result = set_current(context)) || (result = load(&module, loop_ptx)) || (result = get(&device.loop, module, "loop")))
		return result;
	for (unsigned i = 0; !result && i < BATCHES; i++)
		result = create(&device.ended[i], 2 /* without a time */);
	return result ? result : alloc(&device.to, sizeof(uint32_t));
}

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* How long a kernel takes: the shortest of some, as this program may lose the processor, and the first one is
 * loaded, too. */
static CUresult time_loop(uint32_t n, double *took)
{
	CUresult result = CUDA_SUCCESS;
	*took = 1;
	for (unsigned i = 0; !result && i < 5; i++) {
		double since = seconds();
		result = launch_loops(n, 1, device.ended[0]);
		if (!result)
			result = device.synchronize(device.ended[0]);
		double this_one = seconds() - since;
		*took = this_one < *took ? this_one : *took;
	}
	return result;
}

/* How many times round makes a kernel of half a millisecond; 0 if none is that long. */
static CUresult calibrate(uint32_t *n)
{
	for (*n = 1 << 12; *n <= LONGEST; *n *= 2) {
		double took;
		CUresult result = time_loop(*n, &took);
		if (result || took > 0.0005)
			return result;
	}
	*n = 0;
	return CUDA_SUCCESS;
}

static int work(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	uint32_t n = 0;
	uint64_t batches = 0;
	char c;
	CUresult result = lib ? prepare_work(lib) : CUDA_ERROR_NOT_FOUND;
	if (!result)
		result = calibrate(&n);
	printf("work %d\n", result);
	if (result || read(STDIN_FILENO, &c, 1) != 1)
		return result != CUDA_SUCCESS;
	while (n && !result && poll(&input, 1, 0) == 0) {
		CUevent *ended = &device.ended[batches % BATCHES];
		if (batches >= BATCHES)
			result = device.synchronize(*ended);
		if (!result)
			result = launch_loops(n, BATCH, *ended);
		batches++;
	}
	printf("done %llu\n", result || batches < BATCHES ? 0 : (unsigned long long)(batches - BATCHES) * BATCH * n);
	return 0;
}

static void nvml(void)
{
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	nvmlDevice_t first;
	nvmlMemory_t memory;
	char text[96] = "";
	if (!lib) {
		printf("nvml-missing %s\n", dlerror());
		return;
	}
	nvml_init_call init = (nvml_init_call)dlsym(lib, "nvmlInit_v2");
	nvml_text_call version = (nvml_text_call)dlsym(lib, "nvmlSystemGetDriverVersion");
	nvml_handle_call handle = (nvml_handle_call)dlsym(lib, "nvmlDeviceGetHandleByIndex_v2");
	nvml_name_call name = (nvml_name_call)dlsym(lib, "nvmlDeviceGetName");
	nvml_memory_call info = (nvml_memory_call)dlsym(lib, "nvmlDeviceGetMemoryInfo");
	if (!init || !version || !handle || !info || init() != 0)
		return;
	printf("nvml %s\n", file_of((void *)version));
	if (version(text, sizeof text) == 0)
		printf("driver %s\n", text);
	if (handle(0, &first) == 0 && info(first, &memory) == 0)
		printf("nvmlDeviceGetMemoryInfo %llu\n", memory.total);
	if (name && handle(0, &first) == 0 && name(first, text, sizeof text) == 0)
		printf("gpu %s\n", text);
}

static void only_look(void)
{
	void (*show)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "ration_show_machine");
	if (show)
		show();
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
	if (argc == 2 && !strcmp(argv[1], "work"))
		return work();
	if (argc == 2 && !strcmp(argv[1], "look"))
		only_look();
	printf("glibc %s\n", gnu_get_libc_version());
	dl_iterate_phdr(print_preloaded, NULL);
	if (argc == 2 && !strcmp(argv[1], "load"))
		return 0;
	int failed = cuda();
	nvml();
	return failed;
}
