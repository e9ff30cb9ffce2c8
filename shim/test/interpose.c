/* Every way to a call of the driver: which ones lead to us, and that none else does. */
#include <dlfcn.h>

#include "held.h"

/* The versions of two of the C library's names in programs that were built long ago: each
 * processor has the names it began with by the version of that time. */
#if defined(__x86_64__)
#define DLSYM_VERSION "GLIBC_2.2.5"
#define MEMCPY_VERSION "GLIBC_2.14"
#elif defined(__aarch64__)
#define DLSYM_VERSION "GLIBC_2.17"
#define MEMCPY_VERSION "GLIBC_2.17"
#endif
void *old_dlsym(void *handle, const char *name);
__asm__(".symver old_dlsym, dlsym@" DLSYM_VERSION);

/* The names in the table: those that are always ours, and those that are only in a job. */
static const struct name {
	const char *name;
	bool timed;
} names[] = {
#define HOOK(family, symbol, base, version, per_thread, params, text) {#symbol, false},
#define TIMED(kind, family, symbol, base, version, per_thread, params, stream, text) {#symbol, true},
#include "../hooks.def"
};

static bool rationed = true; /* there is a job */

static bool is_hooked(const char *name)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(names[i].name, name) == 0)
			return rationed || !names[i].timed;
	return false;
}

/* Which library an address is in. */
static const char *home(const void *p)
{
	Dl_info info;
	const char *slash;
	if (p == NULL || dladdr(p, &info) == 0)
		return "nowhere";
	slash = strrchr(info.dli_fname, '/');
	return slash == NULL ? info.dli_fname : slash + 1;
}

#define HOME(p, where)                                                                                            \
	do {                                                                                                      \
		const char *home_ = home(p);                                                                      \
		if (strncmp(home_, where, strlen(where)) == 0) {                                                  \
			checks_passed++;                                                                          \
		} else {                                                                                          \
			checks_failed++;                                                                          \
			fprintf(stderr, "%s:%d: %s is in %s, not in %s\n", __FILE__, __LINE__, #p, home_, where); \
		}                                                                                                 \
	} while (0)

static void by_name(void *handle)
{
	const char *base, *exported;
	int version, per_thread;
	for (size_t i = 0; fakegpu_symbol(i, &base, &exported, &version, &per_thread) == 0; i++) {
		void *p = dlsym(handle, exported);
		if (strcmp(home(p), is_hooked(exported) ? "libration.so" : "libcuda.so.1") != 0)
			fprintf(stderr, "%s: ", exported);
		HOME(p, is_hooked(exported) ? "libration" : "libcuda.so.1");
	}
}

/* Each variant of a name, by the version that brought it, one before the next one
 * came, and the newest. */
static void by_version(void)
{
	const char *base, *exported;
	int version, per_thread, status;
	for (size_t i = 0; fakegpu_symbol(i, &base, &exported, &version, &per_thread) == 0; i++) {
		void *p = NULL, *q = NULL;
		uint64_t flags = per_thread ? 2 : 0;
		OK(cuGetProcAddress_v2(base, &p, version, flags, &status));
		EQ(status, 0);
		CHECK(p == dlsym(RTLD_DEFAULT, exported) || !is_hooked(exported));
		HOME(p, is_hooked(exported) ? "libration" : "libcuda.so.1");
		OK(cuGetProcAddress(base, &q, version, flags));
		CHECK(p == q);
		OK(cuGetProcAddress_v2(base, &p, 13000, flags, NULL));
		CHECK(p != NULL);
	}
}

static void exact_variants(void)
{
	void *p;
	OK(cuGetProcAddress_v2("cuMemAlloc", &p, 3010, 0, NULL));
	CHECK(p == (void *)cuMemAlloc);
	OK(cuGetProcAddress_v2("cuMemAlloc", &p, 3020, 0, NULL));
	CHECK(p == (void *)cuMemAlloc_v2);
	OK(cuGetProcAddress_v2("cuMemAlloc", &p, 13000, 2, NULL));
	CHECK(p == (void *)cuMemAlloc_v2);
	OK(cuGetProcAddress_v2("cuMemAllocAsync", &p, 11020, 1, NULL));
	CHECK(p == (void *)cuMemAllocAsync);
	OK(cuGetProcAddress_v2("cuMemAllocAsync", &p, 11020, 2, NULL));
	CHECK(p == (void *)cuMemAllocAsync_ptsz);
	OK(cuGetProcAddress_v2("cuCtxCreate", &p, 12049, 0, NULL));
	CHECK(p == dlsym(RTLD_DEFAULT, "cuCtxCreate_v3"));
	OK(cuGetProcAddress_v2("cuGetProcAddress", &p, 12000, 0, NULL));
	CHECK(p == (void *)cuGetProcAddress_v2);
	OK(cuGetProcAddress("cuGetProcAddress", &p, 11030, 0));
	CHECK(p == (void *)cuGetProcAddress);
	int status = -1;
	OK(cuGetProcAddress_v2("cuNoSuchCall", &p, 13000, 0, &status));
	EQ(status, 1);
	CHECK(p == NULL);
	CHECK(cuGetProcAddress("cuNoSuchCall", &p, 13000, 0) != CUDA_SUCCESS);
}

static void other_names(void)
{
	void *libc = dlopen("libc.so.6", RTLD_LAZY);
	HOME(dlsym(RTLD_DEFAULT, "malloc"), "lib");
	HOME(dlsym(libc, "getpid"), "libc.so.6");
	HOME(dlsym(RTLD_NEXT, "getpid"), "libc.so.6");
	CHECK(dlsym(RTLD_DEFAULT, "cuNoSuchCall") == NULL);
	CHECK(dlerror() != NULL);
	CHECK(dlsym(libc, "cuMemAlloc_v2") == NULL);
	CHECK(dlerror() != NULL);
	HOME(dlvsym(libc, "memcpy", MEMCPY_VERSION), "lib");
	HOME(old_dlsym(RTLD_DEFAULT, "malloc"), "lib");
	HOME(old_dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), "libration");
	HOME(old_dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuMemAlloc_v2"), "libration");
	HOME(dlsym(dlopen("libc.so.6", RTLD_LAZY), "dlsym"), "libration");
	HOME(dlsym(dlopen("libc.so.6", RTLD_LAZY), "dlvsym"), "libration");
	HOME(dlvsym(dlopen("libc.so.6", RTLD_LAZY), "dlsym", DLSYM_VERSION), "libration");
	CHECK(dlvsym(libc, "getpid", "NO_SUCH_VERSION") == NULL);
	CHECK(dlerror() != NULL);
	/* The program's own functions are found as ever. */
	CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == (void *)cuMemAlloc_v2);
	CHECK(dlsym(RTLD_NEXT, "cuMemAlloc_v2") == (void *)cuMemAlloc_v2);
}

