/* Memory that one process allocates and another opens:
 *
 *   ipc BYTES
 *
 * The program exports BYTES and starts itself once more, by exec, to import them.
 * Only the exporter talks to the tester. Its steps (see steps.h), where the importer has a
 * context and none of the data:
 *
 *   exported data=BYTES               there is a handle
 *   imported data=BYTES importer=PID  the importer has opened it, and written the memory
 *   closed data=BYTES importer=PID    the importer has closed it
 *   freed data=0                      the importer has ended, the memory is freed */
#define _GNU_SOURCE
#include "driver.h"
#include "partner.h"

enum { DIGITS = 2 * sizeof(CUipcMemHandle) };

static void to_text(const CUipcMemHandle *handle, char text[DIGITS + 1])
{
	for (size_t i = 0; i < sizeof handle->bytes; i++)
		sprintf(text + 2 * i, "%02x", handle->bytes[i]);
}

static bool from_text(const char *text, CUipcMemHandle *handle)
{
	if (strlen(text) != DIGITS || strspn(text, "0123456789abcdef") != DIGITS)
		return false;
	for (size_t i = 0; i < sizeof handle->bytes; i++) {
		char digits[3] = {text[2 * i], text[2 * i + 1], '\0'};
		handle->bytes[i] = (unsigned char)strtoul(digits, NULL, 16);
	}
	return true;
}

static int import(const CUipcMemHandle *handle, uint64_t bytes)
{
	CUdeviceptr at;
	CUdevice device = driver_start();
	CAN(cuIpcOpenMemHandle_v2, &at, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	driver_use(at, bytes / 2 + 1);
	step("imported data=0");
	MUST(cuIpcCloseMemHandle, at);
	step("closed data=0");
	MUST(cuDevicePrimaryCtxRelease_v2, device);
	return 0;
}

/* start_importer forks and calls exec at once: the driver cannot be used after a fork. */
static void start_importer(struct partner *importer, const CUipcMemHandle *handle, char *bytes)
{
	char text[DIGITS + 1];
	char *arguments[] = {(char[]){"ipc"}, bytes, text, NULL};
	to_text(handle, text);
	if (partner_fork(importer)) {
		execv("/proc/self/exe", arguments);
		_exit(STEPS_FAILED);
	}
}

static int export(uint64_t bytes, char *argument)
{
	struct partner importer;
	CUipcMemHandle handle;
	CUdeviceptr at;
	CUdevice device = driver_start();
	MUST(cuMemAlloc_v2, &at, bytes);
	driver_use(at, bytes);
	CAN(cuIpcGetMemHandle, &handle, at);
	step("exported data=%llu", (unsigned long long)bytes);
	start_importer(&importer, &handle, argument);
	partner_at(&importer, "imported");
	step("imported data=%llu importer=%d", (unsigned long long)bytes, (int)importer.pid);
	partner_next(&importer);
	partner_at(&importer, "closed");
	step("closed data=%llu importer=%d", (unsigned long long)bytes, (int)importer.pid);
	partner_end(&importer);
	MUST(cuMemFree_v2, at);
	step("freed data=0");
	MUST(cuDevicePrimaryCtxRelease_v2, device);
	return 0;
}

int main(int count, char **arguments)
{
	CUipcMemHandle handle;
	uint64_t bytes = count > 1 ? steps_size(arguments[1]) : 0;
	if (bytes && count == 2)
		return export(bytes, arguments[1]);
	if (bytes && count == 3 && from_text(arguments[2], &handle))
		return import(&handle, bytes);
	fprintf(stderr, "usage: ipc BYTES\n");
	return STEPS_USAGE;
}
