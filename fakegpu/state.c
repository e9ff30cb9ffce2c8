#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "report.h"

enum { MAGIC = 0x47504b46, VERSION = 10 };

/* Lock bytes lie past any data, where they are just numbers. */
#define LOCK_MACHINE ((off_t)1 << 32)
#define LOCK_RECORD (LOCK_MACHINE + 1)
#define LOCK_SHARE (LOCK_RECORD + MAX_PROCESSES)

static bool state_lock_op(int fd, int cmd, short type, off_t start, off_t len, struct flock *out)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
	int r;
	do
		r = fcntl(fd, cmd, &l);
	while (r != 0 && errno == EINTR);
	if (out != NULL)
		*out = l;
	return r == 0;
}

bool state_lock(const struct state_file *f, bool wait)
{
	if (wait)
		return state_lock_op(f->lock_fd, F_OFD_SETLKW, F_WRLCK, LOCK_MACHINE, 1, NULL);
	for (int i = 0; i < 50; i++) {
		if (state_lock_op(f->lock_fd, F_OFD_SETLK, F_WRLCK, LOCK_MACHINE, 1, NULL))
			return true;
		nanosleep(&(struct timespec){.tv_nsec = 100 * 1000}, NULL);
	}
	return false;
}

void state_unlock(const struct state_file *f) { state_lock_op(f->lock_fd, F_OFD_SETLK, F_UNLCK, LOCK_MACHINE, 1, NULL); }

static bool state_byte_owned(int fd, off_t start, off_t len)
{
	struct flock l;
	return !state_lock_op(fd, F_OFD_GETLK, F_WRLCK, start, len, &l) || l.l_type != F_UNLCK;
}

bool state_owned(const struct state_file *f, unsigned slot) { return state_byte_owned(f->lock_fd, LOCK_RECORD + slot, 1); }

/* The machine's path, found anew each time. In memory of our own and not on the
 * stack, which may be the smallest there is; callers hold the machine's attach lock. */
static char state_path[4096];
static char state_temporary[sizeof state_path + 32];

static int state_folder(char *out, size_t size)
{
	const char *set = getenv("FAKEGPU_STATE");
	const char *base = "/dev/shm";

	if (set != NULL && *set != '\0') {
		if (snprintf(out, size, "%s", set) >= (int)size)
			return -1;
	} else {
		if (access(base, W_OK) != 0)
			base = getenv("TMPDIR");
		if (base == NULL)
			base = "/tmp";
		if (snprintf(out, size, "%s/fakegpu-%u", base, (unsigned)getuid()) >= (int)size)
			return -1;
	}
	if (mkdir(out, 0777) != 0 && errno != EEXIST)
		return -1;
	return 0;
}

static int state_find_path(void)
{
	static const char name[] = "/machine";
	if (state_folder(state_path, sizeof state_path - sizeof name) == 0) {
		strcat(state_path, name);
		return 0;
	}
	report_note("finding the state folder: %s (set FAKEGPU_STATE to a folder that can be written)", strerror(errno));
	return -1;
}

