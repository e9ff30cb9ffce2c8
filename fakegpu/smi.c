/* fake-smi: a table like nvidia-smi's, from the libnvidia-ml.so.1 that the loader
 * finds; with --engine the books of the engines, as JSON. Everything goes through dlsym, so a preloaded library sees every call. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fakegpu.h"
#include "nvml_abi.h"

enum { MAX_LISTED = 1024, WIDTH = 77 };

/* The columns of the two tables; each line fills WIDTH between its bars. */
#define DEVICE_LINE "| %3s  %-25.25s %-16s %21s %5s |\n"
#define PROCESS_LINE "| %3s  %10s  %-4s  %-39.39s %12s |\n"

static void *smi_nvml;

static void *smi_need(const char *name)
{
	void *p = dlsym(smi_nvml, name);
	if (p == NULL) {
		fprintf(stderr, "fake-smi: finding %s: %s\n", name, dlerror());
		exit(1);
	}
	return p;
}

/* Calls a function of the library by name, with the types of the arguments given. */
#define CALL(name, types, args) smi_check(#name, ((nvmlReturn_t(*) types)smi_need(#name))args)

static void smi_check(const char *name, nvmlReturn_t r)
{
	const char *(*text)(nvmlReturn_t);
	if (r == NVML_SUCCESS)
		return;
	text = (const char *(*)(nvmlReturn_t))smi_need("nvmlErrorString");
	fprintf(stderr, "fake-smi: %s: %s\n", name, text(r));
	exit(1);
}

static unsigned long long smi_mib(unsigned long long bytes) { return bytes >> 20; }

static void smi_rule(char left, char fill)
{
	putchar(left);
	for (int i = 0; i < WIDTH; i++)
		putchar(fill);
	printf("%c\n", left);
}

static void smi_print_device(unsigned i)
{
	nvmlMemory_v2_t memory = {.version = NVML_MEMORY_V2};
	nvmlUtilization_t use;
	nvmlDevice_t device;
	nvmlPciInfo_t pci;
	char name[96], number[16], bytes[64], percent[16];

	CALL(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *), (i, &device));
	CALL(nvmlDeviceGetName, (nvmlDevice_t, char *, unsigned), (device, name, sizeof name));
	CALL(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t, nvmlPciInfo_t *), (device, &pci));
	CALL(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, nvmlMemory_v2_t *), (device, &memory));
	CALL(nvmlDeviceGetUtilizationRates, (nvmlDevice_t, nvmlUtilization_t *), (device, &use));
	snprintf(number, sizeof number, "%u", i);
	snprintf(bytes, sizeof bytes, "%lluMiB / %6lluMiB", smi_mib(memory.used), smi_mib(memory.total));
	snprintf(percent, sizeof percent, "%u%%", use.gpu);
	printf(DEVICE_LINE, number, name, pci.busId, bytes, percent);
}

static unsigned smi_print_processes(unsigned i)
{
	static nvmlProcessInfo_t list[MAX_LISTED];
	unsigned n = MAX_LISTED;
	nvmlDevice_t device;

	CALL(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *), (i, &device));
	CALL(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, unsigned *, nvmlProcessInfo_t *), (device, &n, list));
	for (unsigned k = 0; k < n; k++) {
		nvmlReturn_t (*get)(unsigned, char *, unsigned) =
			(nvmlReturn_t(*)(unsigned, char *, unsigned))smi_need("nvmlSystemGetProcessName");
		char name[64], number[16], pid[16], bytes[32];
		if (get(list[k].pid, name, sizeof name) != NVML_SUCCESS)
			snprintf(name, sizeof name, "-");
		snprintf(number, sizeof number, "%u", i);
		snprintf(pid, sizeof pid, "%u", list[k].pid);
		snprintf(bytes, sizeof bytes, "%lluMiB", smi_mib(list[k].usedGpuMemory));
		printf(PROCESS_LINE, number, pid, "C", name, bytes);
	}
	return n;
}

/* A line of JSON for each context that has a place in a device's engine, and one for each
 * device before its contexts. */
static int smi_print_engines(unsigned count)
{
	typedef int (*engine_function)(unsigned, struct fakegpu_engine *, struct fakegpu_engine_context *, unsigned);
	engine_function ask = (engine_function)smi_need("fakegpu_engine");
	static struct fakegpu_engine_context list[MAX_LISTED];
	struct fakegpu_engine e;

	for (unsigned d = 0; d < count; d++) {
		int n = ask(d, &e, list, MAX_LISTED);
		if (n < 0)
			return 1;
		printf("{\"device\":%u,\"now_ns\":%" PRIu64 ",\"idle_ns\":%" PRIu64 ",\"switching_ns\":%" PRIu64 ",\"switches\":%" PRIu64
		       "}\n",
		       d, e.now_ns, e.idle_ns, e.switching_ns, e.switches);
		for (int i = 0; i < n && i < MAX_LISTED; i++) {
			const struct fakegpu_engine_context *c = &list[i];
			printf("{\"device\":%u,\"pid\":%u,\"context\":%u,\"live\":%s,\"slice_us\":%" PRIu64 ",\"submitted_ns\":%" PRIu64
			       ",\"got_ns\":%" PRIu64 ",\"waited_ns\":%" PRIu64 ",\"turns\":%" PRIu64 "}\n",
			       d, c->pid, c->context, c->live ? "true" : "false", c->slice_us, c->submitted_ns, c->got_ns, c->waited_ns,
			       c->turns);
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	unsigned count, listed = 0;
	int cuda;
	char driver[80];

	smi_nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (smi_nvml == NULL) {
		fprintf(stderr, "fake-smi: %s (is LD_LIBRARY_PATH set?)\n", dlerror());
		return 1;
	}
	CALL(nvmlInit_v2, (void), ());
	CALL(nvmlSystemGetDriverVersion, (char *, unsigned), (driver, sizeof driver));
	CALL(nvmlSystemGetCudaDriverVersion_v2, (int *), (&cuda));
	CALL(nvmlDeviceGetCount_v2, (unsigned *), (&count));
	if (argc > 1 && strcmp(argv[1], "--engine") == 0)
		return smi_print_engines(count);

	smi_rule('+', '-');
	printf("| fake-smi      Driver Version: %-20s CUDA Version: %2d.%-7d |\n", driver, cuda / 1000, cuda % 1000 / 10);
	smi_rule('+', '-');
	printf(DEVICE_LINE, "GPU", "Name", "Bus-Id", "Memory-Usage", "Util");
	smi_rule('|', '=');
	for (unsigned i = 0; i < count; i++)
		smi_print_device(i);
	smi_rule('+', '-');
	printf(PROCESS_LINE, "GPU", "PID", "Type", "Process name", "GPU Memory");
	smi_rule('|', '=');
	for (unsigned i = 0; i < count; i++)
		listed += smi_print_processes(i);
	if (listed == 0)
		printf("| %-75s |\n", " No running processes found");
	smi_rule('+', '-');
	CALL(nvmlShutdown, (void), ());
	return 0;
}
