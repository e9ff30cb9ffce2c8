#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "elf.h"
#include "environment.h"
#include "log.h"
#include "region/kernel.h"
#include "userjob.h"

/* The well-known path: where a container finds its job even if its environment is lost. It is
 * the region, or the job's folder. */
#define CONFIG_WELL_KNOWN "/run/ration/job"

/* config_disabled reports whether HAMi-core's switch is set that lets a program run without
 * limits. */
static bool config_disabled(void)
{
	const char *v = environment_get("CUDA_DISABLE_CONTROL");
	return v && (!strcmp(v, "1") || !strcasecmp(v, "true"));
}

/* Variables of HAMi-core that have no effect, and why. */
static const struct {
	const char *name, *why;
} config_meaningless[] = {
	{"CUDA_OVERSUBSCRIBE", "no memory is moved to the host: what exceeds the limit is refused"},
	{"ACTIVE_OOM_KILLER", "no process is ever ended"},
};

void config_log_meaningless(const struct config *c, bool first)
{
	enum log_level level = first ? LOG_WARN : LOG_INFO;
	if (!log_wanted(level))
		return;
	for (size_t i = 0; i < sizeof config_meaningless / sizeof *config_meaningless; i++) {
		const char *v = environment_get(config_meaningless[i].name);
		bool off = v && (!strcmp(v, "0") || !strcasecmp(v, "false"));
		if (v && *v && !off)
			log_line(level, "%s=%s has no effect: %s", config_meaningless[i].name, v, config_meaningless[i].why);
	}
	const char *priority = environment_get(CONFIG_HAMI_PRIORITY),
		   *what = priority ? parse_hami_priority(priority, &(uint8_t){0}) : NULL;
	if (what)
		log_line(level, CONFIG_HAMI_PRIORITY "=%s has no effect: %s", priority, what);
	if ((c->made || c->placed) && config_disabled())
		log_line(level, "CUDA_DISABLE_CONTROL has no effect in a job that ration run made");
}

/* config_found reports whether there is a job that no variable names: at the well-known path,
 * or by a policy. */
static bool config_found(void)
{
	struct stat st;
	if (!region_lstat(CONFIG_WELL_KNOWN, &st) && !userjob_ruled())
		return false;
	/* An operator's job: bind to the C library's own functions, so that no other preloaded
	 * library comes between this one and the kernel. */
	elf_trust_libc();
	return true;
}

bool config_any(void)
{
	const char *job = environment_get("RATION_JOB");
	bool found = config_found(); /* whatever the variables say: it binds to the C library's functions */
	if (config_disabled() && !(job && *job) && !found)
		return false;
	return found || environment_get("RATION_REGION") || environment_get("CUDA_DEVICE_MEMORY_SHARED_CACHE") || config_limits_any();
}

/* config_trusted reports whether a folder can contain only files that this user or root made. */
static bool config_trusted(const struct stat *st)
{
	return S_ISDIR(st->st_mode) && (st->st_uid == kernel_euid() || st->st_uid == 0) && !(st->st_mode & 022);
}

/* config_own_folder writes the folder of this user's jobs to out, by the same rules as
 * internal/job. It returns the length, like snprintf. */
static int config_own_folder(char *out, size_t size)
{
	const char *dir = environment_get("RATION_DIR");
	if (dir && *dir)
		return snprintf(out, size, "%s", dir);
	if (kernel_euid() == 0)
		return snprintf(out, size, "/run/ration");
	int n = snprintf(out, size, "/tmp/ration-%u", (unsigned)kernel_euid());
	struct stat st;
	/* Any user can make a folder of that name there, and this user could not remove it. */
	if (n > 0 && (size_t)n < size && region_lstat(out, &st) && !config_trusted(&st) && (dir = environment_get("HOME")) && *dir == '/')
		return snprintf(out, size, "%s/.local/state/ration", dir);
	return n;
}

