/* Memory that one process allocates, and frees or leaves while two others have opened it by its IPC
 * handle. CUDA's documentation calls that undefined behaviour:
 *
 *   handles BYTES
 *
 * The program starts two more processes, the maker and another importer. Only the first process, which
 * is an importer too, talks to the tester. All three have a context. The steps (see steps.h), with
 * reachable, the bytes that a process can still get at, the PIDs of the others, and the driver's results:
 * again, when the maker allocates as much again after its free; late, when an importer opens the handle
 * after that; and read, when it reads the memory it has opened:
 *
 *   made       the maker has the memory
 *   exported   and a handle
 *   imported   both importers have opened it; the other one was the last
 *   released   the maker has freed it
 *   closed     the other importer has closed it, and has made no other call
 *   gone       nothing
 *   kept       as imported, once more, and the maker has ended before it freed anything
 *   orphan     the importer has waited for its device
 *   left       the other importer has ended, and has made no call since it opened the memory
 *   alone      the importer has waited for its device
 *   ended      nothing */
#define _GNU_SOURCE
#include "driver.h"
#include "partner.h"

#include <sys/mman.h>

/* Of all three processes. */
static struct {
	CUipcMemHandle handle;
	CUresult again, late, read;
} *board;

static uint64_t size;
static struct partner maker, other;

static CUdeviceptr export(void)
{
	CUdeviceptr at;
	MUST(cuMemAlloc_v2, &at, size);
	driver_use(at, size);
	return at;
}

static void make(void)
{
	CUdeviceptr at = export(), second;
	step("made ");
	CAN(cuIpcGetMemHandle, &board->handle, at);
	step("exported ");
	MUST(cuMemFree_v2, at);
	board->again = cuMemAlloc_v2(&second, size);
	if (board->again == CUDA_SUCCESS)
		MUST(cuMemFree_v2, second);
	step("released ");
	MUST(cuIpcGetMemHandle, &board->handle, export());
	step("again ");
}

static CUdeviceptr import(void)
{
	CUdeviceptr at;
	CAN(cuIpcOpenMemHandle_v2, &at, board->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	return at;
}

static void import_too(void)
{
	CUdeviceptr at;
	step("ready ");
	at = import();
	step("imported ");
	MUST(cuIpcCloseMemHandle, at);
	step("closed ");
	at = import();
	step("kept ");
}

static void report(const char *name, bool reachable)
{
	step("%s reachable=%llu maker=%d other=%d again=%d late=%d read=%d", name, (unsigned long long)(reachable ? size : 0),
	     (int)maker.pid, (int)other.pid, board->again, board->late, board->read);
}

/* reap has the library return what dead processes held, which it does ten times a second at most. */
static void reap(void)
{
	size_t left, total;
	usleep(150000);
	MUST(cuMemGetInfo_v2, &left, &total);
}

static void next(struct partner *p, const char *name)
{
	partner_next(p);
	partner_at(p, name);
}

/* An importer that has the memory open opens it once more. */
static void open_late(void)
{
	CUdeviceptr late;
	board->late = cuIpcOpenMemHandle_v2(&late, board->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (board->late == CUDA_SUCCESS)
		MUST(cuIpcCloseMemHandle, late);
}

static CUresult read_byte(CUdeviceptr at)
{
	char byte;
	return cuMemcpyDtoH_v2(&byte, at + size - 1, 1);
}

static void share(void)
{
	CUdeviceptr at;
	partner_at(&other, "ready");
	partner_at(&maker, "made");
	report("made", true);
	next(&maker, "exported");
	report("exported", true);
	at = import();
	next(&other, "imported");
	report("imported", true);
	next(&maker, "released");
	open_late();
	board->read = read_byte(at);
	report("released", true);
	next(&other, "closed");
	report("closed", true);
	MUST(cuIpcCloseMemHandle, at);
	report("gone", false);
	next(&maker, "again");
	at = import();
	next(&other, "kept");
	partner_end(&maker);
	open_late();
	board->read = read_byte(at);
	reap();
	report("kept", true);
	MUST(cuCtxSynchronize);
	report("orphan", true);
	partner_end(&other);
	reap();
	report("left", true);
	MUST(cuCtxSynchronize);
	report("alone", true);
	MUST(cuIpcCloseMemHandle, at);
	reap();
	report("ended", false);
}

int main(int count, char **arguments)
{
	size = count == 2 ? steps_size(arguments[1]) : 0;
	if (!size) {
		fprintf(stderr, "usage: handles BYTES\n");
		return STEPS_USAGE;
	}
	board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	/* Before the driver is used. */
	bool making = partner_fork(&maker), importing = !making && partner_fork(&other);
	if (importing)
		close(maker.line);
	CUdevice device = driver_start();
	if (making)
		make();
	else if (importing)
		import_too();
	else
		share();
	MUST(cuDevicePrimaryCtxRelease_v2, device);
	return 0;
}
