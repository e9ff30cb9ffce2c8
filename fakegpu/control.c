#define _GNU_SOURCE
#include "control.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver.h"

_Static_assert(sizeof(struct control_args) == 32, "ABI");

enum { CONTROL_START_SIZE = 3 };
enum { CONTROL_LIBCUDA_SLICE = 2048 }; /* the slice that libcuda sets, in us */

/* FAKEGPU_SLICE=other: a driver whose libcuda and kernel module speak of slices in another way. */
enum { CONTROL_OTHER_COMMAND = 0xa06c0113, CONTROL_OTHER_SIZE = 16 };

static enum { CONTROL_PLAIN, CONTROL_REFUSE, CONTROL_IGNORE, CONTROL_PRETEND, CONTROL_OTHER } control_mode;

/* FAKEGPU_SLICE=pretend: a driver that takes a slice, returns it when asked, and does not keep it. */
static uint64_t control_pretended[16][64];

static int control_device = -1;  /* the descriptor; -1: closed. Atomic */
static int control_last;         /* the one before it; 0: there was none */
static uint32_t control_clients; /* how often the process was restored */
static struct stat control_file;
static pthread_once_t control_once = PTHREAD_ONCE_INIT;

/* A descriptor of its own each time, as the driver's after a restore. */
static void control_open_device(void)
{
	int first = machine_control(), fd = first < 0 ? -1 : fcntl(first, F_DUPFD_CLOEXEC, control_last + 1);
	if (first >= 0)
		close(first);
	if (fd >= 0 && fstat(fd, &control_file) == 0)
		store_release(&control_device, fd);
}

static void control_open(void)
{
	const char *mode = getenv("FAKEGPU_SLICE");
	if (mode == NULL || *mode == '\0')
		control_mode = CONTROL_PLAIN;
	else if (strcmp(mode, "refuse") == 0)
		control_mode = CONTROL_REFUSE;
	else if (strcmp(mode, "ignore") == 0)
		control_mode = CONTROL_IGNORE;
	else if (strcmp(mode, "pretend") == 0)
		control_mode = CONTROL_PRETEND;
	else if (strcmp(mode, "other") == 0)
		control_mode = CONTROL_OTHER;
	else
		report_note("FAKEGPU_SLICE=%s is none of refuse, ignore, pretend, other", mode);
	control_open_device();
}
/* The program may have closed it, and its number may be another file's by now. */
static bool control_is_device(int fd)
{
	struct stat st;
	return fd >= 0 && fd == load_acquire(&control_device) && fstat(fd, &st) == 0 && st.st_dev == control_file.st_dev &&
	       st.st_ino == control_file.st_ino;
}

void control_close(void)
{
	int fd = load_acquire(&control_device);
	if (!control_is_device(fd))
		return;
	store_release(&control_device, -1);
	close(fd);
	control_last = fd;
	control_clients++;
}

void control_restore(void)
{
	if (control_last > 0)
		control_open_device();
}

/* The numbers of a context's group: the device and the context's number in both. The client is another after a restore. */
static uint32_t control_client(unsigned device, uint32_t number)
{
	return (0xc1 + control_clients % 32) << 24 | device << 20 | (number & 0xfffff);
}
static uint32_t control_object(unsigned device, uint32_t number) { return 0x5c000000u | device << 20 | (number & 0xfffff); }

static uint32_t control_set(unsigned device, uint32_t number, const uint64_t *us)
{
	uint64_t now;
	if (!work_slice_get(device, number, &now))
		return CONTROL_INVALID_CLIENT;
	if (control_mode == CONTROL_REFUSE)
		return CONTROL_NOT_SUPPORTED;
	if (*us == 0 || *us > UINT32_MAX)
		return CONTROL_INVALID_ARGUMENT;
	if (control_mode == CONTROL_PRETEND) {
		store_release(&control_pretended[device][number % 64], *us);
		return 0;
	}
	return control_mode == CONTROL_IGNORE || work_slice_set(device, number, *us) ? 0 : CONTROL_INVALID_CLIENT;
}

static uint32_t control_get(unsigned device, uint32_t number, uint64_t *us)
{
	if (!work_slice_get(device, number, us))
		return CONTROL_INVALID_CLIENT;
	if (control_mode == CONTROL_PRETEND)
		*us = load_acquire(&control_pretended[device][number % 64]);
	return 0;
}

/* The kernel module's part. */
static uint32_t control_answer(const struct control_args *a)
{
	bool other = control_mode == CONTROL_OTHER;
	unsigned device = a->client >> 20 & 0xf;
	uint32_t number = a->client & 0xfffff;
	uint64_t *param = (uint64_t *)(uintptr_t)a->params;

	if (driver_ready() != CUDA_SUCCESS || device >= machine_shape()->devices || a->client != control_client(device, number) ||
	    a->object != control_object(device, number))
		return CONTROL_INVALID_CLIENT;
	if (a->command == CONTROL_START)
		return param != NULL && a->size == CONTROL_START_SIZE ? 0 : CONTROL_INVALID_PARAM_STRUCT;
	if (a->command != (other ? CONTROL_OTHER_COMMAND : CONTROL_SET_SLICE) && (other || a->command != CONTROL_GET_SLICE))
		return CONTROL_NOT_SUPPORTED;
	if (param == NULL || a->size != (other ? CONTROL_OTHER_SIZE : sizeof *param))
		return CONTROL_INVALID_PARAM_STRUCT;
	return a->command == CONTROL_GET_SLICE ? control_get(device, number, param) : control_set(device, number, param);
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	struct control_args *a;
	va_list list;

	va_start(list, request);
	a = va_arg(list, void *);
	va_end(list);
	if (request != CONTROL_REQUEST || !control_is_device(fd))
		return (int)syscall(SYS_ioctl, fd, request, a);
	a->status = control_answer(a);
	return 0;
}

/* libcuda's own call, by the symbol that a preloaded library may have. */
static void control_call(struct context *c, uint32_t command, const void *params, uint32_t size)
{
	int (*call)(int, unsigned long, ...) = (int (*)(int, unsigned long, ...))dlsym(RTLD_DEFAULT, "ioctl");
	int keep = errno;
	struct control_args a = {.client = control_client(c->work.device, c->work.number),
				 .object = control_object(c->work.device, c->work.number),
				 .command = command,
				 .params = (uintptr_t)params,
				 .size = size};
	if ((call != NULL ? call : ioctl)(load_acquire(&control_device), CONTROL_REQUEST, &a) != 0 &&
	    (errno == ENOTTY || errno == EBADF || errno == EINVAL))
		a.status = control_answer(&a);
	errno = keep;
}

static void control_start(struct context *c) { control_call(c, CONTROL_START, &(uint8_t[CONTROL_START_SIZE]){1}, CONTROL_START_SIZE); }

void control_slice(struct context *c)
{
	uint64_t us[2] = {CONTROL_LIBCUDA_SLICE, 0};
	pthread_once(&control_once, control_open);
	control_start(c);
	if (control_mode == CONTROL_OTHER)
		control_call(c, CONTROL_OTHER_COMMAND, us, CONTROL_OTHER_SIZE);
	else
		control_call(c, CONTROL_SET_SLICE, us, sizeof us[0]);
}

void control_restart(struct context *c)
{
	work_slice_set(c->work.device, c->work.number, ENGINE_FIRST_SLICE / 1000);
	control_start(c);
}
