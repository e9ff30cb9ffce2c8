/* Machines come, go and change shape, but never under a process that uses one. */
#include "check.h"

/* Exits with the device count, or the error. */
static int count(void)
{
	int n = 0;
	CUresult r = cuInit(0);
	if (r == CUDA_SUCCESS)
		r = cuDeviceGetCount(&n);
	return r == CUDA_SUCCESS ? n : (int)r % 256;
}

/* Only NVML, which claims no record. */
static int look(void)
{
	unsigned n = 0;
	return nvmlInit_v2() == NVML_SUCCESS && nvmlDeviceGetCount_v2(&n) == NVML_SUCCESS ? (int)n : 255;
}

static int asked(const char *role, const char *machine) { return WEXITSTATUS(AGAIN(role, "FAKEGPU", machine)); }

int main(int argc, char **argv)
{
	enum { NOT_READY = CUDA_ERROR_SYSTEM_NOT_READY % 256 };

	if (argc > 1)
		return strcmp(argv[1], "look") == 0 ? look() : count();
	EQ(asked("look", ""), 1); /* made on first sight */
	EQ(asked("count", "a100x3"), 3);
	EQ(asked("look", ""), 3); /* without FAKEGPU, what is there */
	EQ(asked("count", ""), 3);
	EQ(asked("count", "smallx16:64m"), 16);
	EQ(asked("count", "smallx17"), NOT_READY);
	EQ(asked("look", "h100migx56"), 8);
	EQ(asked("count", "h100migx65"), NOT_READY);
	EQ(asked("count", "h100x"), NOT_READY);
	EQ(asked("count", "h100:3t"), NOT_READY);
	setenv("FAKEGPU", "h100x2", 1);
	EQ(count(), 2);
	EQ(asked("count", "h100x4"), NOT_READY); /* in use as it is */
	EQ(asked("look", "h100x4"), 255);
	EQ(asked("count", ""), 2);
	EQ(WEXITSTATUS(AGAIN("count", "FAKEGPU_STATE", "/nonexistent/folder")), NOT_READY);
	return FINISH();
}