/* config_mounted reports whether path itself is a mount point. On kernels before 5.8 it returns
 * false. */
static bool config_mounted(const char *path)
{
	struct statx st = {.stx_attributes = 0};
	return kernel_call(SYS_statx, AT_FDCWD, (long)path, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, 0, (long)&st) == 0 &&
	       st.stx_attributes & st.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT;
}

/* config_number parses the time that a launcher wrote, in Unix nanoseconds. It returns 0 if the
 * text is NULL or no number. */
static uint64_t config_number(const char *text)
{
	char *end;
	unsigned long long n = text && *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
	return n && (*end == 0 || *end == '\n') ? n : 0;
}

/* config_created reads the file that a launcher writes beside the region: it holds the time at
 * which the job was made. It returns false if there is no such file. */
static bool config_created(const char *path, uint64_t *created)
{
	char text[32] = "";
	int fd = region_open_fd(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
	if (fd < 0)
		return false;
	*created = read(fd, text, sizeof text - 1) > 0 ? config_number(text) : 0;
	close(fd);
	return true;
}

static void config_read_created(struct config *c, const char *path)
{
	if (config_created(path, &c->created))
		c->made = true;
}

/* config_find_well_known sets the path to the job at the well-known path, and returns whether
 * there is one. If the job was mounted there, or another user put it there, this process may
 * not leave it. */
static bool config_find_well_known(struct config *c)
{
	struct stat st;
	if (!region_lstat(CONFIG_WELL_KNOWN, &st))
		return false;
	snprintf(c->path, sizeof c->path, "%s", S_ISDIR(st.st_mode) ? CONFIG_WELL_KNOWN "/region" : CONFIG_WELL_KNOWN);
	c->placed = st.st_uid != kernel_euid() || config_mounted(CONFIG_WELL_KNOWN) || config_mounted(c->path);
	return true;
}

/* config_find_run finds the run that RATION_REGION names. It is an error if the run has ended:
 * the program asked for the ration of that run, and must not use another. */
static bool config_find_run(struct config *c, const char *region)
{
	struct stat st;
	char created[128];
	const char *when = environment_get("RATION_JOB_CREATED");
	snprintf(c->path, sizeof c->path, "%s", region);
	snprintf(created, sizeof created, "%.*s/created", (int)(strrchr(region, '/') - region), region);
	c->fail_open = false;
	if (region_lstat(created, &st)) {
		config_read_created(c, created);
		if (config_number(when)) /* if a second run has the same name: the run in which this process was started */
			c->created = config_number(when);
		return true;
	}
	log_set_job(c->path);
	log_error("the run that RATION_REGION names has ended, and its ration is gone (start it again with ration run, or unset "
		  "RATION_REGION)");
	return false;
}

/* config_read_users_job finds the job that a policy gives this process's user, and sets the
 * path. at is as for userjob_find. */
static bool config_read_users_job(struct config *c, enum userjob_wish wish, const char *at)
{
	char folder[64], created[sizeof folder + sizeof "/created"], why[640];
	enum userjob found = userjob_find(wish, at, folder, sizeof folder, why, sizeof why);
	snprintf(c->path, sizeof c->path, "%s/region", folder);
	c->fail_open = found == USERJOB_OPEN || found == USERJOB_ENDED;
	if (found == USERJOB_FOUND) {
		snprintf(created, sizeof created, "%s/created", folder);
		config_read_created(c, created);
		return true;
	}
	log_set_job(c->path);
	if (found == USERJOB_OPEN)
		log_warn("no ration by this machine's policy: %s", why);
	else if (found != USERJOB_ENDED)
		log_error("GPU refused by this machine's policy: %s", why);
	return false;
}

/* config_find_users_job finds the job that a policy gives this process's user. Only one
 * variable counts: RATION_REGION, if it names a run of the same user. RATION_FAIL does not
 * count: the policy decides whether a user without a job may run. */
static bool config_find_users_job(struct config *c)
{
	const char *region = environment_get("RATION_REGION");
	c->ruled = c->placed = c->made = c->path_given = true;
	if (userjob_is_run(region))
		return config_find_run(c, region);
	c->users = true;
	return config_read_users_job(c, USERJOB_JOIN, "");
}

/* config_find_path finds the job's region and sets the path. It returns false if there is a mistake
 * in the settings, and logs it. */
static bool config_find_path(struct config *c)
{
	static const char *const variables[] = {"RATION_REGION", "CUDA_DEVICE_MEMORY_SHARED_CACHE"};
	bool well_known = config_find_well_known(c);
	int n;
	if (!c->placed && userjob_ruled())
		return config_find_users_job(c);
	for (unsigned i = 0; i < 2 && !c->placed; i++) {
		const char *value = environment_get(variables[i]), *job = environment_get("RATION_JOB");
		if (!value)
			continue;
		if (!*value) {
			log_error("%s=\"\": empty (use the path of the job's region)", variables[i]);
			return false;
		}
		c->path_given = true;
		c->made = job && *job;
		c->created = c->made ? config_number(environment_get("RATION_JOB_CREATED")) : 0;
		n = snprintf(c->path, sizeof c->path, "%s", value);
		if (n < 0 || (size_t)n >= sizeof c->path)
			log_error("%s: a path of %d bytes (use one shorter than %zu)", variables[i], n, sizeof c->path);
		return n >= 0 && (size_t)n < sizeof c->path;
	}
	if (well_known) {
		c->path_given = true;
		c->fail_open = c->fail_open && !c->placed;
		config_read_created(c, CONFIG_WELL_KNOWN "/created");
		return true;
	}
	/* Limits without a path: a job called default. */
	n = config_own_folder(c->path, sizeof c->path - sizeof "/default/region");
	if (n < 0 || (size_t)n >= sizeof c->path - sizeof "/default/region") {
		log_error("the folder of jobs has too long a name (name another in RATION_DIR)");
		return false;
	}
	strcat(c->path, "/default/region");
	return true;
}

/* config_read_visible parses the list of visible devices. It reads the whole list, however
 * long, since the list decides which limit applies to which device. */
static void config_read_visible(struct config *c, const char *list)
{
	memset(c->visible, CONFIG_UNLISTED, sizeof c->visible);
	if (!list || !*list)
		return;
	for (unsigned ordinal = 0; list && ordinal < CONFIG_ORDINALS; ordinal++) {
		unsigned n = 0;
		list += strspn(list, " ");
		size_t digits = strspn(list, "0123456789");
		for (size_t i = 0; i < digits && n < RATION_DEVICES; i++)
			n = n * 10 + (unsigned)(list[i] - '0');
		bool number = digits && strchr(", ", list[digits]) && n < RATION_DEVICES;
		c->visible[ordinal] = (uint8_t)(number ? n : CONFIG_OTHER);
		list = (list = strchr(list, ',')) ? list + 1 : NULL;
	}
}

bool config_granted(const struct config *c)
{
	uint64_t now;
	char created[sizeof c->path + sizeof "/created"];
	if (!c->users)
		return true;
	snprintf(created, sizeof created, "%.*s/created", (int)(strrchr(c->path, '/') - c->path), c->path);
	return config_created(created, &now) && now == c->created;
}

bool config_ask_again(struct config *c, const char *at) { return c->users && config_read_users_job(c, USERJOB_ASK, at); }

bool config_read(struct config *c)
{
	const char *fail = environment_get("RATION_FAIL"), *probe = environment_get("RATION_HOSTPID"),
		   *fast = environment_get("RATION_SLEEP_FAST");
	memset(c, 0, sizeof *c);
	/* Read it now, when the driver does: a program may change the variable later for its
	 * children. */
	config_read_visible(c, getenv("CUDA_VISIBLE_DEVICES"));
	c->fail_open = fail && !strcmp(fail, "open");
	c->probe = probe && !strcmp(probe, "probe");
	c->sleep_fast = fast && !strcmp(fast, "1");
	/* Find the job first, so that log lines about the other settings name it. */
	bool found = config_find_path(c);
	if (found)
		log_set_job(c->path);
	bool good = config_limits_read(&c->limits);
	if (fail && strcmp(fail, "open") && strcmp(fail, "closed"))
		log_warn("RATION_FAIL=\"%s\": neither open nor closed (taken as closed)", fail);
	return found && good;
}

/* config_read_page reads the place from the page of limits at offset `at` of a file. It returns false
 * if there is no such file. */
static bool config_read_page(const char *path, off_t at, struct place *out)
{
	struct ration_device_limits l; /* one at a time: a thread may have a small stack */
	uint64_t magic = 0;
	int fd = region_open_fd(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
	if (fd < 0)
		return false;
	bool good = pread(fd, &magic, sizeof magic, at) == (ssize_t)sizeof magic && magic == RATION_LIMITS_MAGIC;
	at += (off_t)offsetof(struct ration_limits, device);
	for (unsigned d = 0; good && d < RATION_DEVICES; d++, at += (off_t)sizeof l)
		if ((good = pread(fd, &l, sizeof l, at) == (ssize_t)sizeof l))
			place_add(out, d, &l);
	close(fd);
	return true;
}

void config_read_place(const struct config *c, struct place *out)
{
	char beside[sizeof c->path + sizeof LIMITS_SUFFIX];
	memset(out, 0, sizeof *out);
	snprintf(beside, sizeof beside, "%s" LIMITS_SUFFIX, c->path);
	/* An operator's page beside the region comes first. */
	if (!config_read_page(beside, 0, out))
		config_read_page(c->path, offsetof(struct ration_region, limits), out);
}

/* config_make_trusted makes a folder, or accepts one that only this user can have made: limits
 * in a folder that others can write mean nothing. It returns false, and logs why, for any
 * other. */
static bool config_make_trusted(const char *path)
{
	struct stat st;
	char buf[ERRNO_TEXT];
	if (mkdir(path, 0700) != 0 && errno != EEXIST) {
		log_error("making the folder %s: %s (name a region in RATION_REGION)", path, errno_text(errno, buf));
		return false;
	}
	if (region_lstat(path, &st) && config_trusted(&st))
		return true;
	log_error("folder %s: not this user's alone (remove it, or name a region in RATION_REGION)", path);
	return false;
}

/* config_roots_alone reports whether only root can replace the object at path; the caller has
 * checked all folders above it. It returns true for any user but root: the check keeps another
 * user from redirecting files that root writes. */
static bool config_roots_alone(const char *path)
{
	struct stat itself, folder;
	if (kernel_euid() != 0 || !region_lstat(path, &itself) ||
	    kernel_call(SYS_newfstatat, AT_FDCWD, (long)path, (long)&folder, 0, 0) != 0)
		return true; /* the path does not exist, so nothing can be made below it */
	if (itself.st_uid == 0 && folder.st_uid == 0 && (!(folder.st_mode & 022) || folder.st_mode & S_ISVTX))
		return true;
	log_error(
		"folder %s: other users can put another in its place (name a folder of root's in RATION_DIR, or a region in RATION_REGION)",
		path);
	return false;
}

bool config_make_folder(const struct config *c)
{
	char path[sizeof c->path];
	strcpy(path, c->path);
	*strrchr(path, '/') = 0;
	char *job = strrchr(path, '/');
	*job = 0;
	for (char *part = path + 1; (part = strchr(part, '/')); part++) {
		*part = 0;
		mkdir(path, 0755); /* if this fails, config_make_trusted fails below */
		if (!config_roots_alone(path))
			return false;
		*part = '/';
	}
	if (!config_make_trusted(path))
		return false;
	*job = '/';
	return config_make_trusted(path);
}