int state_control(void)
{
	static const char name[] = "/nvidiactl";
	if (state_folder(state_temporary, sizeof state_temporary - sizeof name) != 0)
		return -1;
	strcat(state_temporary, name);
	return open(state_temporary, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
}

bool state_lost(unsigned device)
{
	char path[sizeof state_temporary];
	size_t used;
	if (state_folder(path, sizeof state_path) != 0)
		return false;
	used = strlen(path);
	snprintf(path + used, sizeof path - used, "/lost-%u", device);
	return access(path, F_OK) == 0;
}

bool state_current(const struct state_file *f)
{
	struct stat named, open_;
	return state_find_path() == 0 && stat(state_path, &named) == 0 && fstat(f->lock_fd, &open_) == 0 && named.st_ino == open_.st_ino &&
	       named.st_dev == open_.st_dev;
}

bool state_own(struct state_file *f, unsigned slot)
{
	if (f->own_fd < 0)
		f->own_fd = open(state_path, O_RDWR | O_CLOEXEC); /* the file, as the caller has made sure */
	return f->own_fd >= 0 && state_lock_op(f->own_fd, F_OFD_SETLK, F_WRLCK, LOCK_RECORD + slot, 1, NULL);
}

/* The file's position tells which record the descriptor is of. */
int state_share_new(unsigned number)
{
	int fd = state_find_path() == 0 ? open(state_path, O_RDWR | O_CLOEXEC) : -1;
	off_t byte = LOCK_SHARE + (off_t)number;
	if (fd < 0 || (lseek(fd, byte, SEEK_SET) == byte && state_lock_op(fd, F_OFD_SETLK, F_RDLCK, byte, 1, NULL)))
		return fd;
	close(fd);
	return -1;
}

int state_share_of(const struct state_file *f, int fd)
{
	struct stat given, ours;
	off_t at = lseek(fd, 0, SEEK_CUR);
	if (fstat(fd, &given) != 0 || fstat(f->lock_fd, &ours) != 0 || given.st_ino != ours.st_ino || given.st_dev != ours.st_dev ||
	    at < LOCK_SHARE || at >= LOCK_SHARE + MAX_SHARES)
		return -1;
	return (int)(at - LOCK_SHARE);
}

bool state_share_open(const struct state_file *f, unsigned number) { return state_byte_owned(f->lock_fd, LOCK_SHARE + (off_t)number, 1); }

static int state_dma_buf(unsigned number, int flags)
{
	if (state_find_path() != 0)
		return -1;
	snprintf(state_temporary, sizeof state_temporary, "%s.dma-buf.%u", state_path, number);
	return open(state_temporary, flags | O_RDWR | O_CLOEXEC, 0666);
}

int state_dma_buf_new(unsigned number)
{
	int fd = state_dma_buf(number, O_CREAT);
	if (fd < 0 || state_lock_op(fd, F_OFD_SETLK, F_RDLCK, 0, 1, NULL))
		return fd;
	close(fd);
	return -1;
}

bool state_dma_buf_open(unsigned number)
{
	int fd = state_dma_buf(number, 0);
	bool owned = fd >= 0 && state_byte_owned(fd, 0, 1);
	if (fd >= 0)
		close(fd);
	if (fd >= 0 && !owned)
		unlink(state_temporary);
	return owned;
}

/* Opens a file of our own beside the path. A PID names us in our namespace only, so
 * a name that is taken is another's: the next one then. */
static int state_open_temporary(void)
{
	int fd = -1;
	for (unsigned n = 0; n < 10000 && fd < 0; n++) {
		snprintf(state_temporary, sizeof state_temporary, "%s.%d.%u.tmp", state_path, (int)getpid(), n);
		fd = open(state_temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (fd < 0 && errno != EEXIST)
			break;
	}
	return fd;
}

/* Makes a complete file beside the path, then gives it its name in one step, so
 * that no process ever opens a half-made one. */
static int state_publish(const char *text, const struct shape *shape, bool replace)
{
	struct state *s;
	int fd = state_open_temporary(), r = -1;

	if (fd < 0)
		return -1;
	if (ftruncate(fd, sizeof *s) == 0 && (s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED) {
		s->magic = MAGIC;
		s->version = VERSION;
		s->size = sizeof *s;
		snprintf(s->shape, sizeof s->shape, "%s", text);
		for (unsigned i = 0; i < shape->devices; i++)
			s->device[i].capacity = (shape->bytes - shape->reserved) / LEDGER_UNIT;
		for (unsigned i = 0; i < shape->devices; i++)
			engine_make(&s->engine[i]);
		s->switch_ns = ENGINE_SWITCH;
		clock_set(&s->clock, CLOCK_RATE, 0); /* which showed 0 so far */
		munmap(s, sizeof *s);
		r = replace ? rename(state_temporary, state_path) : link(state_temporary, state_path);
		if (r != 0 && !replace && errno == EEXIST)
			r = 0; /* another process was first: its file is as good */
	}
	close(fd);
	unlink(state_temporary);
	return r;
}

static bool state_valid(const struct state *s, const struct stat *st)
{
	return s->magic == MAGIC && s->version == VERSION && s->size == sizeof *s && (uint64_t)st->st_size == sizeof *s &&
	       memchr(s->shape, '\0', sizeof s->shape) != NULL;
}

static int state_map_file(struct state_file *f, struct stat *st)
{
	int fd = open(state_path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -1;
	f->map = MAP_FAILED;
	f->lock_fd = -1;
	if (fstat(fd, st) == 0 && (uint64_t)st->st_size >= sizeof *f->map)
		f->map = mmap(NULL, sizeof *f->map, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	f->lock_fd = open(state_path, O_RDWR | O_CLOEXEC);
	return 0;
}

void state_close(struct state_file *f)
{
	if (f->map != NULL && f->map != MAP_FAILED)
		munmap(f->map, sizeof *f->map);
	if (f->lock_fd >= 0)
		close(f->lock_fd);
	if (f->own_fd >= 0)
		close(f->own_fd);
	f->map = NULL;
	f->lock_fd = f->own_fd = -1;
}

/* Tries to open the path: 1 the file is ours to use, 0 it was made or replaced
 * (try again), -1 it cannot be used. */
static int state_try(const char *wanted, struct state_file *f)
{
	const char *text = wanted != NULL ? wanted : "h200x1";
	struct shape shape;
	struct stat st;
	bool usable, used;
	int r;

	if (shape_parse(text, &shape) != 0) {
		report_note("FAKEGPU=%s names no machine (try h200x2 or small:512m)", text);
		return -1;
	}
	if (state_map_file(f, &st) != 0) {
		if (errno == ENOENT && state_publish(text, &shape, false) == 0)
			return 0;
		report_note("making %s: %s (can the folder be written?)", state_path, strerror(errno));
		return -1;
	}
	usable = f->map != MAP_FAILED && f->lock_fd >= 0 && state_valid(f->map, &st);
	used = f->lock_fd >= 0 && state_byte_owned(f->lock_fd, LOCK_RECORD, MAX_PROCESSES);
	if (usable && (wanted == NULL || strcmp(f->map->shape, text) == 0))
		return shape_parse(f->map->shape, &f->shape) == 0 ? 1 : -1;
	if (used) {
		report_note("the machine in %s is a %s and in use, FAKEGPU asks for %s (set another FAKEGPU_STATE)", state_path,
			    usable ? f->map->shape : "machine of another version", text);
		return -1;
	}
	/* No process uses it: replace it, unless another did or claims it meanwhile. */
	r = 0;
	if (state_lock(f, true)) {
		if (state_current(f) && !state_byte_owned(f->lock_fd, LOCK_RECORD, MAX_PROCESSES))
			r = state_publish(text, &shape, true);
		state_unlock(f);
	}
	return r;
}

static int state_find_device(const struct shape *shape, const char *uuid)
{
	for (unsigned i = 0; i < shape->devices; i++) {
		char text[UUID_TEXT];
		model_uuid_text(shape->model, i, text);
		if (strcasecmp(text, uuid) == 0)
			return (int)i;
	}
	return -1;
}

_Static_assert(MAX_DEVICES <= 64, "state_find_present has a bit for each device");

/* Finds which devices there are for processes: all, or those that the file says. */
static void state_find_present(struct state_file *f)
{
	static const char name[] = "/present";
	char line[UUID_TEXT + 1];
	FILE *list = NULL;
	uint64_t named;

	if (state_folder(state_temporary, sizeof state_temporary - sizeof name) == 0)
		list = fopen(strcat(state_temporary, name), "re");
	named = list == NULL && errno == ENOENT ? ~UINT64_C(0) : 0;
	while (list != NULL && fgets(line, sizeof line, list) != NULL) {
		int device;
		line[strcspn(line, "\n")] = '\0';
		device = state_find_device(&f->shape, line);
		if (device >= 0)
			named |= UINT64_C(1) << device;
	}
	if (list != NULL)
		fclose(list);
	for (unsigned i = 0; i < f->shape.devices; i++)
		if (named >> i & 1)
			f->present[f->presents++] = i;
}

int state_open(struct state_file *f)
{
	const char *wanted = getenv("FAKEGPU");
	int r;

	if (wanted != NULL && *wanted == '\0')
		wanted = NULL;
	if (state_find_path() != 0)
		return -1;
	for (int i = 0; i < 100; i++) {
		*f = (struct state_file){.lock_fd = -1, .own_fd = -1};
		r = state_try(wanted, f);
		if (r > 0) {
			state_find_present(f);
			return 0;
		}
		state_close(f);
		if (r < 0)
			return -1;
	}
	report_note("opening %s: it is replaced over and over", state_path);
	return -1;
}
