/* Memory that one process makes and releases, while another can still reach it:
 *
 *   shareable BYTES [dma-buf]
 *
 * The program starts a second process, the maker, which makes BYTES of shareable memory. Only the
 * first one, the importer, talks to the tester. Both have a context. The steps (see steps.h),
 * with reachable, the bytes that a process can still get at, and maker, the PID:
 *
 *   made       the maker has a handle and a mapping
 *   exported   and a descriptor
 *   released   only the descriptor. again is the result of making as much again, which the
 *              maker then releases
 *   sent       the importer has the only descriptor
 *   imported   and a handle
 *   closed     only the handle
 *   mapped     and a mapping, with its memory written
 *   unmapped   only the handle
 *   gone       nothing
 *   kept       as sent, once more, and the maker has ended before it released anything
 *   orphan     as mapped
 *   ended      nothing
 *
 * With dma-buf the memory is linear, and the descriptor is a dma-buf of a part of it, which cannot be
 * imported: the steps from imported to unmapped, and orphan, are left out. */
#define _GNU_SOURCE
#include "driver.h"
#include "partner.h"

#include <sys/mman.h>

static CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				   .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				   .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
static uint64_t size;
static int post[2];     /* sockets: descriptors go from post[0] to post[1] */
static CUresult *again; /* of both processes */

static void send_descriptor(int fd)
{
	char control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec byte = {(char[]){'x'}, 1};
	struct msghdr m = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	*c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (sendmsg(post[0], &m, 0) != 1)
		fail("sendmsg: %s", strerror(errno));
}

static int receive_descriptor(void)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, text;
	struct iovec byte = {&text, 1};
	struct msghdr m = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fd;
	if (recvmsg(post[1], &m, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&m))
		fail("recvmsg: no descriptor came");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	return fd;
}

static CUdeviceptr map(CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr at;
	MUST(cuMemAddressReserve, &at, size, 0, 0, 0);
	MUST(cuMemMap, at, size, 0, handle, 0);
	MUST(cuMemSetAccess, at, size, &access, 1);
	driver_use(at, size);
	return at;
}

static void unmap(CUdeviceptr at)
{
	MUST(cuMemUnmap, at, size);
	MUST(cuMemAddressFree, at, size);
}

static CUdeviceptr allocate(void)
{
	CUdeviceptr at;
	MUST(cuMemAlloc_v2, &at, size);
	driver_use(at, size);
	return at;
}

static int dma_buf(CUdeviceptr at)
{
	int fd = -1;
	CAN(cuMemGetHandleForAddressRange, &fd, at, size / 2, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
	return fd;
}

/* make, with a dma-buf. */
static void make_linear(void)
{
	CUdeviceptr at = allocate(), second;
	step("made ");
	int fd = dma_buf(at);
	step("exported ");
	MUST(cuMemFree_v2, at);
	*again = cuMemAlloc_v2(&second, size);
	if (*again == CUDA_SUCCESS)
		MUST(cuMemFree_v2, second);
	step("released ");
	send_descriptor(fd);
	close(fd);
	step("sent ");
	fd = dma_buf(allocate());
	send_descriptor(fd);
	close(fd);
	step("orphan ");
}

static int export(CUmemGenericAllocationHandle handle)
{
	int fd = -1;
	CAN(cuMemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	return fd;
}

/* The maker's part. It does each thing when it is let go on, and then is at a step. */
static void make(void)
{
	CUmemGenericAllocationHandle handle, second;
	CUdeviceptr at;
	MUST(cuMemCreate, &handle, size, &prop, 0);
	at = map(handle);
	step("made ");
	int fd = export(handle);
	step("exported ");
	unmap(at);
	MUST(cuMemRelease, handle);
	*again = cuMemCreate(&second, size, &prop, 0);
	if (*again == CUDA_SUCCESS)
		MUST(cuMemRelease, second);
	step("released ");
	send_descriptor(fd);
	close(fd);
	step("sent ");
	MUST(cuMemCreate, &handle, size, &prop, 0);
	map(handle);
	fd = export(handle);
	send_descriptor(fd);
	close(fd);
	step("orphan ");
}

static void report(const struct partner *maker, const char *name, bool reachable)
{
	step("%s reachable=%llu maker=%d again=%d", name, (unsigned long long)(reachable ? size : 0), (int)maker->pid, *again);
}

/* reap has the library return what dead processes held, which it does ten times a second at most. */
static void reap(void)
{
	size_t left, total;
	usleep(150000);
	MUST(cuMemGetInfo_v2, &left, &total);
}

/* report_next lets the maker go on to its next step, and reports that. */
static void report_next(struct partner *maker, const char *name)
{
	if (strcmp(name, "made") != 0)
		partner_next(maker);
	partner_at(maker, name);
	report(maker, name, true);
}

/* sent lets the maker send its descriptor, and reports that. */
static int sent(struct partner *maker)
{
	report_next(maker, "made");
	report_next(maker, "exported");
	report_next(maker, "released");
	partner_next(maker);
	partner_at(maker, "sent");
	int fd = receive_descriptor();
	report(maker, "sent", true);
	return fd;
}

/* kept lets the maker send another descriptor and end, and reports that. */
static int kept(struct partner *maker)
{
	partner_next(maker);
	partner_at(maker, "orphan");
	int fd = receive_descriptor();
	partner_end(maker);
	reap();
	report(maker, "kept", true);
	return fd;
}

static void share_linear(struct partner *maker)
{
	close(sent(maker));
	report(maker, "gone", false);
	close(kept(maker));
	reap();
	report(maker, "ended", false);
}

static CUmemGenericAllocationHandle import(int fd)
{
	CUmemGenericAllocationHandle handle;
	CAN(cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	return handle;
}

static void share(struct partner *maker)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	int fd = sent(maker);
	handle = import(fd);
	report(maker, "imported", true);
	close(fd);
	report(maker, "closed", true);
	at = map(handle);
	report(maker, "mapped", true);
	unmap(at);
	report(maker, "unmapped", true);
	MUST(cuMemRelease, handle);
	report(maker, "gone", false);
	fd = kept(maker);
	handle = import(fd);
	close(fd);
	at = map(handle);
	report(maker, "orphan", true);
	unmap(at);
	MUST(cuMemRelease, handle);
	reap();
	report(maker, "ended", false);
}

int main(int count, char **arguments)
{
	struct partner maker;
	size_t granule;
	bool linear = count == 3 && !strcmp(arguments[2], "dma-buf");
	size = count == 2 || linear ? steps_size(arguments[1]) : 0;
	if (!size) {
		fprintf(stderr, "usage: shareable BYTES [dma-buf]\n");
		return STEPS_USAGE;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, post))
		fail("socketpair: %s", strerror(errno));
	again = mmap(NULL, sizeof *again, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (again == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	bool making = partner_fork(&maker); /* before the driver is used */
	prop.location.id = driver_start();
	CAN(cuMemGetAllocationGranularity, &granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	size = (size + granule - 1) / granule * granule;
	if (making)
		linear ? make_linear() : make();
	else
		linear ? share_linear(&maker) : share(&maker);
	MUST(cuDevicePrimaryCtxRelease_v2, prop.location.id);
	return 0;
}
