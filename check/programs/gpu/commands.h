/* Programs that read commands from standard input, one a line, and end with the input or at quit. They
 * answer each with one line: `ok` and numbers, or `error`, the driver's code and the call. */
#ifndef COMMANDS_H
#define COMMANDS_H

#include <string.h>
#include <time.h>

#include "driver.h"

static const char *last_call; /* of the driver, for the answer */
static CUdevice device;
static bool context; /* the primary context of device 0 was made */
static CUstream stream;
static CUmodule code;

#define CALL(call, ...) (last_call = #call, call(__VA_ARGS__))

static inline uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void sleep_until(uint64_t at)
{
	struct timespec t = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

/* load_code makes a kernel of ptx, and a stream. */
static inline CUresult load_code(const char *ptx, const char *name, CUfunction *kernel)
{
	CUresult r = CALL(cuModuleLoadData, &code, ptx);
	if (!r)
		r = CALL(cuModuleGetFunction, kernel, code, name);
	return r ? r : CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
}

/* start_driver makes the context current, and then calls prepare. It does so once. */
static inline CUresult start_driver(CUresult (*prepare)(void))
{
	CUcontext primary;
	CUresult r = CALL(cuInit, 0);
	if (r || context)
		return r;
	if (!(r = CALL(cuDeviceGet, &device, 0)))
		r = CALL(cuDevicePrimaryCtxRetain, &primary, device);
	context = !r;
	if (!r)
		r = CALL(cuCtxSetCurrent, primary);
	return r ? r : prepare();
}

/* say answers a command. */
__attribute__((format(printf, 2, 3))) static inline void say(CUresult r, const char *format, ...)
{
	va_list numbers;
	va_start(numbers, format);
	if (r) {
		printf("error %d %s\n", (int)r, last_call);
	} else {
		printf("ok");
		vprintf(format, numbers);
		putchar('\n');
	}
	fflush(stdout);
	va_end(numbers);
}

/* follow_commands calls carry_out, which returns false if there is no such command, for each line. It
 * returns the exit status. */
static inline int follow_commands(bool (*carry_out)(const char *line))
{
	char line[256];
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = '\0';
		if (!carry_out(line)) {
			fprintf(stderr, "%s: %s: no such command\n", program_invocation_short_name, line);
			return STEPS_USAGE;
		}
		if (!strcmp(line, "quit"))
			break;
	}
	return 0;
}

#endif
