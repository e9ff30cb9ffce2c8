/* Every symbol by every way to it. */
#include <dlfcn.h>

#include "check.h"

static void every_symbol(void)
{
	const char *base, *exported;
	int version, per_thread, status;
	size_t n = 0;
	for (; fakegpu_symbol(n, &base, &exported, &version, &per_thread) == 0; n++) {
		void *direct = dlsym(RTLD_DEFAULT, exported), *resolved = NULL;
		OK(cuGetProcAddress_v2(base, &resolved, version, per_thread ? 2 : 0, &status));
		if (direct == NULL || resolved != direct)
			fprintf(stderr, "%s: dlsym %p, cuGetProcAddress %p\n", exported, direct, resolved);
		CHECK(direct != NULL && resolved == direct);
		/* Variants are functions of their own: a library that hooks one must not hit another. */
		for (size_t i = 0; i < n; i++) {
			const char *b, *e;
			int v, t;
			fakegpu_symbol(i, &b, &e, &v, &t);
			if (dlsym(RTLD_DEFAULT, e) == direct) {
				fprintf(stderr, "%s and %s are one function\n", e, exported);
				CHECK(!"distinct");
			}
		}
	}
	CHECK(n > 300);
}

/* As a driver 580 answers. */
static void answers(void)
{
	static const struct {
		const char *base;
		int version, flags, status;
		const char *exported;
	} cases[] = {
		{"cuMemAlloc", 2000, 0, 0, "cuMemAlloc"},
		{"cuMemAlloc", 3020, 0, 0, "cuMemAlloc_v2"},
		{"cuMemAlloc", 13000, 2, 0, "cuMemAlloc_v2"},
		{"cuMemAlloc", 1, 0, 2, NULL},
		{"cuMemAlloc_v2", 12000, 0, 1, NULL},
		{"cuMemAllocAsync", 11020, 0, 0, "cuMemAllocAsync"},
		{"cuMemAllocAsync", 11020, 1, 0, "cuMemAllocAsync"},
		{"cuMemAllocAsync", 11020, 2, 0, "cuMemAllocAsync_ptsz"},
		{"cuMemAllocAsync", 11020, 3, 0, "cuMemAllocAsync_ptsz"},
		{"cuMemAllocAsync", 11000, 0, 2, NULL},
		{"cuMemcpyHtoD", 6000, 2, 2, NULL},
		{"cuMemcpyHtoD", 7000, 2, 0, "cuMemcpyHtoD_v2_ptds"},
		{"cuCtxCreate", 11040, 0, 0, "cuCtxCreate_v3"},
		{"cuCtxCreate", 12050, 0, 0, "cuCtxCreate_v4"},
		{"cuGraphInstantiate", 13000, 0, 0, "cuGraphInstantiate_v2"},
		{"cuGetProcAddress", 12000, 0, 0, "cuGetProcAddress_v2"},
		{"cuNope", 12000, 0, 1, NULL},
		{"", 12000, 0, 1, NULL},
	};
	void *p;
	int status;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		status = -1;
		p = &p;
		OK(cuGetProcAddress_v2(cases[i].base, &p, cases[i].version, (uint64_t)cases[i].flags, &status));
		EQ(status, cases[i].status);
		CHECK(p == (cases[i].exported == NULL ? NULL : dlsym(RTLD_DEFAULT, cases[i].exported)));
	}
	EQ(cuGetProcAddress_v2("cuMemAlloc", &p, 13010, 0, &status), CUDA_ERROR_INVALID_VALUE);
	EQ(cuGetProcAddress_v2("cuMemAlloc", &p, 12000, 4, &status), CUDA_ERROR_INVALID_VALUE);
	EQ(cuGetProcAddress("cuNope", &p, 12000, 0), CUDA_ERROR_NOT_FOUND);
	OK(cuGetProcAddress("cuMemAlloc", &p, 12000, 0));
	CHECK(p == dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
}

int main(void)
{
	every_symbol();
	answers();
	return FINISH();
}
