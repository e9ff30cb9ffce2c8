/* Virtual memory: given back at the last of references and mappings. */
#include <pthread.h>

#include "held.h"
#include "later.h"

static const CUmemAllocationProp on_device = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
};

enum { SIZE = 4 << 20 };

static CUmemGenericAllocationHandle make(void)
{
	CUmemGenericAllocationHandle h = 0;
	OK(cuMemCreate(&h, SIZE, &on_device, 0));
	SAME();
	return h;
}

static void released_first(void)
{
	CUmemGenericAllocationHandle h = make();
	CUdeviceptr at;
	OK(cuMemAddressReserve(&at, SIZE, 0, 0, 0));
	OK(cuMemMap(at, SIZE, 0, h, 0));
	OK(cuMemRelease(h));
	SAME();
	EQ(held(RATION_DATA), SIZE);
	OK(cuMemUnmap(at, SIZE));
	SAME();
	EQ(held(RATION_DATA), 0);
	OK(cuMemAddressFree(at, SIZE));
}

static void unmapped_first(void)
{
	CUmemGenericAllocationHandle h = make();
	CUdeviceptr at;
	OK(cuMemAddressReserve(&at, SIZE, 0, 0, 0));
	OK(cuMemMap(at, SIZE, 0, h, 0));
	OK(cuMemUnmap(at, SIZE));
	SAME();
	OK(cuMemRelease(h));
	SAME();
	EQ(held(RATION_DATA), 0);
	OK(cuMemAddressFree(at, SIZE));
}

/* A mapping and a release that the driver refuses change nothing. */
static void failed(void)
{
	CUmemGenericAllocationHandle h = make(), other = make();
	CUdeviceptr at;
	OK(cuMemAddressReserve(&at, SIZE, 0, 0, 0));
	OK(cuMemMap(at, SIZE, 0, h, 0));
	CHECK(cuMemMap(at, SIZE, 0, other, 0) != CUDA_SUCCESS);
	OK(cuMemRelease(other));
	SAME();
	EQ(held(RATION_DATA), SIZE);
	OK(cuMemRelease(h));
	CHECK(cuMemRelease(h) != CUDA_SUCCESS);
	OK(cuMemUnmap(at, SIZE));
	SAME();
	EQ(held(RATION_DATA), 0);
	OK(cuMemAddressFree(at, SIZE));
}

static void retained(void)
{
	CUmemGenericAllocationHandle h = make(), again;
	CUdeviceptr at;
	OK(cuMemAddressReserve(&at, SIZE, 0, 0, 0));
	OK(cuMemMap(at, SIZE, 0, h, 0));
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at));
	OK(cuMemRelease(h));
	OK(cuMemUnmap(at, SIZE));
	SAME();
	EQ(held(RATION_DATA), SIZE);
	OK(cuMemRelease(again));
	SAME();
	EQ(held(RATION_DATA), 0);
	OK(cuMemAddressFree(at, SIZE));
}

/* One range over several mappings, as frameworks with growing segments do. */
static void ranges(void)
{
	enum { N = 16 };
	CUmemGenericAllocationHandle h[N];
	CUdeviceptr at;
	OK(cuMemAddressReserve(&at, (size_t)N * SIZE, 0, 0, 0));
	for (int i = 0; i < N; i++) {
		h[i] = make();
		OK(cuMemMap(at + (CUdeviceptr)i * SIZE, SIZE, 0, h[i], 0));
		OK(cuMemRelease(h[i]));
	}
	EQ(cuMemUnmap(at, SIZE / 2), CUDA_ERROR_INVALID_VALUE);
	SAME();
	OK(cuMemUnmap(at + 4 * SIZE, 8ull * SIZE));
	SAME();
	OK(cuMemUnmap(at, 4ull * SIZE));
	OK(cuMemUnmap(at + 12ull * SIZE, 4ull * SIZE));
	SAME();
	EQ(held(RATION_DATA), 0);
	OK(cuMemAddressFree(at, (size_t)N * SIZE));
}

/* What was lent is returned by the reading before a refusal. */
static void settle(void)
{
	CUmemGenericAllocationHandle h;
	uint64_t limit = region_limit(region_here(), 0);
	region_set_limit(region_here(), 0, make_limit(region_used(region_here(), 0)));
	h = make();
	EQ(held(RATION_DATA), SIZE);
	OK(cuMemRelease(h));
	SAME();
	region_set_limit(region_here(), 0, limit);
}

