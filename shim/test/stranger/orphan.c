/* Memory whose exporter is gone while an importer still holds it is the importer's, as the
 * driver has it: overhead, from its next reading on. Not before: the death of an exporter is
 * nothing that its importers hear of, and while it lives the memory must not count twice. */
#include "../later.h"
#include "descriptor.h"
#include "stranger.h"

#define SIZE (600 * MIB)

static const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

static int pair[2];

static int exporter(void)
{
	CUmemGenericAllocationHandle h;
	char byte;
	int fd = -1;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	start();
	OK(cuMemCreate(&h, SIZE, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	descriptor_send(pair[1], fd);
	EQ(read(pair[1], &byte, 1), 1);
	return checks_failed > 0;
}

static void gone(bool killed)
{
	CUmemGenericAllocationHandle h;
	CUdeviceptr p;
	int status;
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	pid_t pid = fork();
	if (pid == 0)
		_exit(exporter());
	int fd = descriptor_receive(pair[0]);
	start();
	OK(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	BALANCED(0); /* it is the exporter's: not counted twice */
	if (killed) {
		EQ(kill(pid, SIGKILL), 0);
		EQ(waitpid(pid, &status, 0), pid);
	} else {
		EQ(write(pair[0], "", 1), 1);
		EQ(waitpid(pid, &status, 0), pid);
		EQ(status, 0);
	}
	EQ(in_use(0), 700 * MIB);
	later();
	OK(cuCtxSynchronize());
	EQ(held(RATION_OVERHEAD), SIZE);
	BALANCED(0); /* the reading has reaped the exporter, and this process has no more than the driver says */
	EQ(cuMemAlloc_v2(&p, 400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	BALANCED(0);
	OK(cuMemRelease(h));
	later();
	OK(cuCtxSynchronize());
	SAME();
}

static void ended(void) { gone(false); }
static void killed(void) { gone(true); }

RUN_PARTS(true, {"ended", ended}, {"killed", killed})
