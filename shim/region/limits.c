/* The page of limits: inside the region, or in a file beside it that only an operator writes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

/* region_offer sets each limit that is still zero. It uses a swap, not a store: if two processes
 * bring different limits, the first one wins. */
int region_offer(struct ration_limits *page, const void *limits)
{
	const struct region_limits *own = limits;
	for (unsigned d = 0; d < RATION_DEVICES; d++) {
		if (own->memory[d]) {
			cas(&page->device[d].memory, 0, own->memory[d]);
			FAILPOINT(INIT_LIMITS);
		}
		if (own->compute[d])
			cas(&page->device[d].compute, 0, own->compute[d]);
		if (own->compute_max[d])
			cas(&page->device[d].compute_max, 0, own->compute_max[d]);
	}
	if (own->round)
		cas(&page->round, 0, own->round);
	if (own->priority)
		cas(&page->priority, 0, own->priority);
	if (own->wait_alloc)
		cas(&page->wait_alloc, 0, own->wait_alloc);
	return REGION_OK;
}

/* Size of a buffer for a path. It is on the stack of a program's thread, which may have only 16
 * KiB. The settings allow shorter paths than this. */
enum { LIMITS_PATH = 1024 };

static bool limits_path(const struct region *r, char *path, size_t size)
{
	int n = snprintf(path, size, "%s" LIMITS_SUFFIX, r->path);
	return n > 0 && (size_t)n < size;
}

/* limits_check returns REGION_LIMITS for a file that is not a page of limits, or that another user
 * may have put there: root or the region's owner must own it, and no other user may write it. If
 * only an operator can put files at the path, the owner is not checked, because in a user namespace
 * root may have no UID. */
static int limits_check(struct region *r, int fd)
{
	struct ration_limits page;
	struct stat st, region;
	if (region_stat(fd, &st) != 0 || region_stat(region_fd(r), &region) != 0 || st.st_size != (off_t)sizeof page ||
	    pread(fd, &page, sizeof page, 0) != (ssize_t)sizeof page)
		return REGION_LIMITS;
	if ((!r->any_owner && st.st_uid != 0 && st.st_uid != region.st_uid) || st.st_mode & 022)
		return REGION_LIMITS;
	return page.magic == RATION_LIMITS_MAGIC && page.version == RATION_VERSION ? REGION_OK : REGION_LIMITS;
}

/* region_limits_find sets *where to the place of a new region's limits: beside the region if an
 * operator put a file there, otherwise inside. Only ENOENT means that there is no such file. */
int region_limits_find(const struct region *r, uint32_t *where)
{
	char path[LIMITS_PATH];
	struct stat st;
	*where = RATION_LIMITS_BESIDE;
	if (!limits_path(r, path, sizeof path))
		return REGION_LIMITS;
	if (!region_lstat(path, &st)) {
		if (errno != ENOENT)
			return REGION_SYSTEM;
		*where = RATION_LIMITS_INSIDE;
	}
	return REGION_OK;
}

/* region_limits_open sets r->limits to the page that is in force: the file beside the region, if
 * there is one. The region's own record is not trusted, because its job could have written it; it
 * only tells that a missing file was there before. */
int region_limits_open(struct region *r)
{
	char path[LIMITS_PATH];
	r->limits = &r->m->limits;
	if (!limits_path(r, path, sizeof path))
		return REGION_LIMITS;
	int fd = region_open_path(path, O_RDONLY);
	if (fd < 0 && errno == ENOENT && load32_acquire(&r->m->header.flags) != RATION_LIMITS_BESIDE)
		return REGION_OK;
	if (fd < 0) /* missing or unreadable; any other error tells nothing about the file */
		return errno == ENOENT || errno == EACCES || errno == ELOOP ? REGION_LIMITS : REGION_SYSTEM;
	int err = limits_check(r, fd);
	if (!err) {
		void *page = mmap(NULL, sizeof(struct ration_limits), PROT_READ, MAP_SHARED, fd, 0);
		if (page == MAP_FAILED)
			err = REGION_SYSTEM;
		else
			r->limits = page, r->limits_beside = true;
	}
	close(fd);
	return err;
}

/* region_limits_with maps the page of limits for writing, calls change, and unmaps it. It returns
 * the result of change, or an error. */
int region_limits_with(struct region *r, int (*change)(struct ration_limits *, const void *), const void *arg)
{
	int own = region_fd(r), fd = own, err = own < 0 ? REGION_SYSTEM : REGION_OK;
	off_t offset = offsetof(struct ration_region, limits);
	if (r->limits_beside) {
		char path[LIMITS_PATH];
		if (!limits_path(r, path, sizeof path) || (fd = region_open_path(path, O_RDWR)) < 0)
			return REGION_LIMITS; /* this user may not change it */
		offset = 0;
		err = limits_check(r, fd);
	}
	if (!err) {
		/* Map from the beginning of a page of the machine, which may be larger than
		 * RATION_PAGE_SIZE. */
		size_t before = (size_t)offset % (size_t)sysconf(_SC_PAGESIZE), size = before + sizeof(struct ration_limits);
		char *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset - (off_t)before);
		if (mem == MAP_FAILED) {
			err = REGION_SYSTEM;
		} else {
			madvise(mem, size, MADV_RANDOM); /* do not read ahead */
			err = change((struct ration_limits *)(mem + before), arg);
			munmap(mem, size);
		}
	}
	if (fd != own)
		close(fd);
	return err;
}

uint64_t region_limit(const struct region *r, unsigned device) { return load_acquire(&r->limits->device[device].memory); }

struct limits_setting {
	unsigned device;
	uint64_t limit;
};

static int limits_set(struct ration_limits *page, const void *arg)
{
	const struct limits_setting *s = arg;
	store_release(&page->device[s->device].memory, s->limit);
	FAILPOINT(LIMIT_SET);
	fetch_add(&page->changes, 1);
	return REGION_OK;
}

int region_set_limit(struct region *r, unsigned device, uint64_t limit)
{
	return region_limits_with(r, limits_set, &(struct limits_setting){device, limit});
}