static void shared(void)
{
	CUmemGenericAllocationHandle h = make(), copy;
	int fd = -1;
	OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemImportFromShareableHandle(&copy, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	SAME();
	OK(cuMemRelease(copy));
	SAME();
	OK(cuMemRelease(h));
	SAME();
	close(fd);
	settle();
}

/* Released, while a descriptor keeps it: it stays charged until that is closed, and is then there for others. */
static void lent(void)
{
	CUmemGenericAllocationHandle h = make(), second;
	CUdeviceptr at;
	int fd = -1, again = -1;
	OK(cuMemAddressReserve(&at, SIZE, 0, 0, 0));
	OK(cuMemMap(at, SIZE, 0, h, 0));
	OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemExportToShareableHandle(&again, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemRelease(h));
	OK(cuMemUnmap(at, SIZE));
	SAME();
	EQ(held(RATION_DATA), SIZE);
	close(fd);
	second = make();
	EQ(held(RATION_DATA), 2 * SIZE);
	close(again);
	OK(cuMemRelease(second));
	settle();
	EQ(held(RATION_DATA), 0);
	OK(cuMemAddressFree(at, SIZE));
}

/* The driver lists imported memory with its importer after its maker has released it. The importer charges it, whatever it
 * has lent itself. Here both are one process, which gets a second handle. */
static void adopted(void)
{
	CUmemGenericAllocationHandle first = make(), second = make(), copy;
	int kept = -1, fd = -1;
	OK(cuMemExportToShareableHandle(&kept, first, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemRelease(first));
	EQ(held(RATION_DATA), 2 * SIZE);
	OK(cuMemExportToShareableHandle(&fd, second, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemImportFromShareableHandle(&copy, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	CHECK(copy != second);
	close(fd);
	OK(cuMemRelease(second));
	EQ(held(RATION_OVERHEAD), SIZE);
	SAME();
	OK(cuMemRelease(copy));
	SAME();
	close(kept);
	settle();
	EQ(held(RATION_DATA), 0);
}

static void *flicker(void *stop)
{
	CUdeviceptr p;
	CUcontext c;
	OK(cuDevicePrimaryCtxRetain(&c, 0));
	OK(cuCtxSetCurrent(c));
	while (!__atomic_load_n((bool *)stop, __ATOMIC_RELAXED)) {
		OK(cuMemAlloc_v2(&p, SIZE));
		OK(cuMemFree_v2(p));
	}
	OK(cuDevicePrimaryCtxRelease_v2(0));
	return NULL;
}

/* Memory that comes and goes all the time does not hide lent memory from a reading. */
static void lent_beside_others(void)
{
	CUmemGenericAllocationHandle h = make();
	bool stop = false;
	pthread_t t;
	int fd = -1;
	OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	EQ(pthread_create(&t, NULL, flicker, &stop), 0);
	OK(cuMemRelease(h));
	for (int i = 0; i < 500; i++) {
		later();
		OK(cuCtxSynchronize());
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
	EQ(held(RATION_DATA), SIZE);
	close(fd);
	settle();
	EQ(held(RATION_DATA), 0);
}

static void elsewhere(void)
{
	CUmemAllocationProp host = on_device;
	CUmemGenericAllocationHandle h;
	host.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0};
	OK(cuMemCreate(&h, SIZE, &host, 0));
	SAME();
	OK(cuMemRelease(h));
	EQ(cuMemRelease(h), CUDA_ERROR_INVALID_VALUE);
	SAME();
}

/* A range of all addresses that there can be, with one mapping far inside: it is found, and no time is spent on the
 * steps between. */
static void immense(void)
{
	CUmemGenericAllocationHandle h = make();
	struct timespec t;
	CUdeviceptr at;
	OK(cuMemAddressReserve(&at, SIZE, 0, 0, 0));
	OK(cuMemMap(at, SIZE, 0, h, 0));
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	int64_t before = t.tv_sec * 1000 + t.tv_nsec / 1000000;
	CHECK(cuMemUnmap(at - (UINT64_C(1) << 40), UINT64_C(1) << 46) != CUDA_SUCCESS);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	CHECK(t.tv_sec * 1000 + t.tv_nsec / 1000000 - before < 1000);
	SAME();
	EQ(held(RATION_DATA), SIZE);
	OK(cuMemUnmap(at, SIZE));
	OK(cuMemRelease(h));
	SAME();
	EQ(held(RATION_DATA), 0);
	OK(cuMemAddressFree(at, SIZE));
}

int main(void)
{
	start();
	immense();
	released_first();
	unmapped_first();
	failed();
	retained();
	ranges();
	shared();
	elsewhere();
	lent();
	adopted();
	lent_beside_others();
	OK(cuDevicePrimaryCtxRelease_v2(0));
	return FINISH();
}