/* A call that was found is the call that counts. */
static void counted(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_LAZY);
	CUresult (*alloc)(CUdeviceptr *, size_t) = NULL;
	CUdeviceptr p[3];
	start();
	*(void **)&alloc = dlsym(cuda, "cuMemAlloc_v2");
	OK(alloc(&p[0], MIB));
	SAME();
	OK(cuGetProcAddress_v2("cuMemAlloc", (void **)&alloc, 12000, 0, NULL));
	OK(alloc(&p[1], MIB));
	SAME();
	OK(cuMemAlloc_v2(&p[2], MIB));
	SAME();
	EQ(held(RATION_DATA), 3 * MIB);
	for (int i = 0; i < 3; i++)
		OK(cuMemFree_v2(p[i]));
	SAME();
}

/* Launches are ours in every job, whatever its limits are and wherever they come from, and in no other
 * program. */
static void by_job(void)
{
	char *region = strdup(getenv("RATION_REGION"));
	EQ(AGAIN("on", "CUDA_DEVICE_SM_LIMIT", "0"), 0);
	EQ(AGAIN("on", "RATION_COMPUTE_MAX", "30"), 0);
	unsetenv("RATION_REGION");
	EQ(AGAIN("on", "CUDA_DEVICE_MEMORY_SHARED_CACHE", region), 0);
	EQ(AGAIN("off", "RATION_LOG", "error"), 0);
	setenv("RATION_REGION", region, 1);
	free(region);
}

int main(int argc, char **argv)
{
	rationed = argc == 1 || strcmp(argv[1], "on") == 0;
	if (argc > 1) {
		by_name(dlopen("libcuda.so.1", RTLD_LAZY));
		by_name(RTLD_DEFAULT);
		OK(cuInit(0));
		by_version();
		return checks_failed > 0;
	}
	by_job();
	by_name(dlopen("libcuda.so.1", RTLD_LAZY));
	exact_variants();
	by_version();
	other_names();
	counted();
	return FINISH();
}
