/* Virtual memory management. */
#include <sys/socket.h>
#include <sys/stat.h>

#include "check.h"

static const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

static void lifetimes(void)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_READWRITE};
	CUmemGenericAllocationHandle h, again;
	CUmemAllocationProp got;
	uint64_t before = mine();
	unsigned long long flags;
	CUdeviceptr va;
	size_t n;

	OK(cuMemGetAllocationGranularity(&n, &prop, 0));
	EQ(n, 512); /* FAKEGPU_BLOCK */
	EQ(cuMemCreate(&h, 5, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemCreate(&h, 4 * MIB, &prop, 0));
	EQ(mine() - before, 4 * MIB);
	OK(cuMemGetAllocationPropertiesFromHandle(&got, h));
	EQ(got.location.id, 0);
	OK(cuMemAddressReserve(&va, 8 * MIB, 0, 0, 0));
	EQ(mine() - before, 4 * MIB); /* addresses are free */
	EQ(cuMemSetAccess(va, 4 * MIB, &access, 1), CUDA_ERROR_INVALID_VALUE);
	EQ(cuMemMap(va, 2 * MIB, 0, h, 0), CUDA_ERROR_NOT_SUPPORTED); /* whole allocations only */
	OK(cuMemMap(va, 4 * MIB, 0, h, 0));
	EQ(cuMemMap(va + 2 * MIB, 4 * MIB, 0, h, 0), CUDA_ERROR_INVALID_VALUE); /* overlaps */
	OK(cuMemMap(va + 4 * MIB, 4 * MIB, 0, h, 0));
	OK(cuMemSetAccess(va, 8 * MIB, &access, 1));
	OK(cuMemGetAccess(&flags, &access.location, va + 5));
	EQ(flags, CU_MEM_ACCESS_READWRITE);
	OK(cuMemRelease(h)); /* the mappings keep it */
	EQ(mine() - before, 4 * MIB);
	EQ(cuMemRelease(h), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(va + 9)));
	CHECK(again == h);
	EQ(cuMemAddressFree(va, 8 * MIB), CUDA_ERROR_INVALID_VALUE);
	EQ(cuMemUnmap(va, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemUnmap(va, 8 * MIB));
	EQ(mine() - before, 4 * MIB); /* the handle that was retained keeps it */
	OK(cuMemRelease(again));
	EQ(mine(), before);
	EQ(cuMemAddressFree(va, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAddressFree(va, 8 * MIB));
	OK(cuMemAddressReserve(&va, 2 * MIB, 64 * MIB, 0, 0));
	EQ(va % (64 * MIB), 0);
	OK(cuMemAddressFree(va, 2 * MIB));
	EQ(cuMemAddressReserve(&va, 2 * MIB, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

/* Mapped memory has contents; without a mapping or access there is nothing to copy. */
static void contents(void)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_READWRITE};
	CUmemGenericAllocationHandle h;
	uint64_t word = 12345, is = 0;
	CUdeviceptr va;
	OK(cuMemCreate(&h, 4 * MIB, &prop, 0));
	OK(cuMemAddressReserve(&va, 4 * MIB, 0, 0, 0));
	EQ(cuMemcpyHtoD_v2(va, &word, sizeof word), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemMap(va, 4 * MIB, 0, h, 0));
	EQ(cuMemcpyHtoD_v2(va, &word, sizeof word), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemSetAccess(va, 4 * MIB, &access, 1));
	OK(cuMemcpyHtoD_v2(va + 3 * MIB, &word, sizeof word));
	OK(cuMemcpyDtoH_v2(&is, va + 3 * MIB, sizeof is));
	EQ(is, word);
	OK(cuMemUnmap(va, 4 * MIB));
	EQ(cuMemcpyDtoH_v2(&is, va + 3 * MIB, sizeof is), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemMap(va, 4 * MIB, 0, h, 0));
	OK(cuMemSetAccess(va, 4 * MIB, &access, 1));
	is = 0;
	OK(cuMemcpyDtoH_v2(&is, va + 3 * MIB, sizeof is));
	EQ(is, word); /* the memory has it, not the address */
	OK(cuMemUnmap(va, 4 * MIB));
	OK(cuMemRelease(h));
	OK(cuMemAddressFree(va, 4 * MIB));
}

static void host_memory(void)
{
	CUmemAllocationProp host = prop;
	CUmemGenericAllocationHandle h;
	uint64_t before = mine();
	host.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
	OK(cuMemCreate(&h, 4 * MIB, &host, 0));
	EQ(mine(), before);
	OK(cuMemRelease(h));
	host.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 9};
	EQ(cuMemCreate(&h, 4 * MIB, &host, 0), CUDA_ERROR_INVALID_DEVICE);
}

static void sharing(void)
{
	CUmemGenericAllocationHandle h, copy;
	uint64_t before;
	int fd;
	OK(cuMemCreate(&h, 2 * MIB, &prop, 0));
	before = mine();
	OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemImportFromShareableHandle(&copy, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	EQ(mine(), before);
	OK(cuMemRelease(copy));
	EQ(mine(), before);
	EQ(cuMemImportFromShareableHandle(&copy, (void *)(intptr_t)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), CUDA_ERROR_INVALID_VALUE);
	close(fd);
	OK(cuMemRelease(h));
}

static void limits(void)
{
	CUmemGenericAllocationHandle h;
	size_t left, total;
	OK(cuMemGetInfo_v2(&left, &total));
	EQ(cuMemCreate(&h, (left / (2 * MIB) + 1) * 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
}

/* A descriptor that goes from one process to another. */
static void send_fd(int socket, int fd)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {.head = {.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	struct iovec body = {"", 1};
	struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
	EQ(sendmsg(socket, &m, 0), 1);
}

static int receive_fd(int socket)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	struct iovec body = {&byte, 1};
	struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	int fd = -1;
	if (recvmsg(socket, &m, 0) == 1 && CMSG_FIRSTHDR(&m) != NULL)
		memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
	return fd;
}

/* Released by its maker, it counts for no process while there is a descriptor, also one in a
 * message; then for its importer. */
static void counted(void)
{
	CUmemGenericAllocationHandle h, copy;
	uint64_t before = mine(), all = everybody();
	struct fakegpu_shared s;
	int pair[2], fd;
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	OK(cuMemCreate(&h, 4 * MIB, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	EQ(mine() - before, 4 * MIB);
	send_fd(pair[1], fd);
	close(fd);
	OK(cuMemRelease(h));
	EQ(mine(), before);
	EQ(everybody() - all, 4 * MIB);
	EQ(fakegpu_shared(0, &s), 0);
	EQ(s.lent, 4 * MIB);
	EQ(s.unlisted, 4 * MIB);
	fd = receive_fd(pair[0]);
	OK(cuMemImportFromShareableHandle(&copy, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	EQ(cuMemExportToShareableHandle(&pair[0], copy, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_ERROR_INVALID_VALUE);
	EQ(mine(), before);
	close(fd);
	EQ(mine() - before, 4 * MIB);
	EQ(fakegpu_shared(0, &s), 0);
	EQ(s.adopted, 4 * MIB);
	EQ(s.unlisted, 0);
	OK(cuMemRelease(copy));
	EQ(mine(), before);
	EQ(everybody(), all);
}

static int dma_buf(CUdeviceptr at, size_t bytes)
{
	int fd = -1;
	OK(cuMemGetHandleForAddressRange(&fd, at, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	return fd;
}

/* A dma-buf of any part keeps all of an allocation, also after it was freed, for no process. Each is a
 * file of its own. */
static void dma_bufs(void)
{
	uint64_t before = mine(), all = everybody();
	CUdeviceptr p, q;
	struct stat a, b;
	OK(cuMemAlloc_v2(&p, 4 * MIB));
	OK(cuMemAlloc_v2(&q, 6 * MIB));
	int first = dma_buf(p + MIB, 4096), second = dma_buf(q, 6 * MIB), copy = dup(first);
	EQ(fstat(first, &a), 0);
	EQ(fstat(second, &b), 0);
	CHECK(a.st_ino != b.st_ino);
	EQ(mine() - before, 10 * MIB);
	EQ(everybody() - all, 10 * MIB);
	OK(cuMemFree_v2(p));
	EQ(mine() - before, 6 * MIB);
	EQ(everybody() - all, 10 * MIB);
	close(first);
	EQ(everybody() - all, 10 * MIB);
	close(copy);
	EQ(everybody() - all, 6 * MIB);
	close(second);
	EQ(mine() - before, 6 * MIB);
	OK(cuMemFree_v2(q));
	EQ(mine(), before);
	EQ(everybody(), all);
	EQ(cuMemGetHandleForAddressRange(&first, q, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0), CUDA_ERROR_INVALID_VALUE);
}

/* Exporter and importer: what the first leaves is the second's, once there is no descriptor. */
static int orphan(void)
{
	CUmemGenericAllocationHandle h;
	int pair[2], fd, status;
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	pid_t pid = fork();
	start();
	uint64_t before = mine();
	if (pid == 0) {
		OK(cuMemCreate(&h, 4 * MIB, &prop, 0));
		OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		send_fd(pair[1], fd);
		EQ(read(pair[1], &status, 1), 1);
		return checks_failed > 0;
	}
	fd = receive_fd(pair[0]);
	OK(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	EQ(mine(), before);
	EQ(write(pair[0], "", 1), 1);
	EQ(waitpid(pid, &status, 0), pid);
	EQ(status, 0);
	EQ(mine(), before);
	EQ(everybody(), mine() + 4 * MIB);
	close(fd);
	EQ(mine() - before, 4 * MIB);
	EQ(everybody(), mine());
	OK(cuMemRelease(h));
	EQ(mine(), before);
	return checks_failed > 0;
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1)
		return orphan();
	EQ(AGAIN("orphan", "FAKEGPU_QUIET", "1"), 0);
	start();
	lifetimes();
	contents();
	host_memory();
	sharing();
	counted();
	dma_bufs();
	limits();
	return FINISH();
}
